#include <mend/core/text.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "trace/json.hpp"

using mend::append_json;
using mend::is_utf8;
using mend::utf8_sequence;
using namespace std::literals;

namespace {

std::string json(std::string_view text) {
  std::string out;
  append_json(out, text);
  return out;
}

std::string encode(std::uint32_t c) {  // without any check, surrogates too
  std::string out;
  auto put = [&](std::uint32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | c >> 6), put(0x80 | (c & 63));
  } else if (c < 0x10000) {
    put(0xe0 | c >> 12), put(0x80 | (c >> 6 & 63)), put(0x80 | (c & 63));
  } else {
    put(0xf0 | c >> 18), put(0x80 | (c >> 12 & 63)), put(0x80 | (c >> 6 & 63)),
        put(0x80 | (c & 63));
  }
  return out;
}

static_assert(utf8_sequence("") == 0);
static_assert(utf8_sequence("a") == 1);
static_assert(is_utf8("gr\xc3\xbc\xc3\x9f"));
static_assert(!is_utf8("gr\xfc\xdf"));

}  // namespace

TEST_CASE("every code point is a sequence of its length, surrogates and beyond are none") {
  std::size_t wrong = 0;
  for (std::uint32_t c = 0; c < 0x120000; ++c) {
    std::string text = encode(c);
    bool valid = (c < 0xd800 || c > 0xdfff) && c <= 0x10ffff;
    wrong += utf8_sequence(text) != (valid ? text.size() : 0);
    wrong += utf8_sequence(text + "x") != (valid ? text.size() : 0);
    if (text.size() > 1)
      wrong += utf8_sequence(std::string_view{text}.substr(0, text.size() - 1)) != 0;
  }
  CHECK(wrong == 0);
}

TEST_CASE("over-long forms, stray and missing bytes are no text") {
  for (std::string_view text :
       {"\xc0\x80"sv, "\xc1\xbf"sv, "\xe0\x80\x80"sv, "\xe0\x9f\xbf"sv, "\xf0\x80\x80\x80"sv,
        "\xf0\x8f\xbf\xbf"sv, "\x80"sv, "\xbf"sv, "\xfe"sv, "\xff"sv, "\xc3("sv, "\xe2\x28\xa1"sv,
        "\xe2\x82("sv, "\xf5\x80\x80\x80"sv, "\xf8\x88\x80\x80\x80"sv}) {
    CHECK(utf8_sequence(text) == 0);
    CHECK_FALSE(is_utf8("a" + std::string{text}));
  }
}

TEST_CASE("JSON strings: what must be escaped is, the rest stays") {
  CHECK(json("") == "\"\"");
  CHECK(json("fc1.weight") == "\"fc1.weight\"");
  CHECK(json("a\"b\\c/d") == R"("a\"b\\c/d")");
  CHECK(json("a\nb\t\0c\x1f\x7f"sv) == "\"a\\u000ab\\u0009\\u0000c\\u001f\x7f\"");
  CHECK(json("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80") == "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"");
  CHECK(json("a\xff\xc3") == "\"a\xef\xbf\xbd\xef\xbf\xbd\"");
}

TEST_CASE("a JSON reader gets the text back, whatever bytes it had") {
  for (int a = 0; a < 256; ++a)
    for (int b = 0; b < 256; ++b) {
      std::string text{static_cast<char>(a), static_cast<char>(b)};
      std::string written = json(text), read;
      CHECK_NOTHROW(read = mend_test::Json::parse(written).string);
      if (is_utf8(text)) CHECK(read == text);
      CHECK(is_utf8(written));
    }
}
