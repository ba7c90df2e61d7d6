#include <mend/kernel/cuda/finite.cuh>

#include <doctest/doctest.h>

#include <mend/kernel/host/reduce.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "cuda/device.hpp"

using mend::DType;

namespace {

template <class T>
void finds_one(DType type, T largest, const std::vector<T>& not_finite) {
  const test::Stream stream;
  for (std::size_t n : {1, 7, 16, 1000, 33000})
    for (std::size_t shift : {0, 1}) {
      CAPTURE(n);
      std::vector<T> values(n, largest);
      const test::OnDevice<T> other{values};
      for (std::size_t bad : {std::size_t{0}, n / 2, n - 1})
        for (T x : not_finite) {
          values[bad] = x;
          const test::OnDevice<T> device{values, shift};
          values[bad] = largest;
          mend::cuda::FiniteCheck check{{{other.data(), type, n}, {device.data(), type, n}},
                                        stream};
          check.compute_async(stream);
          CHECK(!check.read(stream));
        }
      const test::OnDevice<T> device{values, shift};
      mend::cuda::FiniteCheck check{{{device.data(), type, n}, {nullptr, type, 0}}, stream};
      check.compute_async(stream);
      CHECK(check.read(stream));
    }
}

}  // namespace

TEST_CASE("one infinity or NaN is found anywhere, and nothing else is") {
  using Limits = std::numeric_limits<float>;
  finds_one<float>(DType::f32, Limits::max(),
                   {Limits::infinity(), std::bit_cast<float>(0xff800001)});
  finds_one<double>(DType::f64, -std::numeric_limits<double>::max(),
                    {-std::numeric_limits<double>::infinity()});
  finds_one<std::uint16_t>(DType::bf16, 0x7f7f, {0x7f80, 0xffff});
  finds_one<std::uint16_t>(DType::f16, 0xfbff, {0xfc00, 0x7c01});
}

TEST_CASE("integers are always finite, and a second check forgets the first") {
  const test::Stream stream;
  const test::OnDevice<std::uint32_t> integers{{0x7f800000, 0xffffffff}};
  mend::cuda::FiniteCheck none{{{integers.data(), DType::u32, 2}}, stream};
  none.compute_async(stream);
  CHECK(none.read(stream));

  const test::OnDevice<float> x{{std::numeric_limits<float>::infinity()}};
  mend::cuda::FiniteCheck check{{{x.data(), DType::f32, 1}}, stream};
  check.compute_async(stream);
  CHECK(!check.read(stream));
  mend::cuda::check(cudaMemsetAsync(x.data(), 0, sizeof(float), stream));
  check.compute_async(stream);
  CHECK(check.read(stream));
}
