#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "mend/kernel/host/instruction_sets.hpp"
#include "mend/kernel/host/lanes.hpp"
#include "mend/kernel/host/rounding.hpp"
#include "mend/kernel/host/simd.hpp"
#include "mend/kernel/slots.hpp"

namespace mend::kernel {

namespace detail {

enum class Direction { apply, revert };

//! A rule over n parameters, for run_on: up to the alignment of the values, whole registers, the
//! rest.
template <class Rule, class T, Direction direction>
struct Pass {
  static constexpr std::size_t slot_count = Rule::slots.size();
  using State = std::array<T*, 1 + slot_count>;  // the value, then the slots

  typename Rule::Coefficients coefficients;
  State state;
  const T* gradient;
  std::size_t n;
  T gradient_scale;

  template <class Set>
  __attribute__((flatten)) void operator()(Set) const {
    using Real = Lanes<T, Set>;
    constexpr std::size_t width = Real::width;
    const auto c = coefficients;
    const Real scale{gradient_scale}, nan{std::numeric_limits<T>::quiet_NaN()};
    const std::size_t past = reinterpret_cast<std::uintptr_t>(state[0]) % sizeof(Real);
    const std::size_t head = std::min(n, (sizeof(Real) - past) % sizeof(Real) / sizeof(T));
    const std::size_t ends[] = {head, head + (n - head) / width * width, n};

    std::size_t at = 0;
    for (int part = 0; part < 3; at = ends[part++]) {
      const std::size_t size = ends[part] - at;
      if (size == 0) continue;
      // A part of a register goes through scratch memory, so that one loop serves all three.
      T scratch[slot_count + 2][width] = {};
      const bool whole = part == 1;
      const T* g = gradient + at;
      State s = state;
      for (T*& array : s) array += at;
      if (!whole) {
        std::memcpy(scratch[slot_count + 1], g, size * sizeof(T));
        g = scratch[slot_count + 1];
        for (std::size_t k = 0; k < s.size(); ++k) {
          std::memcpy(scratch[k], s[k], size * sizeof(T));
          s[k] = scratch[k];
        }
      }
      for (std::size_t i = 0; i < size; i += width) {
        if (sizeof(Real) >= 64 || i * sizeof(T) % 64 == 0) {
          for (const T* array : s) prefetch_ahead(array + i);
          prefetch_ahead(g + i);
        }
        Real p = Real::load(s[0] + i);
        Slots<Real, slot_count> slots;
        if constexpr (slot_count > 0) {
          MEND_UNROLL
          for (std::size_t k = 0; k < slot_count; ++k) slots[k] = Real::load(s[k + 1] + i);
        }
        const Real scaled = Real::load(g + i) * scale;
        if constexpr (direction == Direction::apply)
          Rule::template apply<Real>(p, slots, scaled, c);
        else
          Rule::template revert<Real>(p, slots, scaled, c);
        select(p == p, p, nan).store(s[0] + i);
        if constexpr (slot_count > 0) {
          MEND_UNROLL
          for (std::size_t k = 0; k < slot_count; ++k)
            select(slots[k] == slots[k], slots[k], nan).store(s[k + 1] + i);
        }
      }
      if (!whole)
        for (std::size_t k = 0; k < s.size(); ++k)
          std::memcpy(state[k] + at, s[k], size * sizeof(T));
    }
  }
};

template <class Rule, Direction direction, class T>
void pass(const typename Rule::Coefficients& c, T* p,
          const std::array<T*, Rule::slots.size()>& slots, const T* g, std::size_t n,
          T gradient_scale, Simd simd) {
  StandardRounding rounding;
  Pass<Rule, T, direction> pass{c, {p}, g, n, gradient_scale};
  std::copy(slots.begin(), slots.end(), pass.state.begin() + 1);
  run_on(simd, pass);
}

}  // namespace detail

//! One update of n parameters by a rule, in place.
//! p, slots, g: n elements each, aligned for T, no overlap; g is only read. What the rule sees as
//! gradient is gradient_scale * g (the factor of a clipped norm), rounded once.
//! The same bits for every Simd level, compiler and flag; a NaN is written as the one quiet NaN.
//! Blocks: no. Throws: never (best_simd() may, when MEND_SIMD is wrong). Cost: memory traffic, 28
//! bytes per float parameter for a rule with two slots; best when all arrays share one offset from
//! a cache line, as arenas and same-sized vectors do.
template <class Rule, class T>
void apply(const typename Rule::Coefficients& c, T* p,
           const std::array<T*, Rule::slots.size()>& slots, const T* g, std::size_t n,
           T gradient_scale = 1, Simd simd = best_simd()) {
  detail::pass<Rule, detail::Direction::apply>(c, p, slots, g, n, gradient_scale, simd);
}

//! The rule's own inverse of that update, with the same arguments: the values before it but for
//! rounding.
template <class Rule, class T>
void revert(const typename Rule::Coefficients& c, T* p,
            const std::array<T*, Rule::slots.size()>& slots, const T* g, std::size_t n,
            T gradient_scale = 1, Simd simd = best_simd()) {
  detail::pass<Rule, detail::Direction::revert>(c, p, slots, g, n, gradient_scale, simd);
}

}  // namespace mend::kernel
