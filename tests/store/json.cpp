#include <mend/store/json.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <string_view>

#include "trace/json.hpp"

using mend::FileError;
using mend::store::Json;

namespace {

Json parse(std::string_view text) { return Json::parse(text, "the text", "file"); }

//! The message with which a text is refused; empty if it is not.
std::string refusal(std::string_view text) {
  try {
    (void)parse(text);
  } catch (const FileError& e) {
    CHECK(e.path() == "file");
    return e.what();
  }
  return "";
}

Json sample() {
  return Json::Object{
      {"", Json{}},
      {"text", "a \"b\" \\ \n \x01 \xc3\xa9\xf0\x9f\x98\x80"},
      {"yes", true},
      {"no", false},
      {"largest", std::numeric_limits<std::uint64_t>::max()},
      {"smallest", std::numeric_limits<std::int64_t>::min()},
      {"none", Json::Array{}},
      {"empty", Json::Object{}},
      {"flat", Json::Array{std::uint64_t{1}, "two", Json{}}},
      {"deep", Json::Array{Json::Array{std::int64_t{-3}}, Json::Object{{"k", std::int64_t{4}}}}}};
}

}  // namespace

TEST_CASE("what is written is read, to the last bit") {
  Json json = sample();
  CHECK(parse(json.text()) == json);
  CHECK(parse(json.text()).text() == json.text());
  CHECK(json.find("largest")->text() == "18446744073709551615");
  CHECK(json.find("smallest")->text() == "-9223372036854775808");
  auto judge = mend_test::Json::parse(json.text());
  CHECK(judge["deep"].array.at(0).array.at(0).number == -3);
}

TEST_CASE("the text is for people: a line for each member, plain arrays on one") {
  Json json = Json::Object{{"a", Json::Array{std::uint64_t{1}, std::uint64_t{2}}},
                           {"b", Json::Array{Json::Object{{"c", true}}}},
                           {"d", Json::Object{}}};
  CHECK(json.text() ==
        "{\n  \"a\": [1, 2],\n  \"b\": [\n    {\n      \"c\": true\n    }\n  ],\n  \"d\": {}\n}");
}

TEST_CASE("values say what they are, and nothing else") {
  Json json = parse(R"({"a":[1,-1,"1",true,null]})");
  const auto& a = *json.find("a")->as<Json::Array>();
  CHECK(*a[0].as<std::uint64_t>() == 1);
  CHECK(a[0].as<std::int64_t>() == nullptr);
  CHECK(*a[1].as<std::int64_t>() == -1);
  CHECK(a[1].as<std::uint64_t>() == nullptr);
  CHECK(*a[2].as<std::string>() == "1");
  CHECK(*a[3].as<bool>());
  CHECK(a[4] == Json{});
  CHECK(json.find("b") == nullptr);
  CHECK(a[0].find("a") == nullptr);
  CHECK(Json{std::int64_t{7}} == Json{std::uint64_t{7}});
}

TEST_CASE("integers are exact to 64 bits, and nothing else is a number") {
  CHECK(*parse("18446744073709551615").as<std::uint64_t>() == ~std::uint64_t{});
  CHECK(*parse("-9223372036854775808").as<std::int64_t>() ==
        std::numeric_limits<std::int64_t>::min());
  CHECK(parse("-0") == parse("0"));
  for (std::string_view text :
       {"18446744073709551616", "-9223372036854775809", "99999999999999999999999999", "1.0", "1e3",
        "1E3", "01", "-01", "-", "+1", ".5", "0x1", "NaN", "Infinity", "1 2", "--1"})
    CHECK_MESSAGE(refusal(text).find("the text is damaged at byte ") == 0, text);
}

TEST_CASE("what is not JSON is refused, with the byte") {
  for (std::string_view text : {"",
                                " ",
                                "{",
                                "}",
                                "[",
                                "]",
                                "[1,]",
                                "[,1]",
                                "[1 1]",
                                "{\"a\"}",
                                "{\"a\":}",
                                "{\"a\":1,}",
                                "{a:1}",
                                "{'a':1}",
                                "tru",
                                "TRUE",
                                "nul",
                                "truefalse",
                                "\"a",
                                "\"\\x\"",
                                "\"\\ud800\"",
                                "\"\n\"",
                                "\"\xff\"",
                                "\"\xc3\"",
                                "\xef\xbb\xbf{}",
                                "{}x",
                                "//\n1",
                                "{1:1}"})
    CHECK_MESSAGE(refusal(text).find("the text is damaged at byte ") == 0, text);
  CHECK(refusal("[1,x]") == "the text is damaged at byte 3: a value is missing [file]");
  CHECK(refusal(std::string_view{"1\0", 2}) != "");
}

TEST_CASE("a key that comes twice is refused, also when written differently") {
  CHECK(refusal(R"({"a":1,"b":1})").empty());
  CHECK(refusal(R"({"a":1,"\u0061":1})").find("'a' comes twice") != std::string::npos);
  CHECK(refusal(R"([{"a":1},{"a":1}])").empty());
}

TEST_CASE("nesting is bounded before it reaches the stack") {
  auto nested = [](int depth) {
    auto n = static_cast<std::size_t>(depth);
    return std::string(n, '[') + std::string(n, ']');
  };
  CHECK(refusal(nested(Json::deepest)).empty());
  CHECK(refusal(nested(Json::deepest + 1)).find("too deeply") != std::string::npos);
  CHECK(refusal(std::string(1'000'000, '[')).find("too deeply") != std::string::npos);
  std::string objects;
  for (int i = 0; i < 200'000; ++i) objects += "{\"a\":";
  CHECK(refusal(objects).find("too deeply") != std::string::npos);
}

TEST_CASE("every prefix is refused, and any mutation is read or refused, never worse") {
  std::string text = sample().text();
  for (std::size_t n = 0; n < text.size(); ++n) CHECK(refusal(text.substr(0, n)) != "");
  std::mt19937 random{7};
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string mutant = text;
    mutant[random() % mutant.size()] = static_cast<char>(random());
    std::string why = refusal(mutant);
    refused += !why.empty();
    if (why.empty()) CHECK(parse(parse(mutant).text()) == parse(mutant));
  }
  CHECK(refused > 5'000);
}
