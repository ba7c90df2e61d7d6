#pragma once

#include <array>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

#include "mend/config.hpp"

namespace mend {

//! Bytes in the UTF-8 sequence that `text` begins with; 0 where it begins with none: at the end, at
//! a stray or missing byte, an over-long form, a surrogate, or above U+10FFFF.
[[nodiscard]] constexpr std::size_t utf8_sequence(std::string_view text) {
  auto at = [&](std::size_t i) -> unsigned {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  auto follows = [&](std::size_t i, unsigned least = 0x80, unsigned most = 0xbf) {
    return at(i) >= least && at(i) <= most;
  };
  unsigned first = at(0);
  if (text.empty()) return 0;
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return follows(1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef)
    return follows(1, first == 0xe0 ? 0xa0 : 0x80, first == 0xed ? 0x9f : 0xbf) && follows(2) ? 3
                                                                                              : 0;
  if (first >= 0xf0 && first <= 0xf4)
    return follows(1, first == 0xf0 ? 0x90 : 0x80, first == 0xf4 ? 0x8f : 0xbf) && follows(2) &&
                   follows(3)
               ? 4
               : 0;
  return 0;
}

[[nodiscard]] constexpr bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    std::size_t n = utf8_sequence(text);
    if (n == 0) return false;
    text.remove_prefix(n);
  }
  return true;
}

//! Stands for what is not text.
inline constexpr std::string_view replacement_character = "\xef\xbf\xbd";  // U+FFFD

//! Appends `text` as a JSON string, quotes included; bytes that are no UTF-8 become U+FFFD.
inline void append_json(std::string& out, std::string_view text) {
  out += '"';
  while (!text.empty()) {
    std::size_t n = utf8_sequence(text);
    auto c = static_cast<unsigned char>(text[0]);
    if (n == 0) {
      out += replacement_character;
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += text[0];
    } else if (c < 0x20) {
      out += "\\u00";
      out += "0123456789abcdef"[c >> 4];
      out += "0123456789abcdef"[c & 15];
    } else {
      out += text.substr(0, n);
    }
    text.remove_prefix(n == 0 ? 1 : n);
  }
  out += '"';
}

//! "0.001": the number as %g prints it.
[[nodiscard]] inline std::string shortest(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", value);
  return text.data();
}

}  // namespace mend
