#pragma once

// Numbers for the tests: every special value there is, and random ones, the same on every machine.

#include <mend/kernel/host/simd.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

namespace test {

inline std::uint64_t mix(std::uint64_t z) {  // splitmix64
  z += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

template <class T>
const std::vector<T>& special_values() {
  using Limits = std::numeric_limits<T>;
  static const std::vector<T> values = [] {
    std::vector<T> v;
    for (T x : {T(0), Limits::denorm_min(), Limits::min() / 2, Limits::min(), T(1e-30), T(1e-3),
                T(0.5), T(1), T(1) + Limits::epsilon(), T(3), T(1e10), Limits::max() / 2,
                Limits::max(), Limits::infinity(), Limits::quiet_NaN()}) {
      v.push_back(x);
      v.push_back(-x);
    }
    return v;
  }();
  return values;
}

//! Of either sign, its exponent within `range` of 2^0.
template <class T>
T number(std::uint64_t seed, int range = 12) {
  const std::uint64_t r = mix(seed);
  const double size =
      std::ldexp(1 + static_cast<double>(r >> 12) * 0x1p-52,
                 static_cast<int>(mix(r) % static_cast<unsigned>(2 * range)) - range);
  return static_cast<T>(r % 2 == 0 ? size : -size);
}

//! Random numbers, one in four of them special.
template <class T>
std::vector<T> numbers(std::size_t n, std::uint64_t seed) {
  std::vector<T> v(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t r = mix(mix(seed) + i);
    v[i] = r % 4 != 0 ? number<T>(r) : special_values<T>()[(r >> 8) % special_values<T>().size()];
  }
  return v;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

//! The same bits, or both a NaN.
template <class T>
bool same_number(T a, T b) {
  return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b));
}

//! The levels that this processor runs.
inline std::vector<mend::kernel::Simd> levels() {
  using mend::kernel::Simd;
  std::vector<Simd> all;
  for (Simd simd : {Simd::scalar, Simd::baseline, Simd::avx2, Simd::avx512})
    if (mend::kernel::supported(simd)) all.push_back(simd);
  return all;
}

}  // namespace test
