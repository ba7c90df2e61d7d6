#pragma once

#include <compare>
#include <cstdint>

#include "mend/config.hpp"

namespace mend {

//! What changes with the membership of a group; every message carries it. 0: no group yet.
//! (An epoch, by contrast, is a pass over the data and none of mend's business.)
class Generation {
 public:
  constexpr Generation() = default;
  explicit constexpr Generation(std::uint32_t value) : value_{value} {}
  [[nodiscard]] constexpr std::uint32_t value() const { return value_; }
  [[nodiscard]] constexpr Generation next() const { return Generation{value_ + 1}; }

  friend constexpr bool operator==(const Generation&, const Generation&) = default;
  friend constexpr auto operator<=>(const Generation&, const Generation&) = default;

 private:
  std::uint32_t value_ = 0;
};

}  // namespace mend
