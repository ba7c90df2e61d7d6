#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "mend/core/dtype.hpp"
#include "mend/core/error.hpp"
#include "mend/core/text.hpp"

namespace mend::store {

//! The JSON at the head of a .safetensors file: which tensor lies where in the data behind it.
//!
//! The file is: the header's length (8 bytes, little-endian), the header, the data; tensors follow
//! one another without gaps. Source: github.com/huggingface/safetensors, "Format".
struct SafetensorsHeader {
  struct Tensor {
    std::string name;
    DType dtype = DType::f32;
    std::vector<std::int64_t> shape{};
    std::uint64_t begin = 0, end = 0;  //!< bytes, from the start of the data
  };
  using Strings = std::vector<std::pair<std::string, std::string>>;

  std::vector<Tensor> tensors{};  //!< in the order of their data
  Strings metadata{};             //!< "__metadata__"

  //! The format's own limit; a longer header is a damaged or hostile file.
  static constexpr std::uint64_t longest = 100'000'000;

  //! Reads a header strictly: every field once, no other fields, sizes as shapes and types say, the
  //! data covered without holes or overlaps. Memory is linear in the text, whatever it
  //! says. Throws FileError, with `path`, that says what is wrong at which byte.
  [[nodiscard]] static SafetensorsHeader parse(std::string_view text, std::uint64_t data_size,
                                               const std::string& path);

  //! A JSON object of strings, on its own, as metadata values may hold one.
  [[nodiscard]] static Strings parse_strings(std::string_view text, const std::string& path);

  //! As parse() reads it, filled with spaces so that data begins at a multiple of 64 bytes.
  [[nodiscard]] std::string text() const {
    std::string out = "{";
    if (!metadata.empty()) out += "\"__metadata__\":" + text_of(metadata);
    for (const Tensor& t : tensors) {
      if (out.size() > 1) out += ',';
      append_json(out, t.name);
      out += ":{\"dtype\":";
      append_json(out, name_of(t.dtype));
      out += ",\"shape\":[";
      for (std::size_t i = 0; i < t.shape.size(); ++i) {
        if (i != 0) out += ',';
        out += std::to_string(t.shape[i]);
      }
      out += "],\"data_offsets\":[" + std::to_string(t.begin) + "," + std::to_string(t.end) + "]}";
    }
    out += '}';
    out.resize((8 + out.size() + 63) / 64 * 64 - 8, ' ');
    return out;
  }
  [[nodiscard]] static std::string text_of(const Strings& strings) {
    std::string out = "{";
    for (const auto& [key, value] : strings) {
      if (out.size() > 1) out += ',';
      append_json(out, key);
      out += ':';
      append_json(out, value);
    }
    return out + '}';
  }

  [[nodiscard]] const std::string* find(std::string_view key) const {
    for (const auto& [k, value] : metadata)
      if (k == key) return &value;
    return nullptr;
  }
};

namespace detail {

//! Reads the JSON that a header consists of, and nothing else. Nothing in it nests freely, so that
//! there is no recursion to bound.
class HeaderReader {
 public:
  HeaderReader(std::string_view text, const std::string& path)
      : text_{text}, rest_{text}, path_{path} {}

  SafetensorsHeader header() {
    SafetensorsHeader header;
    if (rest_.substr(0, 1) != "{") fail("a header begins with '{'");
    object([&](std::string name) {
      if (name == "__metadata__")
        header.metadata = strings();
      else
        header.tensors.push_back(tensor(std::move(name)));
    });
    return header;
  }
  SafetensorsHeader::Strings strings() {
    SafetensorsHeader::Strings found;
    object([&](std::string key) { found.emplace_back(std::move(key), string()); });
    return found;
  }
  void end() {
    skip_blanks();
    if (!rest_.empty()) fail("text after the end");
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw FileError{"the header is damaged at byte " + std::to_string(text_.size() - rest_.size()) +
                        ": " + what,
                    {.path = path_}};
  }

 private:
  SafetensorsHeader::Tensor tensor(std::string name) {
    SafetensorsHeader::Tensor t{.name = std::move(name)};
    bool dtype = false, shape = false, offsets = false;
    object([&](const std::string& field) {
      if (field == "dtype") {
        t.dtype = type(string());
        dtype = true;
      } else if (field == "shape") {
        array([&] { t.shape.push_back(integer()); });
        shape = true;
      } else if (field == "data_offsets") {
        std::vector<std::int64_t> at;
        array([&] { at.push_back(integer()); });
        if (at.size() != 2 || at[0] > at[1]) fail("'" + t.name + "' has no range of offsets");
        t.begin = static_cast<std::uint64_t>(at[0]);
        t.end = static_cast<std::uint64_t>(at[1]);
        offsets = true;
      } else {
        fail("'" + t.name + "' has an unknown field '" + field + "'");
      }
    });
    if (!dtype || !shape || !offsets) fail("'" + t.name + "' lacks dtype, shape or data_offsets");
    return t;
  }

  DType type(std::string_view name) {
    for (int i = 0; i <= static_cast<int>(DType::boolean); ++i)
      if (name_of(static_cast<DType>(i)) == name) return static_cast<DType>(i);
    fail("a dtype that mend does not know: '" + std::string{name} + "'");
  }

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
    skip_blanks();
    if (rest_.empty() || rest_[0] != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(std::string{"'"} + c + "' is missing");
  }

  std::int64_t integer() {
    skip_blanks();
    std::size_t digits = std::min(rest_.find_first_not_of("0123456789"), rest_.size());
    std::int64_t value = 0;
    auto [end, error] = std::from_chars(rest_.data(), rest_.data() + digits, value);
    if (digits == 0 || error != std::errc{}) fail("a number from 0 to 2^63 - 1 is missing");
    if (digits > 1 && rest_[0] == '0') fail("a number with a leading zero");
    rest_.remove_prefix(digits);
    return value;
  }

  std::string string() {
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

  std::string_view text_, rest_;
  const std::string& path_;
};

//! Bytes of a tensor; empty where the number does not fit.
inline std::optional<std::uint64_t> size_of(const SafetensorsHeader::Tensor& t) {
  std::uint64_t size = mend::size_of(t.dtype);
  for (std::int64_t extent : t.shape) {
    auto n = static_cast<std::uint64_t>(extent);
    if (n != 0 && size > std::numeric_limits<std::uint64_t>::max() / n) return std::nullopt;
    size *= n;
  }
  return size;
}

}  // namespace detail

inline SafetensorsHeader::Strings SafetensorsHeader::parse_strings(std::string_view text,
                                                                   const std::string& path) {
  detail::HeaderReader reader{text, path};
  Strings strings = reader.strings();
  reader.end();
  return strings;
}

inline SafetensorsHeader SafetensorsHeader::parse(std::string_view text, std::uint64_t data_size,
                                                  const std::string& path) {
  detail::HeaderReader reader{text, path};
  SafetensorsHeader header = reader.header();
  reader.end();
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const Tensor& a, const Tensor& b) {
                     return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
                   });
  auto fail = [&](const Tensor& t, const std::string& what) {
    throw FileError{"the header is damaged: '" + t.name + "' " + what, {.path = path}};
  };
  std::uint64_t end = 0;
  for (const Tensor& t : header.tensors) {
    if (t.begin != end)
      fail(t, t.begin < end ? "overlaps the tensor before it" : "leaves a gap before it");
    if (detail::size_of(t) != t.end - t.begin) fail(t, "has offsets that differ from its size");
    end = t.end;
  }
  if (end != data_size)
    throw FileError{"the file holds " + std::to_string(data_size) +
                        " bytes of data and its header " + std::to_string(end) +
                        "; it is cut short or damaged",
                    {.path = path}};
  return header;
}

}  // namespace mend::store
