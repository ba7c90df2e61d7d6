#include <mend/trace/recorder.hpp>

#include <doctest/doctest.h>

#include <string>
#include <thread>
#include <vector>

using mend::ByteCount;
using mend::Step;
using mend::Time;
using mend::trace::Event;
using mend::trace::EventKind;
using mend::trace::Recorder;

TEST_CASE("events come back as they were given, oldest first") {
  Recorder recorder;
  recorder.record({.time = Time{5},
                   .rank = mend::Rank{2},
                   .generation = mend::Generation{3},
                   .step = 7,
                   .kind = EventKind::reduce,
                   .name = "bucket 1",
                   .duration = Time{9},
                   .bytes = ByteCount{64},
                   .text = "a text that is too long for the string itself"});
  recorder.record({.time = Time{4}, .kind = EventKind::commit});
  std::vector<Event> events = recorder.events();
  REQUIRE(events.size() == 2);
  CHECK(events[0].time == Time{5});
  CHECK(events[0].rank == 2);
  CHECK(events[0].generation.value() == 3);
  CHECK(events[0].step == Step{7});
  CHECK(events[0].kind == EventKind::reduce);
  CHECK(events[0].name == "bucket 1");
  CHECK(events[0].duration == Time{9});
  CHECK(events[0].bytes.value() == 64);
  CHECK(events[0].text == "a text that is too long for the string itself");
  CHECK(events[1].kind == EventKind::commit);
  CHECK(recorder.dropped() == 0);
}

TEST_CASE("the budget is never exceeded; the oldest go first and are counted") {
  ByteCount budget{10'000};
  Recorder recorder{budget};
  for (int i = 0; i < 1000; ++i) {
    recorder.record({.step = i, .text = std::string(static_cast<std::size_t>(i % 300), 'x')});
    CHECK(recorder.used() <= budget);
  }
  std::vector<Event> events = recorder.events();
  REQUIRE(events.size() > 10);
  CHECK(events.size() + recorder.dropped() == 1000);
  for (std::size_t i = 0; i < events.size(); ++i)
    CHECK(events[i].step.value() == static_cast<std::int64_t>(1000 - events.size() + i));
  std::uint64_t used = 0;
  for (const Event& e : events) used += sizeof(Event) + e.name.size() + e.text.size();
  CHECK(used <= budget.value());
  CHECK(used > budget.value() / 2);
}

TEST_CASE("an event larger than the budget is dropped and takes no other with it") {
  Recorder recorder{ByteCount{4096}};
  recorder.record({.step = 1});
  recorder.record({.text = std::string(5000, 'x')});
  CHECK(recorder.events().size() == 1);
  CHECK(recorder.dropped() == 1);
  Recorder none{ByteCount{0}};
  none.record({});
  none.count("a");
  CHECK(none.events().empty());
  CHECK(none.counter("a") == 0);
  CHECK(none.dropped() == 2);
}

TEST_CASE("counters begin at zero, add up and share the budget") {
  Recorder recorder{ByteCount{2000}};
  CHECK(recorder.counter("bytes sent") == 0);
  recorder.count("bytes sent", 10);
  recorder.count("bytes sent", -3);
  recorder.count("retries");
  CHECK(recorder.counter("bytes sent") == 7);
  CHECK(recorder.counters().size() == 2);
  for (int i = 0; i < 1000; ++i) {
    recorder.count("name " + std::to_string(i));
    recorder.record({.step = i});
    CHECK(recorder.used().value() <= 2000);
  }
  CHECK(recorder.counter("retries") == 1);
  CHECK(recorder.counters().size() < 30);
  CHECK(recorder.dropped() > 970);
  recorder.count("retries");  // a known name always counts
  CHECK(recorder.counter("retries") == 2);
}

TEST_CASE("disabled, nothing is kept; enabled again, it goes on") {
  Recorder recorder{ByteCount{4096}, false};
  recorder.record({.step = 1});
  recorder.count("a");
  CHECK_FALSE(recorder.enabled());
  CHECK(recorder.events().empty());
  CHECK(recorder.counters().empty());
  CHECK(recorder.dropped() == 0);
  recorder.enable(true);
  recorder.record({.step = 2});
  CHECK(recorder.events().size() == 1);
}

TEST_CASE("threads record and read at once") {
  Recorder recorder{ByteCount{64 << 10}};
  constexpr int threads = 4, each = 2000;
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t)
    workers.emplace_back([&recorder, t] {
      for (int i = 0; i < each; ++i) {
        recorder.record({.rank = mend::Rank{t}, .step = i, .text = "event"});
        recorder.count("events");
        if (i % 100 == 0) (void)recorder.events();
        if (i % 500 == 0) recorder.enable(true);
      }
    });
  for (std::thread& worker : workers) worker.join();
  CHECK(recorder.counter("events") == threads * each);
  CHECK(recorder.events().size() + recorder.dropped() == threads * each);
  std::vector<std::int64_t> last(threads, -1);  // each thread's events are in its order
  for (const Event& e : recorder.events()) {
    CHECK(e.step.value() > last[static_cast<std::size_t>(e.rank)]);
    last[static_cast<std::size_t>(e.rank)] = e.step.value();
  }
}
