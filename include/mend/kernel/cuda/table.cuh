#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "mend/core/dtype.hpp"
#include "mend/kernel/cuda/buffer.cuh"
#include "mend/kernel/cuda/copy.cuh"
#include "mend/kernel/cuda/error.cuh"

namespace mend::cuda {

//! A list in device memory, one entry a tensor, for kernels that go over all of them in one launch:
//! each tensor is cut into chunks of chunk_size elements, and every block takes one. An entry has
//! its number of elements in `n` (of which 0 makes no chunk); what it points to stays the
//! caller's, and stays where it is.
template <class Entry, std::size_t chunk_size>
class Table {
 public:
  struct Chunk {
    std::uint32_t entry, part;
  };
  //! What a kernel gets.
  struct View {
    const Entry* entries;
    const Chunk* chunks;

    //! What a block works on: elements [begin, end) of one entry.
    struct Share {
      std::uint32_t index;
      Entry entry;
      std::size_t begin, end;
    };
    __device__ Share share_of_block() const {
      const Chunk chunk = chunks[blockIdx.x];
      const Entry entry = entries[chunk.entry];
      const std::size_t begin = chunk.part * chunk_size, rest = entry.n - begin;
      return {chunk.entry, entry, begin, begin + (rest < chunk_size ? rest : chunk_size)};
    }
  };

  Table() = default;
  //! Blocks: until the list is on the device. Throws DeviceError.
  explicit Table(std::vector<Entry> entries, cudaStream_t stream) : entries_{std::move(entries)} {
    std::vector<Chunk> chunks;
    first_chunk_.reserve(entries_.size() + 1);
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      first_chunk_.push_back(chunks.size());
      for (std::size_t at = 0; at < entries_[i].n; at += chunk_size)
        chunks.push_back(
            {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(at / chunk_size)});
    }
    first_chunk_.push_back(chunks.size());
    on_device_ = Buffer<Entry>{entries_.size()};
    chunks_ = Buffer<Chunk>{chunks.size()};
    copy_async<Entry>(std::span<const Entry>{entries_}, on_device_, stream);
    copy_async<Chunk>(std::span<const Chunk>{chunks}, chunks_, stream);
    check(cudaStreamSynchronize(stream));
  }

  [[nodiscard]] View view() const { return {on_device_.data(), chunks_.data()}; }
  //! The same list on the host.
  [[nodiscard]] std::span<const Entry> entries() const { return entries_; }
  //! The number of chunks: the blocks of a launch.
  [[nodiscard]] std::size_t chunks() const { return chunks_.size(); }
  //! Where the chunks of a tensor begin among all of them; of size() tensors, where they end.
  [[nodiscard]] std::span<const std::size_t> first_chunk() const { return first_chunk_; }

 private:
  std::vector<Entry> entries_;
  std::vector<std::size_t> first_chunk_;
  Buffer<Entry> on_device_;
  Buffer<Chunk> chunks_;
};

//! Any tensor that is only read.
struct ConstTensor {
  const void* data;
  DType type;
  std::size_t n;
};

}  // namespace mend::cuda
