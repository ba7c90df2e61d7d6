#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "mend/kernel/host/instruction_sets.hpp"
#include "mend/kernel/host/lanes.hpp"
#include "mend/kernel/host/reduce.hpp"
#include "mend/kernel/host/rounding.hpp"
#include "mend/kernel/host/simd.hpp"
#include "mend/kernel/host/workers.hpp"
#include "mend/kernel/slots.hpp"

namespace mend::kernel {

namespace detail {

//! The sums of squares of a rule's terms over one block, each in the order of SquaresOfBlock; for
//! run_on. The terms of some elements rest in the first-level cache in between.
template <class Rule, class T>
struct NormsOfBlock {
  static constexpr std::size_t slot_count = Rule::slots.size(), norms = Rule::norms;
  static constexpr std::size_t sums = 16, chunk = 128;
  using Arrays = std::array<const T*, slot_count + 2>;  // the value, the slots, the gradient

  typename Rule::Coefficients coefficients;
  Arrays arrays;
  std::size_t n;
  T gradient_scale;
  std::array<double, norms>* out;

  template <class Set>
  __attribute__((flatten)) void operator()(Set set) const {
    double running[norms][sums] = {};
    for (std::size_t at = 0; at < n; at += chunk) {
      const std::size_t size = std::min(chunk, n - at);
      alignas(64) T terms[norms][chunk];
      prepare(set, at, size, terms);
      for (std::size_t k = 0; k < norms; ++k) add_squares(set, terms[k], size, running[k]);
    }
    for (std::size_t k = 0; k < norms; ++k) {
      for (std::size_t half = sums / 2; half > 0; half /= 2)
        for (std::size_t i = 0; i < half; ++i) running[k][i] += running[k][i + half];
      (*out)[k] = running[k][0];
    }
  }

 private:
  // clang inlines into a flattened function what that calls itself; these go with it at any depth.
#define MEND_WITH_CALLER __attribute__((always_inline)) inline

  //! Fills a multiple of `sums` terms: zeros behind the last element, whatever a rule makes of
  //! zeros.
  template <class Set>
  MEND_WITH_CALLER void prepare(Set set, std::size_t at, std::size_t size,
                                T (&terms)[norms][chunk]) const {
    constexpr std::size_t width = Lanes<T, Set>::width;
    const auto c = coefficients;
    const T scale = gradient_scale;
    const std::size_t whole = size / width * width;
    for (std::size_t i = 0; i < whole; i += width) {
      if (width * sizeof(T) >= 64 || i * sizeof(T) % 64 == 0)
        for (const T* array : arrays) prefetch_ahead(array + at + i);
      prepare_lanes(set, c, scale, arrays, at + i, terms, i);
    }
    if (whole < size) {  // the rest goes through scratch memory
      T rest[slot_count + 2][width] = {};
      Arrays x;
      for (std::size_t k = 0; k < x.size(); ++k) {
        std::memcpy(rest[k], arrays[k] + at + whole, (size - whole) * sizeof(T));
        x[k] = rest[k];
      }
      prepare_lanes(set, c, scale, x, 0, terms, whole);
    }
    for (auto& norm : terms) std::fill(norm + size, norm + (size + sums - 1) / sums * sums, T{0});
  }

  template <class Set>
  MEND_WITH_CALLER static void prepare_lanes(Set, const auto& c, T scale, const Arrays& x,
                                             std::size_t from, T (&terms)[norms][chunk],
                                             std::size_t to) {
    using Real = Lanes<T, Set>;
    Slots<Real, slot_count> slots;
    if constexpr (slot_count > 0) {
      MEND_UNROLL
      for (std::size_t k = 0; k < slot_count; ++k) slots[k] = Real::load(x[k + 1] + from);
    }
    Slots<Real, norms> of_lanes;
    Rule::template prepare<Real>(Real::load(x.front() + from), slots,
                                 Real::load(x.back() + from) * scale, c, of_lanes);
    MEND_UNROLL
    for (std::size_t k = 0; k < norms; ++k) of_lanes[k].store(terms[k] + to);
  }

  template <class Set>
  MEND_WITH_CALLER static void add_squares(Set, const T* terms, std::size_t size,
                                           double (&running)[sums]) {
    using Doubles = Lanes<double, Set>;
    constexpr std::size_t width = Doubles::width;
    Doubles sum[sums / width];
    MEND_UNROLL
    for (std::size_t k = 0; k < sums / width; ++k) sum[k] = Doubles::load(running + k * width);
    for (std::size_t at = 0; at < size; at += sums) {
      MEND_UNROLL
      for (std::size_t k = 0; k < sums / width; ++k) {
        Doubles value;
        if constexpr (std::is_same_v<T, float>)
          value = Doubles::load_float(terms + at + k * width);
        else
          value = Doubles::load(terms + at + k * width);
        sum[k] = sum[k] + value * value;
      }
    }
    MEND_UNROLL
    for (std::size_t k = 0; k < sums / width; ++k) sum[k].store(running + k * width);
  }

#undef MEND_WITH_CALLER
};

}  // namespace detail

//! The norms over one tensor that a NormRule needs before its update (optim/norm_rule.hpp): square
//! roots of the sums of the squares of what its `prepare` says of each parameter. The same bits for
//! every Simd level and number of threads: the order is that of sum_of_squares.
//! p, slots, g: n elements each, aligned for T; gradient_scale as in apply. Infinite or the quiet
//! NaN where a term is not finite (or, for double, a square). Throws: std::bad_alloc. Cost: one
//! read.
template <class Rule, class T>
[[nodiscard]] std::array<double, Rule::norms> norms(
    const typename Rule::Coefficients& c, const T* p,
    const std::array<const T*, Rule::slots.size()>& slots, const T* g, std::size_t n,
    T gradient_scale = 1, Workers* workers = nullptr, Simd simd = best_simd()) {
  using Block = detail::NormsOfBlock<Rule, T>;
  std::vector<std::array<double, Rule::norms>> sums((n + detail::squares_block - 1) /
                                                    detail::squares_block);
  auto block = [&](std::size_t begin, std::size_t end) {
    StandardRounding rounding;
    typename Block::Arrays arrays;
    arrays.front() = p + begin;
    arrays.back() = g + begin;
    for (std::size_t k = 0; k < slots.size(); ++k) arrays[k + 1] = slots[k] + begin;
    run_on(simd,
           Block{c, arrays, end - begin, gradient_scale, &sums[begin / detail::squares_block]});
  };
  if (workers != nullptr)
    workers->parallel_for(n, detail::squares_block, block);
  else
    for (std::size_t at = 0; at < n; at += detail::squares_block)
      block(at, std::min(n, at + detail::squares_block));
  StandardRounding rounding;
  std::array<double, Rule::norms> total{};
  for (const auto& sum : sums)
    for (std::size_t k = 0; k < total.size(); ++k) total[k] += sum[k];
  for (double& t : total)
    t = t == t ? ScalarSet::sqrt(t) : std::numeric_limits<double>::quiet_NaN();
  return total;
}

}  // namespace mend::kernel
