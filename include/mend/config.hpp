#pragma once

//! What every header agrees on: C++20, the version, the attributes a rule needs, the refusal of
//! -ffast-math.

#if __cplusplus < 202002L
#error "mend needs C++20: compile with -std=c++20"
#endif

#include <string_view>

#if defined(__FAST_MATH__) && !defined(MEND_ALLOW_FAST_MATH)
#error \
    "mend promises the same bits after a recovery, and -ffast-math breaks that promise. \
Compile without it, or define MEND_ALLOW_FAST_MATH to give the promise up."
#endif

#define MEND_VERSION_MAJOR 0
#define MEND_VERSION_MINOR 1
#define MEND_VERSION_PATCH 0
#define MEND_VERSION_STRING "0.1.0"

//! Stands before a rule's apply and revert, so that one source runs on the host and in kernels.
#if defined(__CUDACC__)
#define MEND_RULE __host__ __device__ inline
#else
// Always: clang++ would call what a rule delegates to.
#define MEND_RULE __attribute__((always_inline)) inline
#endif

//! 1 in unoptimised builds without NDEBUG: gradients are poisoned before each step. May be preset.
#ifndef MEND_DEBUG
#if !defined(NDEBUG) && !defined(__OPTIMIZE__)
#define MEND_DEBUG 1
#else
#define MEND_DEBUG 0
#endif
#endif

namespace mend {

//! Members of one run must be built from the same version; joining compares this string.
inline constexpr std::string_view library_version = MEND_VERSION_STRING;

}  // namespace mend
