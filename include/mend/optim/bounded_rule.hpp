#pragma once

#include <array>
#include <concepts>
#include <cstddef>

#include "mend/config.hpp"
#include "mend/optim/rule.hpp"

namespace mend {

//! Whether a coefficient lies between limits in the parameters' type, be it float or double: as a
//! float it may be rounded onto a limit. For `bounded` of a rule.
[[nodiscard]] constexpr bool between(double low, double x, double high) {
  const auto narrow = static_cast<float>(x);
  return low < x && x < high && static_cast<float>(low) < narrow &&
         narrow < static_cast<float>(high);
}

//! What a rule's apply and revert tell about their roundings, when nobody keeps a record.
//!
//!   keep(k, now, remainder)             in apply: array k (0: p, k: slot k - 1) became `now`;
//!                                       remainder: `now` without what was added, rounded once
//!   recall(k, x, remainder, estimate)   in revert: x holds the new value and becomes the old one;
//!                                       the same remainder, and what the old value must be but for
//!                                       a few units in the last place
struct Unrecorded {
  template <class Real>
  MEND_RULE void keep(std::size_t, const Real&, const Real&) {}
  template <class Real>
  MEND_RULE void recall(std::size_t, Real& x, const Real&, const Real& estimate) {
    x = estimate;
  }
};

namespace detail {

template <class R, class Real>
using RecordedFunction = void (*)(Real&, Slots<Real, R::slots.size()>&, Real,
                                  const typename R::Coefficients&, Unrecorded&);

//! Whether elements fill a record's words: each at least one bit, together 2, 4, 8 or 16.
template <std::size_t n>
constexpr bool add_up(const std::array<int, n>& bits) {
  int sum = 0;
  for (int b : bits) {
    if (b < 1) return false;
    sum += b;
  }
  return sum == 2 || sum == 4 || sum == 8 || sum == 16;
}

}  // namespace detail

//! An invertible rule whose rounding errors have bounds, so that the low bits of an old value are
//! enough to restore it: what ExactUndo keeps at almost no cost. Beside apply and revert it has
//! both with a fifth argument, a record (see Unrecorded), and
//!
//!   static constexpr std::array<int, 1 + N> kept_bits;   of p and of every slot, from the bottom;
//!                                                        together 2, 4, 8 or 16
//!   static bool bounded(const Coefficients&);            whether law 8 holds for these
//!
//! Law 6: both functions name every array once, in the same order, with the same remainders, which
//!        revert computes from new values and from old ones it has recalled.
//! Law 7: with Unrecorded they are apply and revert.
//! Law 8: where the exponent of `now` is at most kept_bits - 1 above that of the remainder (guard:
//!        2^exponent(now) <= 2^(kept_bits - 1) |remainder|; both denormal counts as equal), the old
//!        value's bit pattern lies within [-2^(kept_bits - 1), 2^(kept_bits - 1) - 1] of the
//!        estimate's. Values outside the guard, and negative zeros, are kept whole by the record.
//!        A NaN as remainder is outside: so a rule says that it has no bound for one element.
//!        Round to nearest, no flush to zero.
template <class R>
concept BoundedOptimizer = InvertibleOptimizer<R> && requires(const typename R::Coefficients& c) {
  requires std::same_as<decltype(R::kept_bits), const std::array<int, 1 + R::slots.size()>>;
  requires detail::add_up(R::kept_bits);
  { R::bounded(c) } -> std::same_as<bool>;
  // Record is deduced: nvcc takes a second explicit argument for the type of c.
  static_cast<detail::RecordedFunction<R, kernel::Scalar<float>>>(
      &R::template apply<kernel::Scalar<float>>);
  static_cast<detail::RecordedFunction<R, kernel::Scalar<float>>>(
      &R::template revert<kernel::Scalar<float>>);
};

}  // namespace mend
