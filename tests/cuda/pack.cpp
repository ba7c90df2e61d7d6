#include <mend/kernel/cuda/pack.cuh>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/device.hpp"

TEST_CASE("tensors of any size and alignment become one buffer, and tensors again") {
  const test::Stream stream;
  std::vector<std::vector<std::uint8_t>> host;
  std::vector<test::OnDevice<std::uint8_t>> device;
  std::vector<mend::cuda::span<std::byte>> tensors;
  for (std::size_t shift : {0, 1, 4, 12})
    for (std::size_t n : {0, 1, 3, 16, 17, 1000, 65536, 70001}) {
      std::vector<std::uint8_t> bytes(n);
      for (std::size_t i = 0; i < n; ++i)
        bytes[i] = static_cast<std::uint8_t>(test::mix(shift * 100 + n + i));
      host.push_back(bytes);
      device.emplace_back(bytes, shift);
      tensors.push_back(device.back().bytes());
    }
  const mend::cuda::Packing packing{tensors, stream};
  const test::OnDevice<std::uint8_t> packed{std::vector<std::uint8_t>(packing.size(), 0xee)};
  packing.gather_async(packed.bytes(), stream);

  const auto found = packed.read(stream);
  std::vector<std::uint8_t> expected(packing.size(), 0xee);
  for (std::size_t i = 0; i < host.size(); ++i) {
    CHECK(packing.offset(i) % mend::cuda::Packing::alignment == 0);
    std::copy(host[i].begin(), host[i].end(),
              expected.begin() + static_cast<std::ptrdiff_t>(packing.offset(i)));
  }
  CHECK(found == expected);

  for (const auto& t : tensors) mend::cuda::check(cudaMemsetAsync(t.data(), 0, t.size(), stream));
  packing.scatter_async(packed.bytes(), stream);
  for (std::size_t i = 0; i < host.size(); ++i) CHECK(device[i].read(stream) == host[i]);
}

TEST_CASE("nothing to pack is an empty buffer") {
  const test::Stream stream;
  const mend::cuda::Packing packing{{}, stream};
  CHECK(packing.size() == 0);
  packing.gather_async({}, stream);
  packing.scatter_async({}, stream);
  stream.wait();
}
