#pragma once

#include <bit>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "mend/kernel/host/half.hpp"
#include "mend/kernel/host/lanes.hpp"

#if FLT_EVAL_METHOD == 1 || FLT_EVAL_METHOD == 2
#error "mend needs arithmetic in the type that is written: compile for SSE2 (-mfpmath=sse)"
#endif

namespace mend::kernel {

//! Plain C++, one value at a time: what every wider instruction set must equal bit for bit.
struct ScalarSet {
  template <class T>
  static constexpr std::size_t width = 1;
  template <class T>
  using Pack = T;
  template <class T>
  using Mask = bool;
  template <class T>
  using Pattern = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

  template <class T>
  static T load(const T* from) {
    return *from;
  }
  template <class T>
  static void store(T* to, T a) {
    *to = a;
  }
  template <class T>
  static void copy(T& to, T from) {
    to = from;
  }
  template <class T>
  static T all(T value) {
    return value;
  }
  template <class T>
  static T add(T a, T b) {
    return a + b;
  }
  template <class T>
  static T sub(T a, T b) {
    return a - b;
  }
  template <class T>
  static T mul(T a, T b) {
    T product = a * b;
    // Keeps the compiler from fusing the product into a sum. No instruction.
#if defined(__x86_64__)
    asm("" : "+x"(product));
#elif defined(__aarch64__)
    asm("" : "+w"(product));
#else
    asm("" : "+m"(product));
#endif
    return product;
  }
  template <class T>
  static T div(T a, T b) {
    return a / b;
  }
  template <class T>
  static T neg(T a) {
    return -a;
  }
  template <class T>
  static T fma(T a, T b, T c) {
    return std::fma(a, b, c);
  }
  template <class T>
  static T sqrt(T a) {
    return std::sqrt(a);
  }
  template <class T>
  static T abs(T a) {
    return std::fabs(a);
  }
  template <class T>
  static T copysign(T a, T b) {
    return std::copysign(a, b);
  }
  template <class T>
  static bool less(T a, T b) {
    return a < b;
  }
  template <class T>
  static bool less_equal(T a, T b) {
    return a <= b;
  }
  template <class T>
  static bool equal(T a, T b) {
    return a == b;
  }
  template <class T>
  static T select(bool which, T a, T b) {
    return which ? a : b;
  }
  static float load_bf16(const std::uint16_t* from) { return bf16_to_float(*from); }
  static void store_bf16(std::uint16_t* to, float a) { *to = float_to_bf16(a); }
  static float load_f16(const std::uint16_t* from) { return f16_to_float(*from); }
  static void store_f16(std::uint16_t* to, float a) { *to = float_to_f16(a); }
  static double load_float(const float* from) { return static_cast<double>(*from); }

  // Bit patterns of values, for records of old ones; instruction_set.inl says what they do.
  template <class T>
  static Pattern<T> push(Pattern<T> record, T a, int k) {
    return record >> k | pattern(a) << (8 * int{sizeof(T)} - k);
  }
  template <class T>
  static T recall(T estimate, Pattern<T> record, int shift, int k) {
    const Pattern<T> half = Pattern<T>{1} << (k - 1), low = (Pattern<T>{1} << k) - 1;
    const Pattern<T> base = pattern(estimate), code = record >> shift;
    return std::bit_cast<T>(base + ((code - base + half) & low) - half);
  }
  template <class T>
  static T difference(T a, T estimate) {
    const Pattern<T> code = pattern(a) - pattern(estimate) + 7;
    return std::bit_cast<T>(code < 15 ? code : Pattern<T>{15});
  }
  template <class T>
  static unsigned far(Pattern<T> record, int shift) {
    return (record >> shift & 15) == 15;
  }
  template <class T>
  static T add_difference(T estimate, Pattern<T> record, int shift) {
    return std::bit_cast<T>(pattern(estimate) + (record >> shift & 15) - 7);
  }
  template <class T>
  static Pattern<T> least(Pattern<T> a, T b) {
    constexpr Pattern<T> sign = Pattern<T>{1} << (8 * sizeof(T) - 1);
    return (a ^ sign) < (pattern(b) ^ sign) ? a : pattern(b);
  }
  template <class T>
  static bool has_negative_zero(Pattern<T> least) {
    return least == Pattern<T>{1} << (8 * sizeof(T) - 1);
  }
  template <class T>
  static unsigned outside(T a, T b, T factor) {
    constexpr Pattern<T> exponent = static_cast<Pattern<T>>(
        sizeof(T) == 4 ? std::uint64_t{0x7f800000} : std::uint64_t{0x7ff0000000000000});
    return !(std::bit_cast<T>(pattern(a) & exponent) - mul(factor, std::fabs(b)) <= 0);
  }
  template <class T>
  static T* compress(T* to, T a, unsigned chosen) {
    *to = a;
    return to + chosen;
  }
  template <class T>
  static const T* expand(T& a, const T* from, unsigned chosen) {
    a = chosen != 0 ? *from : a;
    return from + chosen;
  }
  template <class T>
  static void store_past_cache(void* to, T a) {
    std::memcpy(to, &a, sizeof a);
  }

  //! Runs body(ScalarSet{}).
  template <class Body>
  __attribute__((noinline)) static void run(Body body) {
    body(ScalarSet{});
  }

 private:
  template <class T>
  static Pattern<T> pattern(T a) {
    return std::bit_cast<Pattern<T>>(a);
  }
};

//! One number of a rule, on the host. A wrapper and not a bare T, so that `p - g * c.lr` written
//! naturally rounds the same everywhere.
template <class T>
using Scalar = Lanes<T, ScalarSet>;

}  // namespace mend::kernel
