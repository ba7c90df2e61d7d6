#pragma once

#include <compare>
#include <cstdint>

#include "mend/config.hpp"

namespace mend {

//! A number of bytes; never an element count.
class ByteCount {
 public:
  constexpr ByteCount() = default;
  explicit constexpr ByteCount(std::uint64_t value) : value_{value} {}
  [[nodiscard]] constexpr std::uint64_t value() const { return value_; }
  constexpr ByteCount& operator+=(ByteCount other) {
    value_ += other.value_;
    return *this;
  }
  friend constexpr ByteCount operator+(ByteCount a, ByteCount b) {
    return ByteCount{a.value_ + b.value_};
  }
  friend constexpr bool operator==(const ByteCount&, const ByteCount&) = default;
  friend constexpr auto operator<=>(const ByteCount&, const ByteCount&) = default;

 private:
  std::uint64_t value_ = 0;
};

namespace literals {
constexpr ByteCount operator""_KiB(unsigned long long n) { return ByteCount{n << 10}; }
constexpr ByteCount operator""_MiB(unsigned long long n) { return ByteCount{n << 20}; }
}  // namespace literals

}  // namespace mend
