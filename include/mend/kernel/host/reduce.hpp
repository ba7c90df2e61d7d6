#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "mend/core/dtype.hpp"
#include "mend/core/error.hpp"
#include "mend/kernel/host/instruction_sets.hpp"
#include "mend/kernel/host/lanes.hpp"
#include "mend/kernel/host/rounding.hpp"
#include "mend/kernel/host/simd.hpp"
#include "mend/kernel/host/workers.hpp"

namespace mend::kernel {

namespace detail {

//! How a floating dtype is stored, and read into and written from a register.
template <class T>
struct AsIs {
  using Stored = T;
  using Number = T;
  template <class Set>
  static Lanes<T, Set> load(const T* from) {
    return Lanes<T, Set>::load(from);
  }
  template <class Set>
  static void store(T* to, const Lanes<T, Set>& x) {
    x.store(to);
  }
};
struct AsBf16 {
  using Stored = std::uint16_t;
  using Number = float;
  template <class Set>
  static Lanes<float, Set> load(const std::uint16_t* from) {
    return Lanes<float, Set>::load_bf16(from);
  }
  template <class Set>
  static void store(std::uint16_t* to, const Lanes<float, Set>& x) {
    x.store_bf16(to);
  }
};
struct AsF16 {
  using Stored = std::uint16_t;
  using Number = float;
  template <class Set>
  static Lanes<float, Set> load(const std::uint16_t* from) {
    return Lanes<float, Set>::load_f16(from);
  }
  template <class Set>
  static void store(std::uint16_t* to, const Lanes<float, Set>& x) {
    x.store_f16(to);
  }
};

//! Calls body with the AsIs<...> or As... of a floating dtype. Throws OptionError for another.
template <class Body>
auto with_floating(DType type, const char* what, const Body& body) {
  switch (type) {
    case DType::f32: return body(AsIs<float>{});
    case DType::f64: return body(AsIs<double>{});
    case DType::bf16: return body(AsBf16{});
    case DType::f16: return body(AsF16{});
    default:
      throw OptionError{std::string{what} + " needs a floating type, not " +
                        std::string{name_of(type)}};
  }
}

//! into = operation(into, from) for n elements, NaNs made one; for run_memory_bound. into and from
//! are the same array or do not overlap.
template <class Into, class From, class Operation>
struct Elementwise {
  typename Into::Stored* into;
  const typename From::Stored* from;
  std::size_t n;
  Operation operation;

  template <class Set>
  __attribute__((flatten)) void operator()(Set) const {
    using Real = Lanes<typename Into::Number, Set>;
    constexpr std::size_t width = Real::width, line = 64 / sizeof(*from);
    const Operation f = operation;
    const Real nan{std::numeric_limits<typename Into::Number>::quiet_NaN()};
    const auto step = [&](typename Into::Stored* a, const typename From::Stored* b) {
      const Real x = f(Into::template load<Set>(a), From::template load<Set>(b));
      Into::template store<Set>(a, select(x == x, x, nan));
    };
    std::size_t at = 0;
    for (; at + width <= n; at += width) {
      if (at % line == 0) {
        prefetch_ahead(into + at);
        prefetch_ahead(from + at);
      }
      step(into + at, from + at);
    }
    if (at < n) {  // the rest goes through scratch memory
      typename Into::Stored a[width] = {};
      typename From::Stored b[width] = {};
      std::memcpy(a, into + at, (n - at) * sizeof a[0]);
      std::memcpy(b, from + at, (n - at) * sizeof b[0]);
      step(a, b);
      std::memcpy(into + at, a, (n - at) * sizeof a[0]);
    }
  }
};

struct Add {
  template <class Real>
  Real operator()(const Real& into, const Real& from) const {
    return from + into;
  }
};
struct DivideBy {
  int divisor;
  template <class Real>
  Real operator()(const Real& into, const Real&) const {
    return into / divisor;
  }
};
struct Assign {
  template <class Real>
  Real operator()(const Real&, const Real& from) const {
    return from;
  }
};

template <class Into, class From, class Operation>
void elementwise(void* into, const void* from, std::size_t n, Operation operation, Simd simd) {
  StandardRounding rounding;
  run_memory_bound(simd, Elementwise<Into, From, Operation>{
                             static_cast<typename Into::Stored*>(into),
                             static_cast<const typename From::Stored*>(from), n, operation});
}

//! Wrapping sums of unsigned integers, for run_memory_bound.
template <class T>
struct AddIntegers {
  T* into;
  const T* from;
  std::size_t n;

  template <class Set>
  __attribute__((flatten)) void operator()(Set) const {
    constexpr std::size_t width = Set::template width<T>;
    std::size_t at = 0;
    for (; at + width <= n; at += width)
      Set::store(into + at, Set::add(Set::load(from + at), Set::load(into + at)));
    for (; at < n; ++at) into[at] = ScalarSet::add(from[at], into[at]);
  }
};

template <class T>
void add_integers(void* into, const void* from, std::size_t n, Simd simd) {
  run_memory_bound(simd, AddIntegers<T>{static_cast<T*>(into), static_cast<const T*>(from), n});
}

//! A sum of squares is the sum, in order, of the sums of blocks of this many elements.
inline constexpr std::size_t squares_block = std::size_t{1} << 16;

//! Of one block: element i goes to running sum i % 16; the sixteen are added pairwise. For
//! run_memory_bound.
template <class As>
struct SquaresOfBlock {
  const typename As::Stored* data;
  std::size_t n;
  double* sum;

  template <class Set>
  __attribute__((flatten)) void operator()(Set) const {
    using Doubles = Lanes<double, Set>;
    using Number = typename As::Number;
    constexpr std::size_t sums = 16, width = Doubles::width;
    Doubles running[sums / width];
    for (Doubles& r : running) r = 0;
    for (std::size_t at = 0; at < n; at += sums) {
      prefetch_ahead(data + at);
      typename As::Stored rest[sums];
      const typename As::Stored* x = data + at;
      if (n - at < sums) {
        std::memset(rest, 0, sizeof rest);
        std::memcpy(rest, x, (n - at) * sizeof rest[0]);
        x = rest;
      }
      Number numbers[sums];
      const Number* y = numbers;
      if constexpr (std::is_same_v<typename As::Stored, Number>) {
        y = x;
      } else {
        MEND_UNROLL
        for (std::size_t i = 0; i < sums; i += Lanes<Number, Set>::width)
          As::template load<Set>(x + i).store(numbers + i);
      }
      MEND_UNROLL
      for (std::size_t k = 0; k < sums / width; ++k) {
        const Doubles value = as_doubles<Set>(y + k * width);
        running[k] = running[k] + value * value;
      }
    }
    double part[sums];
    for (std::size_t k = 0; k < sums / width; ++k) running[k].store(part + k * width);
    for (std::size_t half = sums / 2; half > 0; half /= 2)
      for (std::size_t i = 0; i < half; ++i) part[i] += part[i + half];
    *sum = part[0];
  }

 private:
  template <class Set>
  static Lanes<double, Set> as_doubles(const float* x) {
    return Lanes<double, Set>::load_float(x);
  }
  template <class Set>
  static Lanes<double, Set> as_doubles(const double* x) {
    return Lanes<double, Set>::load(x);
  }
};

//! Whether x - x is 0 for every element; asked once per run, so that it may stop early. For
//! run_memory_bound.
template <class As>
struct AllFinite {
  const typename As::Stored* data;
  std::size_t n;
  bool* finite;

  template <class Set>
  __attribute__((flatten)) void operator()(Set) const {
    using Real = Lanes<typename As::Number, Set>;
    constexpr std::size_t width = Real::width, chains = 4, run = 4096;
    *finite = true;
    for (std::size_t begin = 0; begin < n && *finite; begin += run) {
      const std::size_t end = std::min(n, begin + run);
      Real sum[chains];
      for (Real& s : sum) s = 0;
      std::size_t at = begin;
      for (; at + chains * width <= end; at += chains * width) {
        prefetch_ahead(data + at);
        prefetch_ahead(data + at + chains * width / 2);
        MEND_UNROLL
        for (std::size_t k = 0; k < chains; ++k) {
          const Real x = As::template load<Set>(data + at + k * width);
          sum[k] = sum[k] + (x - x);
        }
      }
      for (; at < end; at += width) {
        typename As::Stored rest[width] = {};
        std::memcpy(rest, data + at, std::min(width, end - at) * sizeof rest[0]);
        const Real x = As::template load<Set>(rest);
        sum[0] = sum[0] + (x - x);
      }
      typename As::Number total[width];
      ((sum[0] + sum[1]) + (sum[2] + sum[3])).store(total);
      for (auto t : total) *finite = *finite && t == 0;
    }
  }
};

}  // namespace detail

//! into = from + into: the running sum in rank order of a ring, `from` being the sum so far.
//! Floating types round once per element (bf16 and f16 in float, then to nearest even) and write
//! every NaN as the one quiet NaN; integers wrap. into, from: n elements each, aligned for their
//! type, no overlap. Throws OptionError for booleans. Cost: 3 accesses per element.
inline void accumulate(DType type, void* into, const void* from, std::size_t n,
                       Simd simd = best_simd()) {
  switch (type) {
    case DType::i8:
    case DType::u8: return detail::add_integers<std::uint8_t>(into, from, n, simd);
    case DType::i16:
    case DType::u16: return detail::add_integers<std::uint16_t>(into, from, n, simd);
    case DType::i32:
    case DType::u32: return detail::add_integers<std::uint32_t>(into, from, n, simd);
    case DType::i64:
    case DType::u64: return detail::add_integers<std::uint64_t>(into, from, n, simd);
    default:
      detail::with_floating(type, "a sum", [=]<class As>(As) {
        detail::elementwise<As, As>(into, from, n, detail::Add{}, simd);
      });
  }
}

//! Divides n elements by the number of ranks, rounding once. Throws OptionError for integers.
inline void scale_to_mean(DType type, void* data, std::size_t n, int ranks,
                          Simd simd = best_simd()) {
  detail::with_floating(type, "a mean", [=]<class As>(As) {
    detail::elementwise<As, As>(data, data, n, detail::DivideBy{ranks}, simd);
  });
}

//! n elements of f32, bf16 or f16 as floats, exactly. Throws OptionError for another type.
inline void to_float(DType type, const void* from, float* into, std::size_t n,
                     Simd simd = best_simd()) {
  detail::with_floating(type, "a conversion to float", [=]<class As>(As) {
    if constexpr (std::is_same_v<As, detail::AsIs<double>>)
      throw OptionError{"a conversion to float would round F64"};
    else
      detail::elementwise<detail::AsIs<float>, As>(into, from, n, detail::Assign{}, simd);
  });
}

//! n floats as f32, bf16 or f16, rounded to nearest even; every NaN becomes the one quiet NaN.
//! Throws OptionError for another type.
inline void from_float(DType type, const float* from, void* into, std::size_t n,
                       Simd simd = best_simd()) {
  detail::with_floating(type, "a conversion from float", [=]<class As>(As) {
    if constexpr (std::is_same_v<As, detail::AsIs<double>>)
      throw OptionError{"a conversion from float does not make F64"};
    else
      detail::elementwise<As, detail::AsIs<float>>(into, from, n, detail::Assign{}, simd);
  });
}

//! The sum of squares of n elements, in double: the same bits for every Simd level and number of
//! threads. For a global norm, add the sums of several tensors in a fixed order. Infinite or the
//! quiet NaN where an element is not finite (or, for f64, a square). Throws OptionError for
//! integers. Cost: one read.
[[nodiscard]] inline double sum_of_squares(DType type, const void* data, std::size_t n,
                                           Workers* workers = nullptr, Simd simd = best_simd()) {
  return detail::with_floating(type, "a sum of squares", [=]<class As>(As) {
    const auto* x = static_cast<const typename As::Stored*>(data);
    std::vector<double> sums((n + detail::squares_block - 1) / detail::squares_block);
    auto block = [&](std::size_t begin, std::size_t end) {
      StandardRounding rounding;
      run_memory_bound(simd, detail::SquaresOfBlock<As>{x + begin, end - begin,
                                                        &sums[begin / detail::squares_block]});
    };
    if (workers != nullptr)
      workers->parallel_for(n, detail::squares_block, block);
    else
      for (std::size_t at = 0; at < n; at += detail::squares_block)
        block(at, std::min(n, at + detail::squares_block));
    StandardRounding rounding;
    double total = 0;
    for (double sum : sums) total += sum;
    return total == total ? total : std::numeric_limits<double>::quiet_NaN();
  });
}

//! False where an element is infinite or a NaN; integers are always finite. Cost: one read, up to
//! the first such element.
[[nodiscard]] inline bool all_finite(DType type, const void* data, std::size_t n,
                                     Simd simd = best_simd()) {
  if (!is_floating(type)) return true;
  return detail::with_floating(type, "", [=]<class As>(As) {
    bool finite = true;
    StandardRounding rounding;
    run_memory_bound(
        simd, detail::AllFinite<As>{static_cast<const typename As::Stored*>(data), n, &finite});
    return finite;
  });
}

}  // namespace mend::kernel
