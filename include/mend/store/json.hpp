#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "mend/core/error.hpp"
#include "mend/core/text.hpp"

namespace mend::store {

namespace detail {

//! Walks through a JSON text, strictly (RFC 8259, and no key twice). Whoever walks asks for what
//! must come next; nothing is read ahead, and nothing here recurses. Every error is a FileError
//! "WHAT is damaged at byte N: why", with `path`.
class JsonReader {
 public:
  //! `what` and `path` must outlive this.
  JsonReader(std::string_view text, std::string_view what, const std::string& path)
      : text_{text}, rest_{text}, what_{what}, path_{path} {}

  //! member(key) reads the value; a key that comes twice is refused.
  void object(auto member) {
    std::unordered_set<std::string> keys;
    sequence('{', '}', [&] {
      std::string key = string();
      if (!keys.insert(key).second) fail("'" + key + "' comes twice");
      expect(':');
      member(std::move(key));
    });
  }
  void array(auto element) { sequence('[', ']', element); }

  [[nodiscard]] std::int64_t integer() {
    skip_blanks();
    std::string_view number = rest_.substr(0, digits(rest_));
    std::int64_t value = 0;
    auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (number.empty() || error != std::errc{}) fail("a number from 0 to 2^63 - 1 is missing");
    if (number.size() > 1 && number[0] == '0') fail("a number with a leading zero");
    rest_.remove_prefix(number.size());
    return value;
  }

  [[nodiscard]] std::string string() {
    expect('"');
    std::string out;
    while (!rest_.empty() && rest_[0] != '"') {
      if (rest_[0] == '\\') {
        rest_.remove_prefix(1);
        escape(out);
        continue;
      }
      std::size_t n = utf8_sequence(rest_);
      if (n == 0) fail("a string that is not UTF-8");
      if (static_cast<unsigned char>(rest_[0]) < 0x20) fail("a control character in a string");
      out += rest_.substr(0, n);
      rest_.remove_prefix(n);
    }
    if (rest_.empty()) fail("a string without an end");
    rest_.remove_prefix(1);
    return out;
  }

  //! The next character that is no blank; 0 at the end.
  [[nodiscard]] char peek() {
    skip_blanks();
    return rest_.empty() ? '\0' : rest_[0];
  }
  //! The rest of the text, of which take(n) is a part that the caller has understood.
  [[nodiscard]] std::string_view rest() const { return rest_; }
  void take(std::size_t n) { rest_.remove_prefix(n); }
  void end() {
    skip_blanks();
    if (!rest_.empty()) fail("text after the end");
  }

  [[noreturn]] void fail(const std::string& why) const {
    throw FileError{std::string{what_} + " is damaged at byte " +
                        std::to_string(text_.size() - rest_.size()) + ": " + why,
                    {.path = path_}};
  }

  [[nodiscard]] static std::size_t digits(std::string_view text) {
    return std::min(text.find_first_not_of("0123456789"), text.size());
  }

 private:
  void sequence(char open, char close, auto element) {
    expect(open);
    if (accept(close)) return;
    do element();
    while (accept(','));
    expect(close);
  }

  void skip_blanks() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \n\r\t"), rest_.size()));
  }
  bool accept(char c) {
    if (peek() != c || rest_.empty()) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(std::string{"'"} + c + "' is missing");
  }

  void escape(std::string& out) {
    if (rest_.empty()) fail("a string without an end");
    char c = rest_[0];
    if (c == 'u') {
      std::uint32_t code = unit();
      if (code >= 0xd800 && code <= 0xdbff && rest_.substr(0, 2) == "\\u") {
        rest_.remove_prefix(1);
        std::uint32_t low = unit();
        if (low < 0xdc00 || low > 0xdfff) fail("half of a surrogate pair");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
      } else if (code >= 0xd800 && code <= 0xdfff) {
        fail("half of a surrogate pair");
      }
      append_utf8(out, code);
      return;
    }
    constexpr std::string_view names = "\"\\/bfnrt", meanings = "\"\\/\b\f\n\r\t";
    std::size_t which = names.find(c);
    if (which == names.npos) fail("an unknown escape");
    out += meanings[which];
    rest_.remove_prefix(1);
  }
  //! The four digits after a 'u'.
  std::uint32_t unit() {
    std::uint32_t code = 0;
    std::string_view digits = rest_.substr(1, 4);
    if (digits.size() != 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != digits.npos)
      fail("four digits are missing after \\u");
    std::from_chars(digits.data(), digits.data() + 4, code, 16);
    rest_.remove_prefix(5);
    return code;
  }
  static void append_utf8(std::string& out, std::uint32_t code) {
    auto put = [&](std::uint32_t byte) { out += static_cast<char>(byte); };
    auto follow = [&](int shift) { put(0x80 | (code >> shift & 0x3f)); };
    if (code < 0x80) {
      put(code);
    } else if (code < 0x800) {
      put(0xc0 | code >> 6), follow(0);
    } else if (code < 0x10000) {
      put(0xe0 | code >> 12), follow(6), follow(0);
    } else {
      put(0xf0 | code >> 18), follow(12), follow(6), follow(0);
    }
  }

  std::string_view text_, rest_, what_;
  const std::string& path_;
};

}  // namespace detail

//! A JSON value: null, true or false, an integer from -2^63 to 2^64 - 1, a string, an array, an
//! object whose members keep their order. Numbers with a fraction or an exponent are refused: what
//! is stored here must come back exactly, and binary fractions do not.
class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;

  Json() = default;
  Json(bool value) : value_{value} {}
  Json(std::uint64_t value) : value_{value} {}
  Json(std::int64_t value) {  // one form for each number
    if (value < 0)
      value_ = value;
    else
      value_ = static_cast<std::uint64_t>(value);
  }
  Json(std::string value) : value_{std::move(value)} {}
  Json(std::string_view value) : value_{std::string{value}} {}
  Json(const char* value) : value_{std::string{value}} {}
  Json(Array value) : value_{std::move(value)} {}
  Json(Object value) : value_{std::make_shared<const Object>(std::move(value))} {}

  //! Values within values, counted from the outermost one, 1. A text that nests deeper is refused.
  static constexpr int deepest = 32;

  //! The value that `text` is. Memory is linear in the text. Throws FileError "WHAT is damaged at
  //! byte N: why", with `path`.
  [[nodiscard]] static Json parse(std::string_view text, std::string_view what,
                                  const std::string& path) {
    detail::JsonReader reader{text, what, path};
    Json value = parse(reader, 1);
    reader.end();
    return value;
  }

  //! The text of the value; arrays and objects have a line for each member, indented by two
  //! blanks, and arrays of plain values are one line. No line end after the last line.
  [[nodiscard]] std::string text() const {
    std::string out;
    write(out, 0);
    return out;
  }

  //! The value as one of Array, Object, std::string, bool, std::uint64_t, std::int64_t (negative
  //! numbers alone); null where it is another.
  template <class T>
  [[nodiscard]] const T* as() const {
    if constexpr (std::is_same_v<T, Object>) {
      const auto* members = std::get_if<Members>(&value_);
      return members == nullptr ? nullptr : members->get();
    } else {
      return std::get_if<T>(&value_);
    }
  }

  //! An object's member; null where there is none, or where this is no object.
  [[nodiscard]] const Json* find(std::string_view key) const {
    if (const Object* members = as<Object>())
      for (const auto& [k, value] : *members)
        if (k == key) return &value;
    return nullptr;
  }

  friend bool operator==(const Json& a, const Json& b) {
    const Object *x = a.as<Object>(), *y = b.as<Object>();
    return x != nullptr && y != nullptr ? *x == *y : a.value_ == b.value_;
  }

 private:
  // Shared, since nothing changes them: pairs of an incomplete type are not for every compiler.
  using Members = std::shared_ptr<const Object>;

  static Json parse(detail::JsonReader& reader, int depth) {
    if (depth > deepest) reader.fail("values nest too deeply");
    switch (char c = reader.peek()) {
      case '{': {
        Object members;
        reader.object([&](std::string key) {
          members.emplace_back(std::move(key), parse(reader, depth + 1));
        });
        return members;
      }
      case '[': {
        Array elements;
        reader.array([&] { elements.push_back(parse(reader, depth + 1)); });
        return elements;
      }
      case '"': return reader.string();
      default:
        if (c == '-' || (c >= '0' && c <= '9')) return number(reader);
        return word(reader);
    }
  }
  static Json word(detail::JsonReader& reader) {
    auto is = [&](std::string_view name) {
      if (reader.rest().substr(0, name.size()) != name) return false;
      reader.take(name.size());
      return true;
    };
    if (is("true")) return true;
    if (is("false")) return false;
    if (is("null")) return {};
    reader.fail("a value is missing");
  }
  static Json number(detail::JsonReader& reader) {
    std::string_view text = reader.rest();
    bool negative = text[0] == '-';
    std::size_t count = reader.digits(text.substr(negative));
    text = text.substr(0, negative + count);
    if (count == 0) reader.fail("a number without digits");
    if (count > 1 && text[negative] == '0') reader.fail("a number with a leading zero");
    char next = text.size() < reader.rest().size() ? reader.rest()[text.size()] : ' ';
    if (next == '.' || next == 'e' || next == 'E') reader.fail("a number that is no whole one");
    auto value = [&]<class T>(T number) -> Json {
      if (std::from_chars(text.data(), text.data() + text.size(), number).ec != std::errc{})
        reader.fail("a number that 64 bits do not hold");
      reader.take(text.size());
      return number;
    };
    return negative ? value(std::int64_t{}) : value(std::uint64_t{});
  }

  void write(std::string& out, std::size_t indent) const {
    if (const Array* elements = as<Array>()) {
      bool flat = std::none_of(elements->begin(), elements->end(), [](const Json& element) {
        return element.as<Array>() != nullptr || element.as<Object>() != nullptr;
      });
      block(out, '[', ']', *elements, indent, flat,
            [&](const Json& element) { element.write(out, indent + 2); });
    } else if (const Object* members = as<Object>()) {
      block(out, '{', '}', *members, indent, false, [&](const auto& member) {
        append_json(out, member.first);
        out += ": ";
        member.second.write(out, indent + 2);
      });
    } else if (const auto* string = as<std::string>()) {
      append_json(out, *string);
    } else if (const auto* count = as<std::uint64_t>()) {
      out += std::to_string(*count);
    } else if (const auto* integer = as<std::int64_t>()) {
      out += std::to_string(*integer);
    } else if (const auto* truth = as<bool>()) {
      out += *truth ? "true" : "false";
    } else {
      out += "null";
    }
  }
  static void block(std::string& out, char open, char close, const auto& items, std::size_t indent,
                    bool flat, auto write_one) {
    out += open;
    const char* separator = "";
    for (const auto& item : items) {
      out += separator;
      if (!flat) out += '\n' + std::string(indent + 2, ' ');
      write_one(item);
      separator = flat ? ", " : ",";
    }
    if (!flat && !items.empty()) out += '\n' + std::string(indent, ' ');
    out += close;
  }

  std::variant<std::monostate, bool, std::uint64_t, std::int64_t, std::string, Array, Members>
      value_;
};

}  // namespace mend::store
