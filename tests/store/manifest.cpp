#include <mend/store/manifest.hpp>

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <string_view>

#include "trace/json.hpp"

using mend::FileError;
using mend::store::generation_of;
using mend::store::Manifest;

namespace {

Manifest sample() {
  return {.sequence = 9,
          .kind = Manifest::Kind::full,
          .generation = 7,
          .nonce = "0123456789abcdef",
          .run = {.id = "a \"run\" \xc3\xa9", .schema = {.lo = 1, .hi = ~std::uint64_t{}}},
          .ranks = 2,
          .bases = {{.step = 3,
                     .generation = 4,
                     .shards = {{.name = "shards/a", .length = 900, .hash = {.lo = 5, .hi = 6}},
                                {.name = "shards/b", .length = ~std::uint64_t{}, .hash = {}}}},
                    {.step = 8, .generation = 7, .shards = {}}},
          .history = {{.generation = 4, .resume_step = -1, .ranks = 2},
                      {.generation = 7, .resume_step = 5, .ranks = 3}},
          .segments = {{.name = "differentials/c", .length = 4096}},
          .garbage = {"shards/d", "differentials/e"}};
}

//! The message with which a text is refused; empty if it is not.
std::string refusal(const std::string& text) {
  try {
    (void)Manifest::parse(text, "manifests/00000009.json");
  } catch (const FileError& e) {
    CHECK(e.path() == "manifests/00000009.json");
    CHECK(e.code() == 0);
    return e.what();
  }
  return "";
}
bool says(const std::string& message, std::string_view part) {
  return message.find(part) != std::string::npos;
}

//! The sample's text with one part replaced, and a checksum that fits.
std::string changed(std::string_view from, std::string_view to) {
  std::string text = sample().text();
  std::size_t at = text.find(from);
  REQUIRE(at != text.npos);
  text.replace(at, from.size(), to);
  return text.replace(text.size() - 36, 32, mend::store::detail::manifest_checksum(text));
}

}  // namespace

TEST_CASE("what is written is read") {
  Manifest m = sample();
  CHECK(Manifest::parse(m.text(), "m") == m);
  Manifest claim{.sequence = 1, .kind = Manifest::Kind::claim, .generation = 1};
  CHECK(Manifest::parse(claim.text(), "m") == claim);
  for (auto kind : {Manifest::Kind::resume, Manifest::Kind::fold}) {
    m.kind = kind;
    CHECK(Manifest::parse(m.text(), "m") == m);
  }
}

TEST_CASE("any tool can read it") {
  std::string text = sample().text();
  auto json = mend_test::Json::parse(text);
  CHECK(json["kind"].string == "full");
  CHECK(json["bases"].array.at(0)["shards"].array.at(0)["length"].number == 900);
  CHECK(json["history"].array.at(0)["resume_step"].number == -1);
  CHECK(text.ends_with("\"checksum\": \"" + json["checksum"].string + "\"\n}\n"));
  std::string zeroed = text;
  zeroed.replace(zeroed.size() - 36, 32, std::string(32, '0'));
  CHECK(mend::hash_bytes(std::as_bytes(std::span{zeroed})).to_hex() == json["checksum"].string);
}

TEST_CASE("every flip of any bits of a byte is found") {
  const std::string whole = sample().text();
  CHECK(refusal(whole).empty());
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (unsigned flip = 1; flip < 256; ++flip) {
      std::string text = whole;
      text[at] = static_cast<char>(static_cast<unsigned char>(text[at]) ^ flip);
      bool found = !refusal(text).empty();
      if (!found) CHECK_MESSAGE(found, "byte " << at << " flip " << flip);
    }
  }
}

TEST_CASE("every truncation and every longer text is found") {
  std::string whole = sample().text();
  for (std::size_t n = 0; n < whole.size(); ++n) CHECK(refusal(whole.substr(0, n)) != "");
  for (std::string_view more : {"\n", " ", "x", "{}"})
    CHECK(refusal(whole + std::string{more}) != "");
  std::string zeros = whole;
  zeros.resize(zeros.size() + 512);
  CHECK(refusal(zeros) != "");
  CHECK(refusal(std::string(whole.size(), '\0')) != "");
}

TEST_CASE("what no writer writes is refused, though its checksum fits") {
  CHECK(refusal(changed("", "")).empty());
  struct Case {
    std::string_view from, to, why;
  };
  for (const Case& c : {
           Case{"\"mend manifest\"", "\"manifest\"", "it has a format that mend does not know"},
           Case{"\"version\": 1", "\"version\": 2", "written in version 2"},
           Case{"\"version\": 1", "\"version\": \"1\"", "'version' of another type"},
           Case{"\"kind\": \"full\"", "\"kind\": \"empty\"", "unknown kind 'empty'"},
           Case{"\"kind\": \"full\"", "\"kind\": \"claim\"", "does not fit its sequence"},
           Case{"\"sequence\": 9", "\"sequence\": 7", "does not fit its sequence"},
           Case{"\"sequence\": 9", "\"sequence\": 6", "does not fit its sequence"},
           Case{"\"sequence\": 9", "\"sequence\": -9", "'sequence' of another type"},
           Case{"\"sequence\": 9", "\"sequence\": 9.5", "no whole"},
           Case{"\"generation\": 7,\n  \"nonce\"", "\"generation\": 0,\n  \"nonce\"",
                "does not fit"},
           Case{"\"nonce\"", "\"once\"", "lacks 'nonce'"},
           Case{"\"ranks\": 2,\n  \"b", "\"ranks\": 2,\n  \"more\": 2,\n  \"b", "does not belong"},
           Case{"\"id\"", "\"more\": 1, \"id\"", "its 'run' has a member that does not belong"},
           Case{"\"step\": 3", "\"step\": 9", "bases out of order"},
           Case{"\"step\": 3", "\"step\": -1", "an entry of its 'bases' has a 'step' out of"},
           Case{"\"step\": 3", "\"step\": 9223372036854775808", "out of its range"},
           Case{"\"resume_step\": -1", "\"resume_step\": -2", "out of its range"},
           Case{"\"resume_step\": -1", "\"resume_step\": null", "out of its range"},
           Case{"\"generation\": 4,\n      \"resume", "\"generation\": 8,\n      \"resume",
                "history"},
           Case{"\"shards/a\"", "\"../a\"", "names a file that no store holds: '../a'"},
           Case{"\"shards/a\"", "\"/etc/passwd\"", "no store holds"},
           Case{"\"differentials/c\"", "\"differentials//c\"", "no store holds"},
           Case{"\"shards/d\"", "\"shards/\\u002e./d\"", "no store holds"},
           Case{"\"shards/d\"", "7", "garbage that is no name"},
           Case{"\"hash\": \"0000000000000006", "\"hash\": \"000000000000006", "is no hash"},
           Case{"ffffffffffffffff0000", "Ffffffffffffffff0000", "is no hash"},
           Case{"ffffffffffffffff0000", "gfffffffffffffff0000", "is no hash"},
           Case{"\"segments\": [", "\"segments\": [1, ", "is no object"},
           Case{"\"garbage\": [\"shards/d\", \"differentials/e\"]", "\"garbage\": {}",
                "of another type"},
       })
    CHECK_MESSAGE(says(refusal(changed(c.from, c.to)), c.why), c.to, ": ",
                  refusal(changed(c.from, c.to)));
  CHECK(refusal("{}") ==
        "the manifest cannot be used: it lacks 'format' [manifests/00000009.json]");
  CHECK(refusal("[]") != "");
  CHECK(refusal(R"({"format":"mend manifest","version":1,"checksum":""})") != "");
}

TEST_CASE("names of files differ, and tell their generation") {
  using mend::store::segment_name;
  using mend::store::shard_name;
  std::set<std::string> names;
  for (int i = 0; i < 10; ++i) names.insert({shard_name(8, 4, 1), segment_name(4, 0)});
  CHECK(names.size() == 20);
  for (const std::string& name : names) {
    CHECK(mend::is_store_name(name));
    CHECK(generation_of(name) == 4);
  }
  CHECK(shard_name(8, 4, 1).starts_with("shards/step-8-generation-4-part-1-"));
  CHECK(segment_name(4, 2).starts_with("differentials/generation-4-rank-2-"));
  for (std::string_view name :
       {"", "shards/a", "generation-", "generation-x-", "generation-4", "generation--4-",
        "generation-99999999999999999999-", "../generation-4-"})
    CHECK_FALSE(generation_of(name));
}
