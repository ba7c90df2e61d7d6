#include <mend/kernel/cuda/norms.cuh>

#include <doctest/doctest.h>

#include <mend/core/error.hpp>
#include <mend/kernel/host/reduce.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "cuda/device.hpp"

using mend::DType;
using mend::cuda::ConstTensor;

namespace {

const std::vector<std::size_t> lengths{0,    1,    15,   16,    17,    100,   2047,  2048,
                                       2049, 4096, 5000, 65536, 65537, 67584, 200001};

template <class T>
std::vector<T> finite_numbers(std::size_t n, std::uint64_t seed) {
  std::vector<T> v(n);
  for (std::size_t i = 0; i < n; ++i) v[i] = test::number<T>(test::mix(seed) + i);
  return v;
}

//! Tensors of all lengths in one computation.
template <class T>
void sums_like_host(DType type, std::size_t shift, const auto& values_of) {
  const test::Stream stream;
  std::vector<test::OnDevice<T>> device;
  std::vector<ConstTensor> tensors;
  std::vector<double> host;
  for (std::size_t n : lengths) {
    const std::vector<T> values = values_of(n);
    host.push_back(mend::kernel::sum_of_squares(type, values.data(), n));
    device.emplace_back(values, shift);
    tensors.push_back({device.back().data(), type, n});
  }
  mend::cuda::SquareSums sums{tensors, stream};
  for (int again = 0; again < 2; ++again) {
    sums.compute_async(stream);
    CHECK(test::same_bits(sums.read(stream), host));
  }
}

}  // namespace

TEST_CASE("sums of squares have the host's bits") {
  for (std::size_t shift : {0, 1}) {
    sums_like_host<float>(DType::f32, shift,
                          [](std::size_t n) { return finite_numbers<float>(n, n); });
    sums_like_host<double>(DType::f64, shift,
                           [](std::size_t n) { return finite_numbers<double>(n, n); });
    const auto halves = [](DType type) {
      return [type](std::size_t n) {
        const auto wide = finite_numbers<float>(n, n);
        std::vector<std::uint16_t> narrow(n);
        mend::kernel::from_float(type, wide.data(), narrow.data(), n);
        return narrow;
      };
    };
    sums_like_host<std::uint16_t>(DType::bf16, shift, halves(DType::bf16));
    sums_like_host<std::uint16_t>(DType::f16, shift, halves(DType::f16));
  }
}

TEST_CASE("sums that are not finite say so, with one NaN") {
  const test::Stream stream;
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> one(70000, 1.0f), two = one;
  one[66000] = -infinity;
  two[3] = infinity;
  two[40000] = -std::numeric_limits<float>::quiet_NaN();
  const test::OnDevice<float> a{one}, b{two};
  mend::cuda::SquareSums sums{{{a.data(), DType::f32, a.size()}, {b.data(), DType::f32, b.size()}},
                              stream};
  sums.compute_async(stream);
  CHECK(test::same_bits(sums.read(stream), {std::numeric_limits<double>::infinity(),
                                            std::numeric_limits<double>::quiet_NaN()}));
}

TEST_CASE("integers have no sum of squares") {
  const test::Stream stream;
  CHECK_THROWS_WITH_AS((mend::cuda::SquareSums{{{nullptr, DType::u8, 0}}, stream}),
                       "a sum of squares needs a floating type, not U8", mend::OptionError);
}
