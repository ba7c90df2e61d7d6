#pragma once

#include <bit>
#include <cstdint>

#include "mend/config.hpp"

namespace mend::kernel {

//! The value of a bf16 bit pattern: the upper half of a float.
[[nodiscard]] inline float bf16_to_float(std::uint16_t h) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(h) << 16);
}

//! Rounded to nearest even; every NaN becomes 0x7fc0. Without branches, so that loops vectorise.
[[nodiscard]] inline std::uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return static_cast<std::uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}

//! The value of an IEEE half-precision bit pattern; exact.
[[nodiscard]] inline float f16_to_float(std::uint16_t h) {
  const std::uint32_t size = h & 0x7fff, sign = static_cast<std::uint32_t>(h & 0x8000) << 16;
  constexpr std::uint32_t rebias = 112u << 23;
  const std::uint32_t normal = (size << 13) + rebias + (size >= 0x7c00 ? rebias : 0);
  const auto denormal =
      std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<std::int32_t>(size)) * 0x1p-24f);
  return std::bit_cast<float>((size < 0x400 ? denormal : normal) | sign);
}

//! The pattern that bf16_to_float made this value from; a NaN keeps its bits.
[[nodiscard]] inline std::uint16_t bf16_of_exact(float value) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
}

//! Rounded to nearest even, from 65520 to infinity; every NaN becomes 0x7e00.
[[nodiscard]] inline std::uint16_t float_to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t size = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;
  const std::uint32_t normal = (size + 0xfff + (size >> 13 & 1) - (112u << 23)) >> 13;
  // One unit of 0.5f is the smallest half: adding it rounds to whole units.
  const std::uint32_t denormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5f) -
                                 std::bit_cast<std::uint32_t>(0.5f);
  const std::uint32_t finite = size < 0x38800000 ? denormal : normal;
  const std::uint32_t rounded = size >= 0x477ff000 ? 0x7c00 : finite;
  return static_cast<std::uint16_t>(size > 0x7f800000 ? 0x7e00 : rounded | sign);
}

//! The pattern that f16_to_float made this value from; a NaN keeps its bits.
[[nodiscard]] inline std::uint16_t f16_of_exact(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t nan = (bits >> 16 & 0x8000) | 0x7c00 | (bits >> 13 & 0x3ff);
  return static_cast<std::uint16_t>(value == value ? float_to_f16(value) : nan);
}

}  // namespace mend::kernel
