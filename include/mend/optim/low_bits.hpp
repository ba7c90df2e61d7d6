#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "mend/kernel/host/scalar.hpp"
#include "mend/optim/bounded_rule.hpp"

namespace mend {

//! The record of bounded_rule.hpp for one parameter, written for clarity: what ExactUndo keeps, in
//! tests. `old` is set before apply: the parameter and its slots.
template <BoundedOptimizer R, std::floating_point T>
struct LowBits {
  static constexpr std::size_t arrays = R::kept_bits.size();
  using Real = kernel::Scalar<T>;

  std::array<T, arrays> old{};
  std::array<int, arrays> guard =
      guards();                      //!< the exponent of `now` above the remainder's, at most
  std::array<bool, arrays> whole{};  //!< what keep found
  bool sound = true;  //!< every array kept and recalled once, in one order, with one answer

  void keep(std::size_t k, const Real& now, const Real& remainder) {
    whole[k] = outside(k, value(now), value(remainder));
    sound = sound && kept_ < arrays;
    if (sound) order_[kept_++] = k;
  }
  void recall(std::size_t k, Real& x, const Real& remainder, const Real& estimate) {
    const bool out = outside(k, value(x), value(remainder));
    sound = sound && recalled_ < kept_ && order_[recalled_++] == k && out == whole[k];
    x = out ? old[k] : decoded(k, value(estimate));
  }

  //! What stands in the arrays when revert has left `reverted` there: where an old value was a
  //! negative zero, all were kept whole.
  [[nodiscard]] std::array<T, arrays> restored(const std::array<T, arrays>& reverted) {
    sound = sound && kept_ == arrays && recalled_ == arrays;
    return zero() ? old : reverted;
  }

 private:
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

  static constexpr std::array<int, arrays> guards() {
    auto guard = R::kept_bits;
    for (int& g : guard) --g;
    return guard;
  }
  static T value(const Real& x) {
    T out;
    x.store(&out);
    return out;
  }
  [[nodiscard]] bool zero() const {
    for (T x : old)
      if (x == 0 && std::signbit(x)) return true;
    return false;
  }
  [[nodiscard]] bool outside(std::size_t k, T now, T remainder) const {
    constexpr Bits mantissa = (Bits{1} << (std::numeric_limits<T>::digits - 1)) - 1;
    const T power = std::bit_cast<T>(std::bit_cast<Bits>(std::abs(now)) & ~mantissa);
    return !(power - std::ldexp(std::abs(remainder), guard[k]) <= 0);
  }
  [[nodiscard]] T decoded(std::size_t k, T estimate) const {
    const Bits half = Bits{1} << (R::kept_bits[k] - 1), mask = 2 * half - 1;
    const auto base = std::bit_cast<Bits>(estimate), code = std::bit_cast<Bits>(old[k]) & mask;
    return std::bit_cast<T>(base + ((code - base + half) & mask) - half);
  }

  std::array<std::size_t, arrays> order_{};
  std::size_t kept_ = 0, recalled_ = 0;
};

}  // namespace mend
