#pragma once

#include <compare>
#include <concepts>
#include <cstdint>

#include "mend/config.hpp"

namespace mend {

//! One training step, counted from 0: the step that a lambda is called for, and, as a version of
//! the state, the number of committed steps. Takes integers only, so that train(1e4) does not
//! compile.
class Step {
 public:
  constexpr Step() = default;
  template <std::integral I>
  constexpr Step(I value)
      : value_{static_cast<std::int64_t>(value)} {}  // NOLINT: implicit by design

  template <std::integral I>
  explicit constexpr operator I() const {
    return static_cast<I>(value_);
  }

  [[nodiscard]] constexpr std::int64_t value() const { return value_; }
  //! True for 0, n, 2n, ...; n must not be 0.
  [[nodiscard]] constexpr bool every(std::int64_t n) const { return value_ % n == 0; }
  [[nodiscard]] constexpr Step next() const { return Step{value_ + 1}; }

  friend constexpr bool operator==(const Step&, const Step&) = default;
  friend constexpr auto operator<=>(const Step&, const Step&) = default;

 private:
  std::int64_t value_ = 0;
};

}  // namespace mend
