#pragma once

#include <cctype>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace mend_test {

//! A JSON document, read strictly (RFC 8259): an independent judge of what mend writes. Escapes of
//! ASCII are all that it knows, since mend writes no others. Throws where the text is not JSON.
struct Json {
  enum class Type { null, boolean, number, string, array, object } type = Type::null;
  double number = 0;
  std::string string;
  std::vector<Json> array;
  std::map<std::string, Json> object;

  static Json parse(std::string_view text) {
    Json json = value(text);
    skip(text);
    if (!text.empty()) fail("more after the end", text);
    return json;
  }
  const Json& operator[](const std::string& key) const { return object.at(key); }
  [[nodiscard]] bool has(const std::string& key) const { return object.count(key) != 0; }

 private:
  [[noreturn]] static void fail(const char* what, std::string_view at) {
    throw std::runtime_error{std::string{what} + " at: " + std::string{at.substr(0, 40)}};
  }
  static void skip(std::string_view& s) {
    while (!s.empty() && (s[0] == ' ' || s[0] == '\n' || s[0] == '\t' || s[0] == '\r'))
      s.remove_prefix(1);
  }
  static void expect(std::string_view& s, std::string_view token) {
    if (s.substr(0, token.size()) != token) fail("unexpected text", s);
    s.remove_prefix(token.size());
  }
  static std::string text(std::string_view& s) {
    expect(s, "\"");
    std::string out;
    while (!s.empty() && s[0] != '"') {
      if (static_cast<unsigned char>(s[0]) < 0x20) fail("a raw control character", s);
      if (s[0] != '\\') {
        out += s[0];
        s.remove_prefix(1);
        continue;
      }
      if (s.substr(1, 1) == "\"" || s.substr(1, 1) == "\\") {
        out += s[1];
        s.remove_prefix(2);
      } else {
        expect(s, "\\u00");
        std::string digits{s.substr(0, 2)};
        if (digits.size() != 2 || !std::isxdigit(digits[0]) || !std::isxdigit(digits[1]))
          fail("a wrong escape", s);
        out += static_cast<char>(std::strtol(digits.c_str(), nullptr, 16));
        s.remove_prefix(2);
      }
    }
    expect(s, "\"");
    return out;
  }
  static Json value(std::string_view& s) {
    skip(s);
    Json json;
    if (s.empty()) fail("a missing value", s);
    if (s[0] == '"') {
      json.type = Type::string;
      json.string = text(s);
    } else if (s[0] == '{') {
      json.type = Type::object;
      expect(s, "{");
      skip(s);
      for (bool first = true; s.substr(0, 1) != "}"; first = false) {
        if (!first) expect(s, ",");
        skip(s);
        std::string key = text(s);
        skip(s);
        expect(s, ":");
        if (!json.object.emplace(key, value(s)).second) fail("a key twice", s);
        skip(s);
      }
      expect(s, "}");
    } else if (s[0] == '[') {
      json.type = Type::array;
      expect(s, "[");
      skip(s);
      for (bool first = true; s.substr(0, 1) != "]"; first = false) {
        if (!first) expect(s, ",");
        json.array.push_back(value(s));
        skip(s);
      }
      expect(s, "]");
    } else if (s[0] == 't' || s[0] == 'f') {
      json.type = Type::boolean;
      json.number = s[0] == 't';
      expect(s, s[0] == 't' ? "true" : "false");
    } else if (s[0] == 'n') {
      expect(s, "null");
    } else {
      std::size_t n = s[0] == '-';
      auto digits = [&] {
        std::size_t begin = n;
        while (n < s.size() && std::isdigit(s[n])) ++n;
        if (n == begin) fail("a wrong number", s);
        return n - begin;
      };
      bool zero = n < s.size() && s[n] == '0';
      if (digits() > 1 && zero) fail("a leading zero", s);
      if (n < s.size() && s[n] == '.') ++n, digits();
      json.type = Type::number;
      json.number = std::strtod(std::string{s.substr(0, n)}.c_str(), nullptr);
      s.remove_prefix(n);
    }
    return json;
  }
};

}  // namespace mend_test
