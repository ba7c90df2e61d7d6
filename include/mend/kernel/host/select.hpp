#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "mend/kernel/host/instruction_sets.hpp"
#include "mend/kernel/host/rounding.hpp"
#include "mend/kernel/host/simd.hpp"

namespace mend::kernel {

namespace detail {

template <class T>
using WordOf = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

//! Ordered as |x| is, with every NaN above infinity.
template <class T>
WordOf<T> magnitude(T x) {
  return std::bit_cast<WordOf<T>>(x) & (~WordOf<T>{0} >> 1);
}

//! The k-th largest of some magnitudes, and how many of those equal to it are among the k largest,
//! by counting one digit after another from the top. 1 <= k <= words.size() < 2^32.
template <class Word>
std::pair<Word, std::size_t> kth_largest(std::span<const Word> words, std::size_t k) {
  constexpr int digit_bits = 11;  // the exponent of a float, and enough more to tell many apart
  constexpr Word digit_mask = (Word{1} << digit_bits) - 1;
  Word known = 0, prefix = 0;  // the digits that are known so far
  int shift = std::numeric_limits<Word>::digits - 1;
  do {
    shift = std::max(shift - digit_bits, 0);  // the last digit may begin with bits known already
    std::uint32_t counts[std::size_t{1} << digit_bits] = {};
    for (Word w : words)
      if ((w & known) == prefix) ++counts[w >> shift & digit_mask];
    Word digit = digit_mask;
    for (; counts[digit] < k; --digit) k -= counts[digit];
    known |= digit_mask << shift;
    prefix |= digit << shift;
  } while (shift > 0);
  return {prefix, k};
}

//! Takes elements in the order of their indices and keeps those that may still be among the k
//! largest: when its room is full it drops all but k, and from then on refuses what is not larger
//! than the least of these, since of equal ones the first win.
template <class T>
class Candidates {
 public:
  using Word = WordOf<T>;
  static constexpr std::size_t most_at_once = 64;

  //! 1 <= k <= n.
  Candidates(std::size_t n, std::size_t k)
      : k_{k}, indices_(std::min(n, 2 * k + 256) + most_at_once), words_(indices_.size()) {}

  //! What is less in magnitude is refused; as a T, unless it has become a NaN.
  [[nodiscard]] T bound() const { return std::bit_cast<T>(bound_); }

  //! x[at + i] for each bit i of `which`.
  void take(const T* x, std::size_t at, unsigned which) {
    for (; which != 0; which &= which - 1) {
      const std::size_t i = at + static_cast<unsigned>(std::countr_zero(which));
      const Word word = magnitude(x[i]);
      indices_[count_] = static_cast<std::uint32_t>(i);
      words_[count_] = word;
      count_ += word >= bound_;
    }
    if (count_ > indices_.size() - most_at_once) drop();
  }

  std::vector<std::uint32_t> finish() && {
    if (count_ > k_) drop();
    indices_.resize(count_);
    return std::move(indices_);
  }

 private:
  __attribute__((noinline)) void drop() {
    auto [least, equal] = kth_largest(std::span<const Word>{words_.data(), count_}, k_);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      const Word word = words_[i];
      const bool tie = word == least && equal > 0;
      equal -= tie;
      indices_[kept] = indices_[i];
      words_[kept] = word;
      kept += word > least || tie;
    }
    count_ = kept;
    bound_ = least + 1;
  }

  std::size_t k_, count_ = 0;
  Word bound_ = 0;
  std::vector<std::uint32_t> indices_;
  std::vector<Word> words_;
};

//! Gives `candidates` every element that is not below their bound, NaNs too; for run_memory_bound.
template <class T>
struct ScanForLargest {
  const T* x;
  std::size_t n;
  Candidates<T>* candidates;

  template <class Set>
  __attribute__((flatten)) void operator()(Set) const {
    constexpr std::size_t width = Set::template width<T>;
    constexpr unsigned all = (1u << width) - 1;
    std::size_t at = 0;
    T bound = candidates->bound();
    for (; at + width <= n; at += width) {
      if (at * sizeof(T) % 64 == 0) prefetch_ahead(x + at);
      const auto below = Set::less(Set::abs(Set::load(x + at)), Set::all(bound));
      const unsigned which =
          all & ~Set::template far<T>(below, 0);  // a lane that holds has all bits
      if (which != 0) {
        candidates->take(x, at, which);
        bound = candidates->bound();
      }
    }
    for (; at < n; ++at) candidates->take(x, at, 1);
  }
};

//! Appends the indices of elements that are not +0 until more than `limit` are found; for
//! run_memory_bound.
template <class T>
struct ScanForNonZero {
  const T* x;
  std::size_t n, limit;
  std::vector<std::uint32_t>* indices;

  template <class Set>
  __attribute__((flatten)) void operator()(Set) const {
    constexpr std::size_t width = Set::template width<T>;
    constexpr unsigned all = (1u << width) - 1;
    const auto zero = Set::all(T{0}), one = Set::all(T{1});
    std::size_t at = 0;
    for (; at + width <= n && indices->size() <= limit; at += width) {
      if (at * sizeof(T) % 64 == 0) prefetch_ahead(x + at);
      const auto value = Set::load(x + at);
      const auto sign = Set::select(Set::equal(value, zero), Set::copysign(one, value), zero);
      unsigned which = all & ~Set::template far<T>(Set::less(zero, sign), 0);
      for (; which != 0; which &= which - 1)
        indices->push_back(
            static_cast<std::uint32_t>(at + static_cast<unsigned>(std::countr_zero(which))));
    }
    for (; at < n; ++at)
      if (std::bit_cast<WordOf<T>>(x[at]) != 0) indices->push_back(static_cast<std::uint32_t>(at));
  }
};

}  // namespace detail

//! The indices of the min(k, n) elements of largest magnitude, ascending; of equal magnitudes the
//! lower index is taken first. A NaN is larger than infinity, and NaNs are ordered by their bits.
//! x: n elements of float or double, n < 2^32. The same indices for every Simd level.
//! Throws: std::bad_alloc. Cost: one read, and 16 bytes of memory per index (for double 24). The
//! worst order is that of growing magnitudes, where every element is looked at as a candidate.
template <class T>
[[nodiscard]] std::vector<std::uint32_t> largest(const T* x, std::size_t n, std::size_t k,
                                                 Simd simd = best_simd()) {
  if (k >= n) {
    std::vector<std::uint32_t> indices(n);
    std::iota(indices.begin(), indices.end(), 0u);
    return indices;
  }
  if (k == 0) return {};
  detail::Candidates<T> candidates{n, k};
  StandardRounding rounding;  // with denormals taken for zeros, the comparison would miss some
  run_memory_bound(simd, detail::ScanForLargest<T>{x, n, &candidates});
  return std::move(candidates).finish();
}

//! The indices, ascending, of the elements that are not +0 (a -0 is one of them), or nothing where
//! there are more than `limit`. x: n elements of float or double, n < 2^32. Throws: std::bad_alloc.
//! Cost: one read, up to the limit.
template <class T>
[[nodiscard]] std::optional<std::vector<std::uint32_t>> non_zero(const T* x, std::size_t n,
                                                                 std::size_t limit,
                                                                 Simd simd = best_simd()) {
  std::vector<std::uint32_t> indices;
  StandardRounding rounding;
  run_memory_bound(simd, detail::ScanForNonZero<T>{x, n, limit, &indices});
  if (indices.size() > limit) return std::nullopt;
  return indices;
}

}  // namespace mend::kernel
