#include <mend/kernel/host/reduce.hpp>

#include <doctest/doctest.h>

#include <mend/core/dtype.hpp>
#include <mend/core/error.hpp>
#include <mend/kernel/host/half.hpp>
#include <mend/kernel/host/workers.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernel/numbers.hpp"

using namespace mend::kernel;
using mend::DType;

namespace {

template <class T>
T one_nan(T x) {
  return std::isnan(x) ? std::numeric_limits<T>::quiet_NaN() : x;
}

// Lengths with every tail of a register, and beyond a block of the sum of squares.
std::vector<std::size_t> lengths() {
  std::vector<std::size_t> all{1000, 65536, 65537, 70003, 200001};
  for (std::size_t n = 0; n <= 70; ++n) all.push_back(n);
  return all;
}

// Random bit patterns, NaNs and all.
std::vector<std::uint16_t> patterns(std::size_t n, std::uint64_t seed) {
  std::vector<std::uint16_t> v(n);
  for (std::size_t i = 0; i < n; ++i) v[i] = static_cast<std::uint16_t>(test::mix(seed + i));
  return v;
}

}  // namespace

TEST_CASE_TEMPLATE("a sum is from + into, each NaN the same, for every length", T, float, double) {
  constexpr DType type = mend::dtype_of<T>;
  for (std::size_t n : lengths()) {
    CAPTURE(n);
    const auto from = test::numbers<T>(n + 1, n), before = test::numbers<T>(n + 2, n + 1);
    auto expected = before;
    for (std::size_t i = 0; i < n; ++i) expected[i] = one_nan<T>(from[i] + before[i]);
    for (Simd simd : test::levels()) {
      auto into = before;
      accumulate(type, into.data(), from.data(), n, simd);
      CHECK(test::same_bits(into, expected));
    }
  }
}

TEST_CASE_TEMPLATE("integers wrap", T, std::int8_t, std::uint8_t, std::int16_t, std::uint16_t,
                   std::int32_t, std::uint32_t, std::int64_t, std::uint64_t) {
  for (std::size_t n : {0, 1, 3, 15, 16, 31, 33, 64, 65, 127, 1001}) {
    std::vector<T> from(n + 1), into(n + 1), expected;
    for (std::size_t i = 0; i <= n; ++i) {
      from[i] = static_cast<T>(test::mix(i));
      into[i] = static_cast<T>(test::mix(~i));
    }
    expected = into;
    for (std::size_t i = 0; i < n; ++i)
      expected[i] =
          static_cast<T>(static_cast<std::uint64_t>(from[i]) + static_cast<std::uint64_t>(into[i]));
    for (Simd simd : test::levels()) {
      auto sum = into;
      accumulate(mend::dtype_of<T>, sum.data(), from.data(), n, simd);
      CHECK(sum == expected);
    }
  }
}

TEST_CASE("bf16 and f16 are added and divided in float, and rounded to nearest even") {
  struct Format {
    DType type;
    float (*to)(std::uint16_t);
    std::uint16_t (*from)(float);
  };
  for (const Format& format : {Format{DType::bf16, bf16_to_float, float_to_bf16},
                               Format{DType::f16, f16_to_float, float_to_f16}})
    for (std::size_t n : {0, 1, 7, 8, 9, 16, 31, 33, 64, 5000}) {
      const auto from = patterns(n, 1), before = patterns(n, 2);
      std::vector<std::uint16_t> sums = before, means = before;
      std::vector<float> floats(n);
      for (std::size_t i = 0; i < n; ++i) {
        sums[i] = format.from(one_nan(format.to(from[i]) + format.to(before[i])));
        means[i] = format.from(one_nan(format.to(before[i]) / 3));
        floats[i] = one_nan(format.to(before[i]));
      }
      for (Simd simd : test::levels()) {
        auto into = before;
        accumulate(format.type, into.data(), from.data(), n, simd);
        CHECK(into == sums);
        into = before;
        scale_to_mean(format.type, into.data(), n, 3, simd);
        CHECK(into == means);
        std::vector<float> read(n);
        to_float(format.type, before.data(), read.data(), n, simd);
        CHECK(test::same_bits(read, floats));
      }
      const auto values = test::numbers<float>(n, 3);
      std::vector<std::uint16_t> rounded(n), written(n);
      for (std::size_t i = 0; i < n; ++i) rounded[i] = format.from(one_nan(values[i]));
      for (Simd simd : test::levels()) {
        from_float(format.type, values.data(), written.data(), n, simd);
        CHECK(written == rounded);
      }
    }
}

TEST_CASE_TEMPLATE("a mean is one division per element", T, float, double) {
  for (int ranks : {1, 2, 3, 7, 1000}) {
    const auto before = test::numbers<T>(1003, 9);
    auto expected = before;
    for (T& x : expected) x = one_nan<T>(x / static_cast<T>(ranks));
    for (Simd simd : test::levels()) {
      auto mean = before;
      scale_to_mean(mend::dtype_of<T>, mean.data(), mean.size(), ranks, simd);
      CHECK(test::same_bits(mean, expected));
    }
  }
}

TEST_CASE("floats stay floats") {
  const auto values = test::numbers<float>(100, 1);
  std::vector<float> into(100), expected = values;
  for (float& x : expected) x = one_nan(x);
  to_float(DType::f32, values.data(), into.data(), 100);
  CHECK(test::same_bits(into, expected));
  from_float(DType::f32, values.data(), into.data(), 100);
  CHECK(test::same_bits(into, expected));
}

TEST_CASE_TEMPLATE("a sum of squares has one order, whatever level and threads", T, float, double) {
  Workers two{2}, five{5};
  for (std::size_t n : lengths()) {
    CAPTURE(n);
    std::vector<T> x(n);
    for (std::size_t i = 0; i < n; ++i) x[i] = test::number<T>(i + n);
    double expected = 0;
    for (std::size_t begin = 0; begin < n; begin += 65536) {
      double sums[16] = {};
      for (std::size_t i = begin; i < std::min(n, begin + 65536); ++i) {
        volatile double square = static_cast<double>(x[i]) * static_cast<double>(x[i]);
        sums[(i - begin) % 16] += square;
      }
      for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
      expected += sums[0];
    }
    constexpr DType type = mend::dtype_of<T>;
    for (Simd simd : test::levels())
      for (Workers* workers : {static_cast<Workers*>(nullptr), &two, &five}) {
        const double found = sum_of_squares(type, x.data(), n, workers, simd);
        CHECK(std::bit_cast<std::uint64_t>(found) == std::bit_cast<std::uint64_t>(expected));
      }
  }
}

TEST_CASE("a sum of squares of half-precision numbers is that of their values") {
  for (DType type : {DType::bf16, DType::f16})
    for (std::size_t n : {0, 1, 15, 16, 17, 1000, 70001}) {
      std::vector<float> values(n);
      std::vector<std::uint16_t> halves(n);
      for (std::size_t i = 0; i < n; ++i) values[i] = test::number<float>(i, 8);
      from_float(type, values.data(), halves.data(), n);
      to_float(type, halves.data(), values.data(), n);
      for (Simd simd : test::levels())
        CHECK(sum_of_squares(type, halves.data(), n, nullptr, simd) ==
              sum_of_squares(DType::f32, values.data(), n, nullptr, Simd::baseline));
    }
}

TEST_CASE("a sum of squares that is not finite says so, with one NaN") {
  std::vector<float> x(100, 1.0f);
  x[50] = -std::numeric_limits<float>::infinity();
  CHECK(sum_of_squares(DType::f32, x.data(), x.size()) == std::numeric_limits<double>::infinity());
  x[51] = std::bit_cast<float>(0xffc00001);
  for (Simd simd : test::levels())
    CHECK(std::bit_cast<std::uint64_t>(
              sum_of_squares(DType::f32, x.data(), x.size(), nullptr, simd)) ==
          std::bit_cast<std::uint64_t>(std::numeric_limits<double>::quiet_NaN()));
}

TEST_CASE("one infinity or NaN is found anywhere, and nothing else is") {
  for (std::size_t n : {1, 3, 16, 63, 64, 65, 127, 4096, 4097, 9001}) {
    std::vector<float> f(n, std::numeric_limits<float>::max());
    std::vector<double> d(n, -std::numeric_limits<double>::max());
    std::vector<std::uint16_t> b(n, 0x7f7f), h(n, 0xfbff);  // the largest of each
    for (Simd simd : test::levels()) {
      CAPTURE(name_of(simd));
      CHECK(all_finite(DType::f32, f.data(), n, simd));
      CHECK(all_finite(DType::f64, d.data(), n, simd));
      CHECK(all_finite(DType::bf16, b.data(), n, simd));
      CHECK(all_finite(DType::f16, h.data(), n, simd));
      int missed = 0;
      for (std::size_t i = 0; i<n; i += n> 1000 ? 97 : 1) {
        f[i] =
            i % 2 == 0 ? std::numeric_limits<float>::infinity() : std::bit_cast<float>(0x7f800001);
        d[i] = i % 2 == 0 ? std::numeric_limits<double>::quiet_NaN()
                          : -std::numeric_limits<double>::infinity();
        b[i] = i % 2 == 0 ? 0x7f80 : 0xffff;
        h[i] = i % 2 == 0 ? 0x7c00 : 0xfc01;
        missed +=
            all_finite(DType::f32, f.data(), n, simd) + all_finite(DType::f64, d.data(), n, simd) +
            all_finite(DType::bf16, b.data(), n, simd) + all_finite(DType::f16, h.data(), n, simd);
        f[i] = 0;
        d[i] = 0;
        b[i] = 0;
        h[i] = 0;
      }
      CHECK(missed == 0);
    }
  }
  const std::uint32_t integer = 0x7f800000;
  CHECK(all_finite(DType::u32, &integer, 1));
  CHECK(all_finite(DType::f32, nullptr, 0));
}

TEST_CASE("what has no sum, mean or conversion is refused by name") {
  std::uint64_t x = 0;
  float f = 0;
  CHECK_THROWS_WITH_AS(accumulate(DType::boolean, &x, &x, 1),
                       "a sum needs a floating type, not BOOL", mend::OptionError);
  CHECK_THROWS_WITH_AS(scale_to_mean(DType::i32, &x, 1, 2), "a mean needs a floating type, not I32",
                       mend::OptionError);
  CHECK_THROWS_AS((void)sum_of_squares(DType::u8, &x, 1), mend::OptionError);
  CHECK_THROWS_AS(to_float(DType::f64, &x, &f, 1), mend::OptionError);
  CHECK_THROWS_AS(from_float(DType::f64, &f, &x, 1), mend::OptionError);
  CHECK_THROWS_AS(to_float(DType::i16, &x, &f, 1), mend::OptionError);
}
