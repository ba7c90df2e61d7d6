#include <mend/kernel/cuda/buffer.cuh>

#include <doctest/doctest.h>

#include <mend/kernel/cuda/copy.cuh>
#include <mend/kernel/cuda/device.cuh>
#include <mend/kernel/cuda/on_stream.cuh>
#include <mend/kernel/cuda/span.cuh>
#include <mend/kernel/cuda/staged.cuh>

#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/device.hpp"

namespace cuda = mend::cuda;

static_assert(!std::is_copy_constructible_v<cuda::Buffer<float>>);
static_assert(std::is_convertible_v<cuda::span<float>, cuda::span<const float>>);
static_assert(!std::is_convertible_v<cuda::span<const float>, cuda::span<float>>);
static_assert(!std::is_convertible_v<cuda::span<float>, std::span<float>>);
static_assert(!std::is_constructible_v<cuda::span<float>, std::span<float>>);

TEST_CASE("a buffer owns its memory and hands it on") {
  cuda::Buffer<double> a{3}, none;
  CHECK(none.data() == nullptr);
  CHECK(none.size() == 0);
  double* memory = a.data();
  CHECK(reinterpret_cast<std::uintptr_t>(memory) % 256 == 0);
  cuda::Buffer<double> b{std::move(a)};
  CHECK(b.data() == memory);
  CHECK(a.data() == nullptr);  // NOLINT: what a move leaves
  b = cuda::Buffer<double>{5};
  CHECK(b.size() == 5);
}

TEST_CASE("copies go there, across and back") {
  const test::Stream stream;
  const std::vector<int> values{1, 2, 3, 4};
  cuda::Buffer<int> a{4}, b{4};
  std::vector<int> read(4);
  cuda::copy_async<int>(std::span{values}, a, stream);
  cuda::copy_async<int>(a, b, stream);
  cuda::copy_async<int>(b, std::span{read}, stream);
  stream.wait();
  CHECK(read == values);
  CHECK(cuda::span<int>{b}.subspan(1, 2).data() == b.data() + 1);
  CHECK(cuda::span<int>{b}.size_bytes() == 16);
}

TEST_CASE("what is uploaded is read in the order of the stream") {
  const test::Stream stream;
  cuda::Staged<int> staged{2};
  cuda::Buffer<int> seen{20};
  for (int i = 0; i < 10; ++i) {
    std::vector<int> values{i, -i};
    staged.upload_async(values, stream);
    cuda::copy_async<int>(cuda::span<const int>{staged.data(), 2},
                          cuda::span<int>{seen}.subspan(2 * static_cast<std::size_t>(i), 2),
                          stream);
    values.assign(2, 99);
  }
  cuda::Staged<int> moved{std::move(staged)};
  std::vector<int> read(20);
  cuda::copy_async<int>(seen, std::span{read}, stream);
  stream.wait();
  for (int i = 0; i < 10; ++i) {
    CHECK(read[2 * static_cast<std::size_t>(i)] == i);
    CHECK(read[2 * static_cast<std::size_t>(i) + 1] == -i);
  }
}

TEST_CASE("a stream says where and when") {
  const test::Stream stream;
  const mend::OnStream policy{stream};
  CHECK(policy.stream() == static_cast<cudaStream_t>(stream));
  cuda::Buffer<int> a{1};
  const std::vector<int> seven{7};
  std::vector<int> read(1);
  cuda::copy_async<int>(std::span{seven}, a, policy.stream());
  cuda::copy_async<int>(a, std::span{read}, policy.stream());
  policy.wait();
  CHECK(read == seven);
  CHECK(!cuda::Device::current().name.empty());
  CHECK(cuda::Device::current().processors > 0);
}
