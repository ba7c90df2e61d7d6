#pragma once

#include <compare>

#include "mend/config.hpp"

namespace mend {

//! A member's place in its group, 0 to size - 1. Reads as an int, is never made from one by
//! accident.
class Rank {
 public:
  constexpr Rank() = default;
  explicit constexpr Rank(int value) : value_{value} {}
  constexpr operator int() const { return value_; }  // NOLINT: a rank is used as an index

  friend constexpr bool operator==(const Rank&, const Rank&) = default;
  friend constexpr auto operator<=>(const Rank&, const Rank&) = default;

 private:
  int value_ = 0;
};

}  // namespace mend
