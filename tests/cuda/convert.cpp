#include <mend/kernel/cuda/convert.cuh>

#include <doctest/doctest.h>

#include <mend/core/error.hpp>
#include <mend/kernel/host/reduce.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/device.hpp"

using mend::DType;
using mend::cuda::Conversions;

TEST_CASE("copies of many tensors are rounded, and widened, as on the host") {
  const test::Stream stream;
  const std::vector<std::size_t> sizes{0, 1, 3, 4, 1000, 16384, 16391};
  std::vector<std::vector<float>> values;
  std::vector<test::OnDevice<float>> wide;
  std::vector<test::OnDevice<std::uint16_t>> narrow;
  std::vector<mend::cuda::Conversion> list;
  std::vector<std::vector<std::uint16_t>> expected;
  for (std::size_t shift : {0, 1})
    for (DType type : {DType::bf16, DType::f16})
      for (std::size_t n : sizes) {
        values.push_back(test::numbers<float>(n, n + shift));
        wide.emplace_back(values.back(), shift);
        narrow.emplace_back(std::vector<std::uint16_t>(n), shift);
        list.push_back({wide.back().data(), narrow.back().data(), type, n});
        expected.emplace_back(n);
        mend::kernel::from_float(type, values.back().data(), expected.back().data(), n);
      }
  const Conversions conversions{list, stream};
  conversions.round_async(stream);
  for (std::size_t i = 0; i < list.size(); ++i) {
    CHECK(test::same_bits(narrow[i].read(stream), expected[i]));
    CHECK(test::same_bits(wide[i].read(stream), values[i]));
  }
  conversions.widen_async(stream);
  for (std::size_t i = 0; i < list.size(); ++i) {
    std::vector<float> back(list[i].n);
    mend::kernel::to_float(list[i].type, expected[i].data(), back.data(), list[i].n);
    CHECK(test::same_bits(wide[i].read(stream), back));
  }
}

TEST_CASE("a copy may be in float too, and in nothing else") {
  const test::Stream stream;
  const std::vector<float> values{1, -0.0f, 3};
  const test::OnDevice<float> from{values}, to{std::vector<float>(3)};
  Conversions{{{from.data(), to.data(), DType::f32, 3}}, stream}.round_async(stream);
  CHECK(test::same_bits(to.read(stream), values));
  CHECK_THROWS_WITH_AS((Conversions{{{nullptr, nullptr, DType::f64, 0}}, stream}),
                       "a conversion of floats does not make F64", mend::OptionError);
  CHECK_THROWS_WITH_AS((Conversions{{{nullptr, nullptr, DType::i8, 0}}, stream}),
                       "a conversion of floats needs a floating type, not I8", mend::OptionError);
}
