#include <mend/kernel/cuda/reduce.cuh>

#include <doctest/doctest.h>

#include <mend/core/error.hpp>
#include <mend/kernel/host/reduce.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/device.hpp"

using mend::DType;

namespace {

const std::vector<std::size_t> lengths{0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 63, 255, 1025, 9001};

//! accumulate for one type, aligned and not.
template <class T>
void adds(DType type, const std::vector<T>& from, const std::vector<T>& into) {
  const test::Stream stream;
  for (std::size_t shift : {0, 1, 2}) {
    auto host = into;
    mend::kernel::accumulate(type, host.data(), from.data(), host.size());
    const test::OnDevice<T> a{from, shift}, b{into, shift};
    mend::cuda::accumulate_async(type, b.data(), a.data(), b.size(), stream);
    CHECK(test::same_bits(b.read(stream), host));
  }
}
template <class T>
void adds_integers() {
  for (std::size_t n : lengths) {
    std::vector<T> from(n), into(n);
    for (std::size_t i = 0; i < n; ++i) {
      from[i] = static_cast<T>(test::mix(i));
      into[i] = static_cast<T>(test::mix(~i));
    }
    adds(mend::dtype_of<T>, from, into);
  }
}

}  // namespace

TEST_CASE("sums have the host's bits") {
  for (std::size_t n : lengths) {
    CAPTURE(n);
    adds(DType::f32, test::numbers<float>(n, 1), test::numbers<float>(n, 2));
    adds(DType::f64, test::numbers<double>(n, 3), test::numbers<double>(n, 4));
    adds(DType::bf16, test::patterns(n, 5), test::patterns(n, 6));
    adds(DType::f16, test::patterns(n, 7), test::patterns(n, 8));
  }
  adds_integers<std::int8_t>();
  adds_integers<std::uint16_t>();
  adds_integers<std::int32_t>();
  adds_integers<std::uint64_t>();
}

TEST_CASE("means have the host's bits") {
  const test::Stream stream;
  const auto check = [&]<class T>(DType type, std::vector<T> host) {
    const test::OnDevice<T> device{host};
    mend::cuda::scale_to_mean_async(type, device.data(), host.size(), 3, stream);
    mend::kernel::scale_to_mean(type, host.data(), host.size(), 3);
    CHECK(test::same_bits(device.read(stream), host));
  };
  for (std::size_t n : lengths) {
    check(DType::f32, test::numbers<float>(n, 1));
    check(DType::f64, test::numbers<double>(n, 2));
    check(DType::bf16, test::patterns(n, 3));
    check(DType::f16, test::patterns(n, 4));
  }
}

TEST_CASE("conversions have the host's bits, for every 16-bit pattern") {
  const test::Stream stream;
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  for (std::size_t shift : {0, 1})
    for (DType type : {DType::bf16, DType::f16}) {
      std::vector<float> wide(all.size());
      mend::kernel::to_float(type, all.data(), wide.data(), all.size());
      const test::OnDevice<std::uint16_t> narrow{all, shift};
      const test::OnDevice<float> into{std::vector<float>(all.size()), shift};
      mend::cuda::to_float_async(type, narrow.data(), into.data(), all.size(), stream);
      CHECK(test::same_bits(into.read(stream), wide));

      // What lies between two 16-bit numbers, just above, and the special values.
      std::vector<float> values = wide;
      for (std::size_t i = 0; i + 1 < wide.size(); ++i) {
        values[i] = (wide[i] + wide[i + 1]) / 2;
        if (i % 2 == 0) values[i] = std::nextafter(values[i], 1e38f);
      }
      for (float x : test::special_values<float>()) values.push_back(x);
      std::vector<std::uint16_t> rounded(values.size());
      mend::kernel::from_float(type, values.data(), rounded.data(), values.size());
      const test::OnDevice<float> from{values, shift};
      const test::OnDevice<std::uint16_t> to{std::vector<std::uint16_t>(values.size()), shift};
      mend::cuda::from_float_async(type, from.data(), to.data(), values.size(), stream);
      CHECK(test::same_bits(to.read(stream), rounded));
    }
}

TEST_CASE("what has no sum, mean or conversion is refused by name") {
  CHECK_THROWS_WITH_AS(mend::cuda::accumulate_async(DType::boolean, nullptr, nullptr, 0, nullptr),
                       "a sum needs a floating type, not BOOL", mend::OptionError);
  CHECK_THROWS_WITH_AS(mend::cuda::scale_to_mean_async(DType::i32, nullptr, 0, 2, nullptr),
                       "a mean needs a floating type, not I32", mend::OptionError);
  CHECK_THROWS_AS(mend::cuda::to_float_async(DType::f64, nullptr, nullptr, 0, nullptr),
                  mend::OptionError);
  CHECK_THROWS_AS(mend::cuda::from_float_async(DType::f64, nullptr, nullptr, 0, nullptr),
                  mend::OptionError);
  CHECK_THROWS_AS(mend::cuda::from_float_async(DType::u8, nullptr, nullptr, 0, nullptr),
                  mend::OptionError);
}
