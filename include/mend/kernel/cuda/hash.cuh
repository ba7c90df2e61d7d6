#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "mend/core/hash.hpp"
#include "mend/kernel/cuda/buffer.cuh"
#include "mend/kernel/cuda/copy.cuh"
#include "mend/kernel/cuda/error.cuh"
#include "mend/kernel/cuda/launch.cuh"
#include "mend/kernel/cuda/span.cuh"
#include "mend/kernel/cuda/table.cuh"
#include "mend/kernel/cuda/vector.cuh"
#include "mend/kernel/cuda/warp.cuh"

namespace mend::cuda {

namespace detail {

struct HashedBytes {
  const std::byte* data;
  std::size_t n;
};
using HashTable = Table<HashedBytes, std::size_t{1} << 16>;

//! The word of 8 bytes at `at`; bytes from n on are zeros. Any alignment.
__device__ inline std::uint64_t word_at(const std::byte* data, std::size_t at, std::size_t n) {
  std::uint64_t word = 0;
  const std::size_t size = n - at < 8 ? n - at : 8;
  for (std::size_t i = 0; i < size; ++i)
    word |= static_cast<std::uint64_t>(data[at + i]) << (8 * i);
  return word;
}

//! Adds what a chunk's words contribute to its tensor's sums. Their order does not matter.
template <class View>
__global__ void __launch_bounds__(block_size) add_to_hashes(View table, HashSum* sums) {
  const auto share = table.share_of_block();
  HashSum sum;
  std::size_t whole = share.begin;
  if (aligned(share.entry.data)) {
    whole = share.begin + (share.end - share.begin) / 16 * 16;
    const auto* words = reinterpret_cast<const std::uint64_t*>(share.entry.data);
    for (std::size_t at = share.begin + 16 * threadIdx.x; at < whole; at += 16 * blockDim.x) {
      const auto two = Vector<std::uint64_t, 2>::load(words + at / 8);
      sum.add(two.values[0], at / 8);
      sum.add(two.values[1], at / 8 + 1);
    }
  }
  for (std::size_t at = whole + 8 * threadIdx.x; at < share.end; at += 8 * blockDim.x)
    sum.add(word_at(share.entry.data, at, share.end), at / 8);

  using Word = unsigned long long;
  const Word a = sum_of_warp(static_cast<Word>(sum.a)), b = sum_of_warp(static_cast<Word>(sum.b));
  if (lane() == 0) {
    atomicAdd(reinterpret_cast<Word*>(&sums[share.index].a), a);
    atomicAdd(reinterpret_cast<Word*>(&sums[share.index].b), b);
  }
}

}  // namespace detail

//! The hashes of tensors in device memory: those of hash_bytes, for StateHash. Owns its sums; the
//! tensors are the caller's and stay where they are.
class Hashes {
 public:
  //! Blocks: until the list is on the device. Throws DeviceError.
  Hashes(const std::vector<span<const std::byte>>& tensors, cudaStream_t stream)
      : table_{entries(tensors), stream}, sums_{tensors.size()} {}

  //! Hashes all tensors as the stream finds them. Blocks: no. Throws DeviceError. Cost: one read.
  void compute_async(cudaStream_t stream) {
    fill_async<HashSum>(sums_, 0, stream);
    Launch{table_.chunks(), stream}(&detail::add_to_hashes<detail::HashTable::View>, table_.view(),
                                    sums_.data());
  }
  //! What the last compute_async found, one hash a tensor. Blocks: until it has. Throws
  //! DeviceError.
  [[nodiscard]] std::vector<Hash128> read(cudaStream_t stream) const {
    std::vector<HashSum> sums(sums_.size());
    copy_async<HashSum>(sums_, std::span{sums}, stream);
    check(cudaStreamSynchronize(stream));
    std::vector<Hash128> hashes(sums.size());
    for (std::size_t i = 0; i < sums.size(); ++i)
      hashes[i] = finish(sums[i], table_.entries()[i].n);
    return hashes;
  }

 private:
  static std::vector<detail::HashedBytes> entries(
      const std::vector<span<const std::byte>>& tensors) {
    std::vector<detail::HashedBytes> entries;
    for (const auto& t : tensors) entries.push_back({t.data(), t.size()});
    return entries;
  }

  detail::HashTable table_;
  Buffer<HashSum> sums_;
};

}  // namespace mend::cuda
