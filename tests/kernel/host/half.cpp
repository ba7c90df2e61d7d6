#include <mend/kernel/host/half.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace {

// The value of a bit pattern with `digits` mantissa and `exponents` exponent bits, by definition.
double value_of(std::uint32_t bits, int digits, int exponents) {
  const std::uint32_t mantissa = bits & ((1u << digits) - 1), ones = (1u << exponents) - 1;
  const std::uint32_t exponent = bits >> digits & ones;
  const int bias = static_cast<int>(ones / 2);
  const double sign = bits >> (digits + exponents) != 0 ? -1 : 1;
  if (exponent == ones)
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  const double fraction = std::ldexp(mantissa, -digits) + (exponent != 0 ? 1 : 0);
  return sign * std::ldexp(fraction, (exponent != 0 ? static_cast<int>(exponent) : 1) - bias);
}

template <class ToFloat, class FromFloat>
void check_format(int digits, int exponents, std::uint16_t nan, ToFloat to_float,
                  FromFloat from_float) {
  const std::uint32_t infinity = ((1u << exponents) - 1) << digits;
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto h = static_cast<std::uint16_t>(bits);
    const double expected = value_of(bits, digits, exponents);
    const float value = to_float(h);
    if (std::isnan(expected)) {
      wrong += !std::isnan(value) || from_float(value) != nan;
      continue;
    }
    wrong +=
        static_cast<double>(value) != expected || std::signbit(value) != std::signbit(expected);
    wrong += from_float(value) != h;
    if ((bits & 0x7fff) >= infinity) continue;
    // Half-way to the next value goes to the even one, a little more or less to the nearer one. The
    // largest value's next one would be the power of two that rounds to infinity.
    const std::uint32_t next = bits + 1;
    const double above = (next & 0x7fff) == infinity
                             ? std::copysign(std::ldexp(2, (1 << (exponents - 1)) - 1), expected)
                             : value_of(next, digits, exponents);
    const auto middle = static_cast<float>((expected + above) / 2);
    if (static_cast<double>(middle) != (expected + above) / 2) continue;  // no float lies half-way
    wrong += from_float(middle) != (bits % 2 == 0 ? bits : next);
    wrong += from_float(std::nextafter(middle, 0.0f)) != bits;
    wrong += from_float(std::nextafter(middle, std::copysign(INFINITY, middle))) != next;
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("bf16: every pattern, and rounding between all of them") {
  check_format(7, 8, 0x7fc0, mend::kernel::bf16_to_float, mend::kernel::float_to_bf16);
}

TEST_CASE("f16: every pattern, and rounding between all of them") {
  check_format(10, 5, 0x7e00, mend::kernel::f16_to_float, mend::kernel::float_to_f16);
}

TEST_CASE("what is too large becomes infinite, too small zero, and NaNs one NaN") {
  const float max = std::numeric_limits<float>::max(),
              tiny = std::numeric_limits<float>::denorm_min();
  CHECK(mend::kernel::float_to_f16(65519.996f) == 0x7bff);
  CHECK(mend::kernel::float_to_f16(65520) == 0x7c00);
  CHECK(mend::kernel::float_to_f16(-max) == 0xfc00);
  CHECK(mend::kernel::float_to_f16(-tiny) == 0x8000);
  CHECK(mend::kernel::float_to_bf16(max) == 0x7f80);
  CHECK(mend::kernel::float_to_bf16(-tiny) == 0x8000);
  const auto nan = std::bit_cast<float>(0xff800001);  // signalling, negative
  CHECK(mend::kernel::float_to_f16(nan) == 0x7e00);
  CHECK(mend::kernel::float_to_bf16(nan) == 0x7fc0);
}
