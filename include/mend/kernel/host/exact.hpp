#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "mend/kernel/host/apply.hpp"
#include "mend/kernel/host/instruction_sets.hpp"
#include "mend/kernel/host/lanes.hpp"
#include "mend/kernel/host/rounding.hpp"
#include "mend/kernel/host/simd.hpp"
#include "mend/kernel/slots.hpp"

#if defined(__CUDACC__)
#define MEND_RECORD _Pragma("nv_exec_check_disable") __host__ __device__
#else
#define MEND_RECORD
#endif
namespace mend::kernel {

namespace detail {

//! How many low bits of each array's old values a record keeps. A rule without bounds gets four
//! bits, which hold the difference from what its revert gives.
template <class Rule>
constexpr std::array<int, 1 + Rule::slots.size()> record_bits() {
  if constexpr (requires { Rule::kept_bits; }) {
    static_assert(
        [] {
          unsigned sum = 0;
          for (int bits : Rule::kept_bits) sum += bits < 1 ? 0u : static_cast<unsigned>(bits);
          return std::has_single_bit(sum) && std::ranges::min(Rule::kept_bits) > 0;
        }(),
        "kept_bits of a rule are at least 1 each, and 2, 4, 8 or 16 together");
    return Rule::kept_bits;
  } else {
    std::array<int, 1 + Rule::slots.size()> bits{};
    bits.fill(4);
    return bits;
  }
}
//! Of one element, rounded up so that elements fill a word.
template <class Rule>
constexpr int bits_per_element() {
  unsigned sum = 0;
  for (int bits : record_bits<Rule>()) sum += static_cast<unsigned>(bits);
  return static_cast<int>(std::bit_ceil(sum));
}

}  // namespace detail

//! Where apply_exact keeps what revert_exact needs. The caller owns the memory.
template <class T>
struct ExactRecord {
  std::byte* codes;  //!< exact_codes_bytes<Rule>(n) bytes, aligned for a cache line
  T* values;  //!< old values that their codes do not give: (1 + slots) n of them and 64 bytes
  T* groups;  //!< groups with a negative zero, whole: exact_groups_size<Rule>(n) values
};

//! What a call of apply_exact has written of the last two, in values.
struct ExactSizes {
  std::size_t values = 0, groups = 0;
};

//! Whole groups, of 64 bytes at most, take exact_codes_bits of an element each; so does the rest,
//! up to the end of a group.
template <class Rule>
[[nodiscard]] constexpr std::size_t exact_codes_bits() {
  return static_cast<std::size_t>(detail::bits_per_element<Rule>());
}
template <class Rule>
[[nodiscard]] constexpr std::size_t exact_codes_bytes(std::size_t n) {
  constexpr std::size_t group = 64 * 8 / exact_codes_bits<Rule>();
  return (n + group - 1) / group * 64;
}
template <class Rule>
[[nodiscard]] constexpr std::size_t exact_values_size(std::size_t n) {
  constexpr std::size_t group = 64 * 8 / exact_codes_bits<Rule>(), slack = 16;
  return (1 + Rule::slots.size()) * (n + group) + slack;
}
//! Each group has its index before it.
template <class Rule>
[[nodiscard]] constexpr std::size_t exact_groups_size(std::size_t n) {
  constexpr std::size_t group = 64 * 8 / exact_codes_bits<Rule>();
  return (1 + Rule::slots.size()) * (n + group) + n + 2;
}

namespace detail {

//! In apply: the old values of one register per array; those outside the guard join the list.
template <class Rule, class T, class Set>
struct Keeper {
  using Real = Lanes<T, Set>;
  std::array<Real, 1 + Rule::slots.size()> old;
  T* list;

  MEND_RECORD void keep(std::size_t k, const Real& now, const Real& remainder) {
    const T factor = static_cast<T>(1 << (record_bits<Rule>()[k] - 1));
    list = Set::compress(list, old[k].pack(),
                         Set::template outside<T>(now.pack(), remainder.pack(), factor));
  }
};

//! In revert: the old values out of their codes, or out of the list.
template <class Rule, class T, class Set>
struct Recaller {
  using Real = Lanes<T, Set>;
  typename Set::template Pattern<T> codes;
  const T* list;

  MEND_RECORD void recall(std::size_t k, Real& x, const Real& remainder, const Real& estimate) {
    constexpr auto bits = record_bits<Rule>();
    int shift = 0;
    for (std::size_t i = 0; i < k; ++i) shift += bits[i];
    const T factor = static_cast<T>(1 << (bits[k] - 1));
    auto old = Set::template recall<T>(estimate.pack(), codes, shift, bits[k]);
    list = Set::expand(old, list, Set::template outside<T>(x.pack(), remainder.pack(), factor));
    x = Real::of(old);
  }
};

//! A rule over n parameters with a record of their old values, for run_on: groups of registers
//! whose codes fill a register, and the part of one at the end.
template <class Rule, class T, Direction direction>
struct ExactPass {
  static constexpr std::size_t slot_count = Rule::slots.size(), arrays = 1 + slot_count;
  static constexpr int element_bits = bits_per_element<Rule>();
  static constexpr std::size_t rows = 8 * sizeof(T) / static_cast<std::size_t>(element_bits);
  static_assert(element_bits <= static_cast<int>(8 * sizeof(T)),
                "ExactUndo: too many slots for a record of their differences");
  using State = std::array<T*, arrays>;  // the value, then the slots

  typename Rule::Coefficients coefficients;
  State state;
  const T* gradient;
  std::size_t n;
  T gradient_scale;
  ExactRecord<T> record;
  ExactSizes* sizes;

  template <class Set>
  __attribute__((flatten)) void operator()(Set) const {
    using Real = Lanes<T, Set>;
    constexpr std::size_t width = Real::width, group = rows * width;
    const auto c = coefficients;
    const Real scale{gradient_scale};
    const std::size_t ends[] = {n / group * group, n};

    T* list = record.values;
    T* groups = record.groups;
    std::byte* codes = record.codes;
    std::uint32_t index = 0;
    std::size_t at = 0;
    for (const std::size_t end : ends) {
      if (end == at) continue;
      T scratch[arrays + 1][group];
      const bool whole = end - at >= group;
      const std::size_t size = whole ? group : end - at;
      for (; at < end; at += size, ++index, codes += sizeof(Real)) {
        State s = state;
        for (T*& array : s) array += at;
        const T* g = gradient + at;
        if (!whole) {
          g = padded(scratch[arrays], g, size);
          for (std::size_t k = 0; k < arrays; ++k) s[k] = padded(scratch[k], s[k], size);
        }
        if constexpr (direction == Direction::apply) {
          groups = keep_negative_zeros<Set>(s, index, groups);
          list = apply_group<Set>(s, g, scale, c, codes, list);
        } else {
          list = revert_group<Set>(s, g, scale, c, codes, list);
          groups = restore_group<group>(s, index, groups);
        }
        if (!whole)
          for (std::size_t k = 0; k < arrays; ++k)
            std::memcpy(state[k] + at, s[k], size * sizeof(T));
      }
    }
    *sizes = {static_cast<std::size_t>(list - record.values),
              static_cast<std::size_t>(groups - record.groups)};
  }

 private:
  //! A part of a group, filled up with its last element, which fares alike in apply and revert.
  template <std::size_t group>
  static T* padded(T (&scratch)[group], const T* from, std::size_t size) {
    std::fill(std::copy_n(from, size, scratch), scratch + group, from[size - 1]);
    return scratch;
  }

  template <class Set>
  static T* keep_negative_zeros(const State& s, std::uint32_t index, T* to) {
    constexpr std::size_t width = Lanes<T, Set>::width, group = rows * width;
    typename Set::template Pattern<T> least{};
    MEND_UNROLL
    for (std::size_t row = 0; row < rows; ++row)
      for (std::size_t k = 0; k < arrays; ++k)
        least = Set::template least<T>(least, Set::load(s[k] + row * width));
    if (__builtin_expect(!Set::template has_negative_zero<T>(least), 1)) return to;
    std::memcpy(to++, &index, sizeof index);
    for (const T* array : s) to = std::copy_n(array, group, to);
    return to;
  }
  template <std::size_t group>
  T* restore_group(const State& s, std::uint32_t index, T* from) const {
    std::uint32_t next;
    std::memcpy(&next, from, sizeof next);  // behind the last there is a word too
    if (from == record.groups + sizes->groups || next != index) return from;
    ++from;
    for (T* array : s) {
      std::copy_n(from, group, array);
      from += group;
    }
    return from;
  }

  template <class Set>
  static T* apply_group(const State& s, const T* g, const Lanes<T, Set>& scale, const auto& c,
                        std::byte* to, T* list) {
    using Real = Lanes<T, Set>;
    constexpr std::size_t width = Real::width;
    typename Set::template Pattern<T> codes{};
    MEND_UNROLL
    for (std::size_t row = 0; row < rows; ++row) {
      const std::size_t at = row * width;
      if (sizeof(Real) >= 64 || at * sizeof(T) % 64 == 0) {
        for (const T* array : s) prefetch_ahead(array + at);
        prefetch_ahead(g + at);
      }
      Keeper<Rule, T, Set> keeper{load<Set>(s, at), list};
      auto now = keeper.old;
      Slots<Real, slot_count> slots = slots_of(now);
      const Real scaled = Real::load(g + at) * scale;
      if constexpr (requires { Rule::kept_bits; }) {
        Rule::apply(now[0], slots, scaled, c, keeper);
        store<Set>(now[0], slots, s, at, now);
        MEND_UNROLL
        for (std::size_t k = 0; k < arrays; ++k)
          codes = Set::template push<T>(codes, keeper.old[k].pack(), record_bits<Rule>()[k]);
        list = keeper.list;
      } else {
        Rule::template apply<Real>(now[0], slots, scaled, c);
        store<Set>(now[0], slots, s, at, now);
        const auto estimate = reverted<Set>(now, scaled, c);
        int pushed = 0;
        MEND_UNROLL
        for (std::size_t k = 0; k < arrays; ++k, pushed += 4) {
          const auto code = Set::template difference<T>(keeper.old[k].pack(), estimate[k].pack());
          codes = Set::template push<T>(codes, code, 4);
          list = Set::compress(list, keeper.old[k].pack(),
                               Set::template far<T>(codes, int{8 * sizeof(T)} - 4));
        }
        if constexpr (element_bits > 4 * int{arrays})
          codes = Set::template push<T>(codes, Real{0}.pack(), element_bits - 4 * int{arrays});
      }
    }
    Set::store_past_cache(to, codes);
    return list;
  }

  template <class Set>
  static T* revert_group(const State& s, const T* g, const Lanes<T, Set>& scale, const auto& c,
                         const std::byte* from, const T* list) {
    using Real = Lanes<T, Set>;
    constexpr std::size_t width = Real::width;
    typename Set::template Pattern<T> codes;
    std::memcpy(&codes, from, sizeof codes);
    MEND_UNROLL
    for (std::size_t row = 0; row < rows; ++row) {
      const std::size_t at = row * width;
      if (sizeof(Real) >= 64 || at * sizeof(T) % 64 == 0) {
        for (const T* array : s) prefetch_ahead(array + at);
        prefetch_ahead(g + at);
      }
      auto now = load<Set>(s, at);
      const Real scaled = Real::load(g + at) * scale;
      if constexpr (requires { Rule::kept_bits; }) {
        Slots<Real, slot_count> slots = slots_of(now);
        Recaller<Rule, T, Set> recaller{codes, list};
        Rule::revert(now[0], slots, scaled, c, recaller);
        list = recaller.list;
        now[0].store(s[0] + at);
        if constexpr (slot_count > 0) {
          MEND_UNROLL
          for (std::size_t k = 0; k < slot_count; ++k) slots[k].store(s[k + 1] + at);
        }
      } else {
        const auto estimate = reverted<Set>(now, scaled, c);
        int shift = 0;
        MEND_UNROLL
        for (std::size_t k = 0; k < arrays; ++k, shift += 4) {
          auto old = Set::template add_difference<T>(estimate[k].pack(), codes, shift);
          list = Set::expand(old, list, Set::template far<T>(codes, shift));
          Real::of(old).store(s[k] + at);
        }
      }
      if constexpr (rows > 1) codes = Set::template push<T>(codes, Real{0}.pack(), element_bits);
    }
    return const_cast<T*>(list);
  }

  template <class Set>
  static std::array<Lanes<T, Set>, arrays> load(const State& s, std::size_t at) {
    std::array<Lanes<T, Set>, arrays> all;
    MEND_UNROLL
    for (std::size_t k = 0; k < arrays; ++k) all[k] = Lanes<T, Set>::load(s[k] + at);
    return all;
  }
  template <class Real>
  static Slots<Real, slot_count> slots_of(const std::array<Real, arrays>& all) {
    Slots<Real, slot_count> slots;
    if constexpr (slot_count > 0) {
      MEND_UNROLL
      for (std::size_t k = 0; k < slot_count; ++k) slots[k] = all[k + 1];
    }
    return slots;
  }
  //! With one NaN, as kernel::apply writes.
  template <class Set>
  static void store(const Lanes<T, Set>& p, const Slots<Lanes<T, Set>, slot_count>& slots,
                    const State& s, std::size_t at, std::array<Lanes<T, Set>, arrays>& now) {
    now[0] = one_nan<Set>(p);
    now[0].store(s[0] + at);
    if constexpr (slot_count > 0) {
      MEND_UNROLL
      for (std::size_t k = 0; k < slot_count; ++k) {
        now[k + 1] = one_nan<Set>(slots[k]);
        now[k + 1].store(s[k + 1] + at);
      }
    }
  }
  template <class Set>
  static Lanes<T, Set> one_nan(const Lanes<T, Set>& x) {
    return select(x == x, x, Lanes<T, Set>{std::numeric_limits<T>::quiet_NaN()});
  }
  //! What the rule's revert makes of new values.
  template <class Set>
  static std::array<Lanes<T, Set>, arrays> reverted(std::array<Lanes<T, Set>, arrays> now,
                                                    const Lanes<T, Set>& g, const auto& c) {
    Slots<Lanes<T, Set>, slot_count> slots = slots_of(now);
    Rule::template revert<Lanes<T, Set>>(now[0], slots, g, c);
    now[0] = one_nan<Set>(now[0]);
    if constexpr (slot_count > 0) {
      MEND_UNROLL
      for (std::size_t k = 0; k < slot_count; ++k) now[k + 1] = one_nan<Set>(slots[k]);
    }
    return now;
  }
};

template <class Rule, Direction direction, class T>
ExactSizes exact_pass(const typename Rule::Coefficients& c, T* p,
                      const std::array<T*, Rule::slots.size()>& slots, const T* g, std::size_t n,
                      T gradient_scale, const ExactRecord<T>& record, ExactSizes sizes, Simd simd) {
  StandardRounding rounding;
  ExactPass<Rule, T, direction> pass{c, {p}, g, n, gradient_scale, record, &sizes};
  std::copy(slots.begin(), slots.end(), pass.state.begin() + 1);
  run_on(simd, pass);
  return sizes;
}

}  // namespace detail

//! kernel::apply, to the same bits, that also keeps what revert_exact needs to restore the very
//! bits from before: the low bits of every old value, and whole those few that low bits and the new
//! state do not determine (the rule's bounds say which: optim/bounded_rule.hpp; for a rule without
//! bounds its revert is tried at once). For any values, infinities and NaNs too. n: at most a few
//! thousand, so that the record's worst case is small. For bounded rules only with coefficients
//! that are `bounded`. Cost for Adam: about one byte more per parameter than the 28 that move
//! anyway.
template <class Rule, class T>
[[nodiscard]] ExactSizes apply_exact(const typename Rule::Coefficients& c, T* p,
                                     const std::array<T*, Rule::slots.size()>& slots, const T* g,
                                     std::size_t n, T gradient_scale, const ExactRecord<T>& record,
                                     Simd simd = best_simd()) {
  const ExactSizes sizes = detail::exact_pass<Rule, detail::Direction::apply>(
      c, p, slots, g, n, gradient_scale, record, {}, simd);
  order_stores_past_cache();
  return sizes;
}

//! Undoes that call: the same arguments and Simd level, the record it wrote and the sizes it
//! returned. Reads up to 64 bytes behind the record's values and a word behind its groups.
template <class Rule, class T>
void revert_exact(const typename Rule::Coefficients& c, T* p,
                  const std::array<T*, Rule::slots.size()>& slots, const T* g, std::size_t n,
                  T gradient_scale, const ExactRecord<T>& record, ExactSizes sizes,
                  Simd simd = best_simd()) {
  detail::exact_pass<Rule, detail::Direction::revert>(c, p, slots, g, n, gradient_scale, record,
                                                      sizes, simd);
}

}  // namespace mend::kernel

#undef MEND_RECORD
