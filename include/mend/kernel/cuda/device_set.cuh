#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "mend/config.hpp"
#include "mend/kernel/host/lanes.hpp"

#if defined(__CUDA_FTZ) && __CUDA_FTZ && !defined(MEND_ALLOW_FAST_MATH)
#error \
    "mend promises the same bits on host and device, and -use_fast_math or -ftz=true breaks that \
promise. Compile without it, or define MEND_ALLOW_FAST_MATH to give the promise up."
#endif

namespace mend::kernel {

//! One number in a CUDA thread. Every operation is the intrinsic that rounds once, to nearest even,
//! and is never fused with another: the bits of ScalarSet.
struct DeviceSet {
  template <class T>
  static constexpr std::size_t width = 1;
  template <class T>
  using Pack = T;
  template <class T>
  using Mask = bool;

  template <class T>
  __device__ static T load(const T* from) {
    return *from;
  }
  template <class T>
  __device__ static void store(T* to, T a) {
    *to = a;
  }
  template <class T>
  __device__ static void copy(T& to, T from) {
    to = from;
  }
  template <class T>
  __device__ static T all(T value) {
    return value;
  }

  __device__ static float add(float a, float b) { return __fadd_rn(a, b); }
  __device__ static float sub(float a, float b) { return __fsub_rn(a, b); }
  __device__ static float mul(float a, float b) { return __fmul_rn(a, b); }
  __device__ static float div(float a, float b) { return __fdiv_rn(a, b); }
  __device__ static float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
  __device__ static float sqrt(float a) { return __fsqrt_rn(a); }
  __device__ static double add(double a, double b) { return __dadd_rn(a, b); }
  __device__ static double sub(double a, double b) { return __dsub_rn(a, b); }
  __device__ static double mul(double a, double b) { return __dmul_rn(a, b); }
  __device__ static double div(double a, double b) { return __ddiv_rn(a, b); }
  __device__ static double fma(double a, double b, double c) { return __fma_rn(a, b, c); }
  __device__ static double sqrt(double a) { return __dsqrt_rn(a); }

  template <class T>
  __device__ static T neg(T a) {
    return -a;
  }
  __device__ static float abs(float a) { return number(pattern(a) & ~sign_of(a)); }
  __device__ static double abs(double a) { return number(pattern(a) & ~sign_of(a)); }
  template <class T>
  __device__ static T copysign(T a, T b) {
    return number((pattern(a) & ~sign_of(a)) | (pattern(b) & sign_of(b)));
  }
  template <class T>
  __device__ static bool less(T a, T b) {
    return a < b;
  }
  template <class T>
  __device__ static bool less_equal(T a, T b) {
    return a <= b;
  }
  template <class T>
  __device__ static bool equal(T a, T b) {
    return a == b;
  }
  template <class T>
  __device__ static T select(bool which, T a, T b) {
    return which ? a : b;
  }

  //! As half.hpp's.
  __device__ static float load_bf16(const std::uint16_t* from) {
    return number(std::uint32_t{*from} << 16);
  }
  __device__ static void store_bf16(std::uint16_t* to, float a) {
    const std::uint32_t bits = pattern(a);
    const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    *to = static_cast<std::uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
  }
  __device__ static float load_f16(const std::uint16_t* from) {
    const std::uint32_t size = *from & 0x7fffu, sign = (*from & 0x8000u) << 16;
    constexpr std::uint32_t rebias = 112u << 23;
    const std::uint32_t normal = (size << 13) + rebias + (size >= 0x7c00 ? rebias : 0);
    const std::uint32_t denormal =
        pattern(__fmul_rn(static_cast<float>(static_cast<std::int32_t>(size)), 0x1p-24f));
    return number((size < 0x400 ? denormal : normal) | sign);
  }
  __device__ static void store_f16(std::uint16_t* to, float a) {
    const std::uint32_t bits = pattern(a), size = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;
    const std::uint32_t normal = (size + 0xfff + (size >> 13 & 1) - (112u << 23)) >> 13;
    const std::uint32_t denormal = pattern(__fadd_rn(number(size), 0.5f)) - pattern(0.5f);
    const std::uint32_t finite = size < 0x38800000 ? denormal : normal;
    const std::uint32_t rounded = size >= 0x477ff000 ? 0x7c00 : finite;
    *to = static_cast<std::uint16_t>(size > 0x7f800000 ? 0x7e00 : rounded | sign);
  }
  __device__ static double load_float(const float* from) { return static_cast<double>(*from); }

  //! The bits of a number, and the number of bits.
  __device__ static std::uint32_t pattern(float a) { return __float_as_uint(a); }
  __device__ static std::uint64_t pattern(double a) {
    return static_cast<std::uint64_t>(__double_as_longlong(a));
  }
  __device__ static float number(std::uint32_t bits) { return __uint_as_float(bits); }
  __device__ static double number(std::uint64_t bits) {
    return __longlong_as_double(static_cast<long long>(bits));
  }

 private:
  __device__ static std::uint32_t sign_of(float) { return 0x80000000u; }
  __device__ static std::uint64_t sign_of(double) { return 0x8000000000000000u; }
};

}  // namespace mend::kernel
