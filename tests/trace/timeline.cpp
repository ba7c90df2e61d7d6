#include <mend/trace/timeline.hpp>

#include <doctest/doctest.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <vector>

#include "core/scratch.hpp"
#include "trace/json.hpp"

using mend::FileError;
using mend::Rank;
using mend::Time;
using mend::trace::Event;
using mend::trace::EventKind;
using mend::trace::timeline_json;
using mend::trace::write_timeline;
using mend_test::Json;
using namespace std::chrono_literals;

namespace {

std::vector<Json> of_phase(const Json& json, std::string_view phase) {
  std::vector<Json> found;
  for (const Json& e : json["traceEvents"].array)
    if (e["ph"].string == phase) found.push_back(e);
  return found;
}

}  // namespace

TEST_CASE("spans and moments become what Chrome's trace viewer reads") {
  std::vector<Event> events{
      {.time = 1500ns,
       .rank = Rank{2},
       .generation = mend::Generation{4},
       .step = 7,
       .kind = EventKind::reduce,
       .name = "bucket 1",
       .duration = 2ms,
       .bytes = mend::ByteCount{96}},
      {.time = 1s, .rank = Rank{0}, .step = 8, .kind = EventKind::death, .text = "killed"},
  };
  Json json = Json::parse(timeline_json(events));
  std::vector<Json> spans = of_phase(json, "X"), moments = of_phase(json, "i");
  REQUIRE(spans.size() == 1);
  REQUIRE(moments.size() == 1);
  CHECK(spans[0]["name"].string == "bucket 1");
  CHECK(spans[0]["cat"].string == "reduce");
  CHECK(spans[0]["pid"].number == 2);
  CHECK(spans[0]["ts"].number == 1.5);
  CHECK(spans[0]["dur"].number == 2000);
  CHECK(spans[0]["args"]["step"].number == 7);
  CHECK(spans[0]["args"]["generation"].number == 4);
  CHECK(spans[0]["args"]["bytes"].number == 96);
  CHECK_FALSE(spans[0]["args"].has("text"));
  CHECK(moments[0]["name"].string == "death");
  CHECK(moments[0]["pid"].number == 0);
  CHECK(moments[0]["ts"].number == 1e6);
  CHECK(moments[0]["s"].string == "p");
  CHECK(moments[0]["args"]["text"].string == "killed");
  CHECK_FALSE(moments[0]["args"].has("bytes"));
  CHECK(spans[0]["tid"].number != moments[0]["tid"].number);
}

TEST_CASE("every rank and every row of it is named once") {
  std::vector<Event> events;
  for (int i = 0; i < 12; ++i)
    events.push_back(
        {.rank = Rank{i % 3}, .kind = i % 2 == 0 ? EventKind::step : EventKind::stall});
  std::vector<Json> names = of_phase(Json::parse(timeline_json(events)), "M");
  std::size_t ranks = 0, rows = 0;
  for (const Json& e : names) {
    if (e["name"].string == "process_name") {
      ++ranks;
      CHECK(e["args"]["name"].string ==
            "rank " + std::to_string(static_cast<int>(e["pid"].number)));
    } else {
      ++rows;
      CHECK(e["name"].string == "thread_name");
      std::string name = e["args"]["name"].string;
      CHECK((name == "step" || name == "stall"));
    }
  }
  CHECK(rows == 6);
  CHECK(ranks >= 3);
}

TEST_CASE("times are exact to the nanosecond, whatever the locale, and may be negative") {
  auto time = [](Time t) {
    std::vector<Event> events{{.time = t}};
    std::string text = timeline_json(events);
    CHECK_NOTHROW(Json::parse(text));
    std::size_t at = text.find("\"ts\":") + 5;
    return text.substr(at, text.find(',', at) - at);
  };
  CHECK(time(Time{0}) == "0.000");
  CHECK(time(Time{1}) == "0.001");
  CHECK(time(Time{1'000'042}) == "1000.042");
  CHECK(time(Time{-1}) == "-0.001");
  CHECK(time(Time{-999}) == "-0.999");
  CHECK(time(Time{-12'345}) == "-12.345");
  CHECK(time(Time::max()) == "9223372036854775.807");
}

TEST_CASE("names and texts of any bytes stay valid JSON and valid UTF-8") {
  std::string all;
  for (int c = 0; c < 256; ++c) all += static_cast<char>(c);
  std::vector<Event> events{{.name = "a \"quoted\" \\ name\n", .text = all}};
  std::string text = timeline_json(events);
  CHECK(mend::is_utf8(text));
  Json json = Json::parse(text);
  std::vector<Json> moments = of_phase(json, "i");
  REQUIRE(moments.size() == 1);
  CHECK(moments[0]["name"].string == "a \"quoted\" \\ name\n");
  CHECK(moments[0]["args"]["text"].string.substr(0, 128) == all.substr(0, 128));
}

TEST_CASE("no events is a timeline too") {
  CHECK(Json::parse(timeline_json({}))["traceEvents"].array.empty());
}

TEST_CASE("the file is replaced whole") {
  mend_test::Scratch scratch;
  mend::PosixFileSystem files;
  std::vector<Event> events(100);
  write_timeline(scratch / "t.json", events);
  events.resize(1);
  write_timeline(scratch / "t.json", events);
  CHECK(files.open(scratch / "t.json").size() == timeline_json(events).size());
  CHECK(files.list(scratch.path) == std::vector<std::string>{"t.json"});
}

TEST_CASE("a path that cannot be written is an error with errno and path") {
  mend_test::Scratch scratch;
  try {
    write_timeline(scratch / "absent/t.json", {});
    FAIL("written into a directory that does not exist");
  } catch (const FileError& e) {
    CHECK(e.code() == ENOENT);
    CHECK(e.path() == scratch / "absent/t.json");
  }
  CHECK_THROWS_AS(write_timeline("/dev/full/t.json", {}), FileError);
}
