#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <limits>

#include "mend/kernel/host/instruction_sets.hpp"
#include "mend/kernel/host/lanes.hpp"
#include "mend/kernel/host/rounding.hpp"
#include "mend/kernel/host/simd.hpp"
#include "mend/kernel/slots.hpp"

namespace mend::kernel {

namespace detail {

//! A rule over n parameters whose old values and slots stay readable, for run_on.
template <class Rule, class T>
struct ApartPass {
  static constexpr std::size_t slot_count = Rule::slots.size();

  typename Rule::Coefficients coefficients;
  T* p;
  T* old_p;
  std::array<const T*, slot_count> slots;
  std::array<T*, slot_count> new_slots;
  const T* gradient;
  std::size_t n;
  T gradient_scale;

  template <class Set>
  __attribute__((flatten)) void operator()(Set) const {
    using Real = Lanes<T, Set>;
    constexpr std::size_t width = Real::width;
    const auto c = coefficients;
    const Real scale{gradient_scale}, nan{std::numeric_limits<T>::quiet_NaN()};
    ApartPass at = *this;
    for (std::size_t i = 0; i < n; i += width) {
      const std::size_t left = n - i;
      alignas(64) T scratch[3 + 2 * slot_count][width];
      ApartPass to = at;
      if (left < width) to = at.through(scratch, left);
      if (sizeof(Real) >= 64 || i * sizeof(T) % 64 == 0) {
        prefetch_ahead(at.p);
        prefetch_ahead(at.gradient);
        for (const T* slot : at.slots) prefetch_ahead(slot);
      }
      Real value = Real::load(to.p);
      Slots<Real, slot_count> s;
      if constexpr (slot_count > 0) {
        MEND_UNROLL
        for (std::size_t k = 0; k < slot_count; ++k) s[k] = Real::load(to.slots[k]);
      }
      Set::store_past_cache(to.old_p, value.pack());
      Rule::template apply<Real>(value, s, Real::load(to.gradient) * scale, c);
      select(value == value, value, nan).store(to.p);
      if constexpr (slot_count > 0) {
        MEND_UNROLL
        for (std::size_t k = 0; k < slot_count; ++k)
          Set::store_past_cache(to.new_slots[k], select(s[k] == s[k], s[k], nan).pack());
      }
      if (left < width) at.take_from(to, left);
      at.advance(width);
    }
  }

 private:
  //! The same on scratch memory, filled with what is left.
  template <std::size_t width>
  ApartPass through(T (&scratch)[3 + 2 * slot_count][width], std::size_t left) const {
    std::memset(scratch, 0, sizeof scratch);
    ApartPass to = *this;
    to.p = scratch[0];
    to.old_p = scratch[1];
    to.gradient = scratch[2];
    std::memcpy(scratch[0], p, left * sizeof(T));
    std::memcpy(scratch[2], gradient, left * sizeof(T));
    for (std::size_t k = 0; k < slot_count; ++k) {
      std::memcpy(scratch[3 + k], slots[k], left * sizeof(T));
      to.slots[k] = scratch[3 + k];
      to.new_slots[k] = scratch[3 + slot_count + k];
    }
    return to;
  }
  void take_from(const ApartPass& from, std::size_t left) {
    std::memcpy(p, from.p, left * sizeof(T));
    std::memcpy(old_p, from.old_p, left * sizeof(T));
    for (std::size_t k = 0; k < slot_count; ++k)
      std::memcpy(new_slots[k], from.new_slots[k], left * sizeof(T));
  }
  void advance(std::size_t by) {
    p += by;
    old_p += by;
    gradient += by;
    for (std::size_t k = 0; k < slot_count; ++k) {
      slots[k] += by;
      new_slots[k] += by;
    }
  }
};

}  // namespace detail

//! kernel::apply, to the same bits, that leaves the old slots where they are: new ones go to
//! new_slots, old parameters to old_p, both past the caches. old_p and new_slots are aligned for a
//! cache line. Cost: 8 bytes per parameter more than apply for the parameters, none for the slots.
template <class Rule, class T>
void apply_apart(const typename Rule::Coefficients& c, T* p, T* old_p,
                 const std::array<const T*, Rule::slots.size()>& slots,
                 const std::array<T*, Rule::slots.size()>& new_slots, const T* g, std::size_t n,
                 T gradient_scale = 1, Simd simd = best_simd()) {
  StandardRounding rounding;
  run_on(simd, detail::ApartPass<Rule, T>{c, p, old_p, slots, new_slots, g, n, gradient_scale});
  order_stores_past_cache();
}

}  // namespace mend::kernel
