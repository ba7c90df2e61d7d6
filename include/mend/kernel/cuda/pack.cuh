#pragma once

#include <cuda_runtime.h>

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "mend/kernel/cuda/launch.cuh"
#include "mend/kernel/cuda/span.cuh"
#include "mend/kernel/cuda/table.cuh"
#include "mend/kernel/cuda/vector.cuh"

namespace mend::cuda {

namespace detail {

struct PackedBytes {
  std::byte* data;
  std::size_t n, offset;
};
using PackTable = Table<PackedBytes, std::size_t{1} << 16>;

//! [begin, end) of one array into the other, `Unit` by `Unit`, and the bytes that are left over.
template <class Unit>
__device__ void move_chunk(std::byte* to, const std::byte* from, std::size_t begin,
                           std::size_t end) {
  const std::size_t whole = begin + (end - begin) / sizeof(Unit) * sizeof(Unit);
  for (std::size_t at = begin + sizeof(Unit) * threadIdx.x; at < whole;
       at += sizeof(Unit) * blockDim.x)
    *reinterpret_cast<Unit*>(to + at) = *reinterpret_cast<const Unit*>(from + at);
  for (std::size_t at = whole + threadIdx.x; at < end; at += blockDim.x) to[at] = from[at];
}

template <bool gather>
__global__ void __launch_bounds__(block_size) move_bytes(PackTable::View table, std::byte* packed) {
  const auto share = table.share_of_block();
  std::byte* to = gather ? packed + share.entry.offset : share.entry.data;
  const std::byte* from = gather ? share.entry.data : packed + share.entry.offset;
  if (aligned(to) && aligned(from))
    move_chunk<Vector<std::uint32_t, 4>>(to, from, share.begin, share.end);
  else if (aligned(to, 4) && aligned(from, 4))
    move_chunk<std::uint32_t>(to, from, share.begin, share.end);
  else
    move_chunk<std::byte>(to, from, share.begin, share.end);
}

}  // namespace detail

//! Tensors in device memory that travel as one buffer: each begins at the next multiple of 16
//! bytes. Owns the list only; the tensors are the caller's and stay where they are.
class Packing {
 public:
  static constexpr std::size_t alignment = 16;

  //! Blocks: until the list is on the device. Throws DeviceError.
  Packing(const std::vector<span<std::byte>>& tensors, cudaStream_t stream) {
    std::vector<detail::PackedBytes> entries;
    for (const auto& t : tensors) {
      entries.push_back({t.data(), t.size(), size_});
      size_ += (t.size() + alignment - 1) / alignment * alignment;
    }
    table_ = detail::PackTable{std::move(entries), stream};
  }

  //! The bytes of a buffer that holds all.
  [[nodiscard]] std::size_t size() const { return size_; }
  //! Where a tensor begins in it.
  [[nodiscard]] std::size_t offset(std::size_t tensor) const {
    return table_.entries()[tensor].offset;
  }

  //! Copies all tensors into the buffer, of size() bytes; the gaps between them keep what they
  //! held. Blocks: no. Throws DeviceError. Cost: 2 accesses per byte, one launch.
  void gather_async(span<std::byte> into, cudaStream_t stream) const {
    assert(into.size() == size_);
    Launch{table_.chunks(), stream}(&detail::move_bytes<true>, table_.view(), into.data());
  }
  //! And back.
  void scatter_async(span<const std::byte> from, cudaStream_t stream) const {
    assert(from.size() == size_);
    Launch{table_.chunks(), stream}(&detail::move_bytes<false>, table_.view(),
                                    const_cast<std::byte*>(from.data()));
  }

 private:
  std::size_t size_ = 0;
  detail::PackTable table_;
};

}  // namespace mend::cuda
