#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "mend/core/error.hpp"

namespace mend::kernel {

//! How wide the host's arithmetic runs. Every level gives the same bits; only the speed differs.
//! baseline: 16-byte vectors, what every x86-64 (SSE2) and aarch64 (NEON) has.
enum class Simd : std::uint8_t { scalar, baseline, avx2, avx512 };

[[nodiscard]] constexpr std::string_view name_of(Simd simd) {
  switch (simd) {
    case Simd::scalar: return "scalar";
    case Simd::baseline: return "baseline";
    case Simd::avx2: return "avx2";
    case Simd::avx512: return "avx512";
  }
  return "?";
}

//! True where this processor, and its operating system, can run the level.
[[nodiscard]] inline bool supported(Simd simd) {
#if defined(__x86_64__)
  switch (simd) {
    case Simd::avx2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case Simd::avx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    default: return true;
  }
#else
  return simd <= Simd::baseline;
#endif
}

//! The level of that name. Throws OptionError for an unknown one and for one that this processor
//! cannot run.
[[nodiscard]] inline Simd simd_named(std::string_view name) {
  for (Simd simd : {Simd::scalar, Simd::baseline, Simd::avx2, Simd::avx512}) {
    if (name != name_of(simd)) continue;
    if (!supported(simd))
      throw OptionError{"MEND_SIMD: this processor cannot run '" + std::string{name} +
                        "'; unset it"};
    return simd;
  }
  throw OptionError{"MEND_SIMD: '" + std::string{name} +
                    "' is none of scalar, baseline, avx2, avx512"};
}

//! The widest level that this processor runs, or the one that the environment variable MEND_SIMD
//! names. Read once. Throws as simd_named does.
[[nodiscard]] inline Simd best_simd() {
  static const Simd best = [] {
    if (const char* forced = std::getenv("MEND_SIMD"); forced != nullptr && *forced != '\0')
      return simd_named(forced);
    for (Simd simd : {Simd::avx512, Simd::avx2})
      if (supported(simd)) return simd;
    return Simd::baseline;
  }();
  return best;
}

//! Ordinary stores after this are seen after what was stored past the caches before.
inline void order_stores_past_cache() {
#if defined(__x86_64__)
  asm volatile("sfence" : : : "memory");
#endif
}

}  // namespace mend::kernel
