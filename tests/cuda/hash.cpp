#include <mend/kernel/cuda/hash.cuh>

#include <doctest/doctest.h>

#include <mend/core/hash.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/device.hpp"

TEST_CASE("hashes are those of the host, for every size and alignment") {
  const test::Stream stream;
  for (std::size_t shift : {0, 1, 2, 4, 8, 15}) {
    std::vector<test::OnDevice<std::uint8_t>> device;
    std::vector<mend::cuda::span<const std::byte>> tensors;
    std::vector<mend::Hash128> host;
    for (std::size_t n : {0, 1, 7, 8, 9, 15, 16, 17, 100, 4096, 65535, 65536, 65537, 200003}) {
      std::vector<std::uint8_t> bytes(n);
      for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::uint8_t>(test::mix(n + i));
      host.push_back(mend::hash_bytes(std::as_bytes(std::span{bytes})));
      device.emplace_back(bytes, shift);
      tensors.push_back(device.back().bytes());
    }
    mend::cuda::Hashes hashes{tensors, stream};
    for (int again = 0; again < 2; ++again) {
      hashes.compute_async(stream);
      CHECK(hashes.read(stream) == host);
    }
  }
}

TEST_CASE("a hash sees one bit, and the order of words") {
  const test::Stream stream;
  std::vector<std::uint64_t> words(1000, 1);
  const auto hash = [&] {
    const test::OnDevice<std::uint64_t> device{words};
    mend::cuda::Hashes hashes{{device.bytes()}, stream};
    hashes.compute_async(stream);
    return hashes.read(stream)[0];
  };
  words[5] = 2;
  const auto before = hash();
  words[5] = 1, words[6] = 2;
  const auto moved = hash();
  CHECK(!(before == moved));
  words[999] ^= 1;
  CHECK(!(hash() == moved));
}
