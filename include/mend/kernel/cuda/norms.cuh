#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "mend/core/dtype.hpp"
#include "mend/core/error.hpp"
#include "mend/kernel/cuda/buffer.cuh"
#include "mend/kernel/cuda/copy.cuh"
#include "mend/kernel/cuda/device_set.cuh"
#include "mend/kernel/cuda/error.cuh"
#include "mend/kernel/cuda/launch.cuh"
#include "mend/kernel/cuda/stored.cuh"
#include "mend/kernel/cuda/table.cuh"
#include "mend/kernel/cuda/vector.cuh"
#include "mend/kernel/cuda/warp.cuh"

namespace mend::cuda {

namespace detail {

// The order of kernel/host/reduce.hpp: blocks of 65,536 elements; in a block, element i goes to
// running sum i % 16; the sixteen are added pairwise; the blocks' sums are added in order.
inline constexpr std::size_t squares_block = std::size_t{1} << 16;
inline constexpr unsigned running_sums = 16;

// What adds up `sums` sums over the same elements. The first warps add, sixteen threads a sum; the
// others read and square. One half of the shared memory is added while the other is filled.
template <unsigned sums>
struct Adding {
  static constexpr unsigned adders = (sums * running_sums + warp_size - 1) / warp_size * warp_size;
  static constexpr unsigned readers = block_size, threads = adders + readers;
  static constexpr unsigned at_once = 2048 / sums / 256 * 256;  // elements
  using Squares = double[2][sums][at_once];
  static_assert(at_once != 0 && threads <= 1024, "more norms than a block of threads can add");
};

template <class Value>
__device__ double squared(Value x) {
  const auto wide = static_cast<double>(x);
  return __dmul_rn(wide, wide);
}

//! The squares of elements [begin, end) of a tensor, zeros behind them up to `at_once`.
template <DType type>
__device__ void read_squares(const void* data, std::size_t begin, std::size_t end, double* into) {
  using As = Stored<type>;
  using Element = typename As::Element;
  using Value = typename As::Value;
  using A = Adding<1>;
  constexpr unsigned width = 16 / sizeof(Element);
  const auto* x = static_cast<const Element*>(data);
  const unsigned me = threadIdx.x - A::adders;
  if (aligned(data) && end - begin == A::at_once) {
    for (unsigned at = me * width; at < A::at_once; at += A::readers * width) {
      const auto v = Vector<Element, width>::load(x + begin + at);
      for (unsigned i = 0; i < width; ++i) {
        Value value;
        As::load(&v.values[i]).store(&value);
        into[at + i] = squared(value);
      }
    }
  } else {
    for (unsigned at = me; at < A::at_once; at += A::readers) {
      Value value = 0;
      if (at < end - begin) As::load(x + begin + at).store(&value);
      into[at] = squared(value);
    }
  }
}

//! Adds up [begin, end), at most squares_block elements, in the fixed order. read(at, end, half)
//! puts the squares of elements [at, end) in that half, with all threads but the adders. The sum
//! number threadIdx.x / running_sums is in each first of running_sums threads.
template <unsigned sums, class Read>
__device__ double sum_block(std::size_t begin, std::size_t end,
                            typename Adding<sums>::Squares& squares, const Read& read) {
  using A = Adding<sums>;
  const auto stop = [=](std::size_t at) { return end - at < A::at_once ? end : at + A::at_once; };
  const unsigned which = threadIdx.x / running_sums, mine = threadIdx.x % running_sums;
  double sum = 0;
  if (threadIdx.x >= A::adders) read(begin, stop(begin), 0);
  __syncthreads();
  unsigned half = 0;
  for (std::size_t at = begin; at < end; at += A::at_once, half ^= 1) {
    if (threadIdx.x >= A::adders) {
      const std::size_t next = at + A::at_once;
      if (next < end) read(next, stop(next), half ^ 1);
    } else if (which < sums) {
      constexpr unsigned ahead = 16;  // reads under way while sums wait for one another
      static_assert(A::at_once % (ahead * running_sums) == 0, "a part of a read");
      for (unsigned i = 0; i < A::at_once; i += ahead * running_sums) {
        double next[ahead];
        for (unsigned j = 0; j < ahead; ++j)
          next[j] = squares[half][which][i + j * running_sums + mine];
        for (unsigned j = 0; j < ahead; ++j) sum = __dadd_rn(sum, next[j]);
      }
    }
    __syncthreads();
  }
  if (threadIdx.x < A::adders)
    for (unsigned lanes = running_sums / 2; lanes > 0; lanes /= 2)
      sum = __dadd_rn(sum, __shfl_down_sync(whole_warp, sum, lanes));
  return sum;
}

using SquaresTable = Table<ConstTensor, squares_block>;

template <class View>
__global__ void __launch_bounds__(Adding<1>::threads) sum_blocks(View table, double* sums) {
  __shared__ typename Adding<1>::Squares squares;
  const auto share = table.share_of_block();
  const double sum = sum_block<1>(
      share.begin, share.end, squares, [&](std::size_t at, std::size_t stop, unsigned half) {
        for_floating(share.entry.type, [&]<DType type>(Stored<type>) {
          read_squares<type>(share.entry.data, at, stop, squares[half][0]);
        });
      });
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

//! Adds the sums of each tensor's blocks, in order: a warp for each of its `sums` sums.
template <unsigned sums, class Number>
__global__ void __launch_bounds__(warp_size)
    sum_tensors(const Number* blocks, const std::size_t* first, Number* totals) {
  const std::size_t tensor = blockIdx.x / sums, which = blockIdx.x % sums;
  const std::size_t begin = first[tensor], end = first[tensor + 1];
  Number total = 0;
  for (std::size_t at = begin; at < end; at += warp_size) {
    const Number mine = at + lane() < end ? blocks[(at + lane()) * sums + which] : 0;
    for (unsigned l = 0; l < warp_size; ++l) {
      const Number next = __shfl_sync(whole_warp, mine, static_cast<int>(l));
      if (at + l < end) total = __dadd_rn(total, next);
    }
  }
  if (lane() == 0) totals[blockIdx.x] = total == total ? total : quiet_nan<Number>;
}

//! What both classes below keep on the device: the sums of blocks and of tensors.
template <unsigned sums>
struct BlockSums {
  Buffer<std::size_t> first;  // block of each tensor
  Buffer<double> blocks, totals;

  template <class Entry>
  BlockSums(const Table<Entry, squares_block>& table, cudaStream_t stream)
      : first{table.first_chunk().size()},
        blocks{table.chunks() * sums},
        totals{table.entries().size() * sums} {
    copy_async<std::size_t>(table.first_chunk(), first, stream);
    check(cudaStreamSynchronize(stream));
  }
  void add_up_async(cudaStream_t stream) {
    Launch{totals.size(), stream, warp_size}(&sum_tensors<sums, double>, blocks.data(),
                                             first.data(), totals.data());
  }
  [[nodiscard]] std::vector<double> read(cudaStream_t stream) const {
    std::vector<double> on_host(totals.size());
    copy_async<double>(totals, std::span{on_host}, stream);
    check(cudaStreamSynchronize(stream));
    return on_host;
  }
};

}  // namespace detail

//! The sums of squares of tensors in device memory, to the bits of kernel::sum_of_squares. Owns the
//! sums; the tensors are the caller's and stay where they are, aligned for their types.
class SquareSums {
 public:
  //! Blocks: until the list is on the device. Throws DeviceError, and OptionError for integers.
  SquareSums(std::vector<ConstTensor> tensors, cudaStream_t stream)
      : table_{checked(std::move(tensors)), stream}, sums_{table_, stream} {}

  //! Blocks: no. Throws DeviceError. Cost: one read.
  void compute_async(cudaStream_t stream) {
    using View = detail::SquaresTable::View;
    Launch{table_.chunks(), stream, detail::Adding<1>::threads}(&detail::sum_blocks<View>,
                                                                table_.view(), sums_.blocks.data());
    sums_.add_up_async(stream);
  }
  //! One sum a tensor, for kernels that follow on the stream.
  [[nodiscard]] span<const double> sums() const { return sums_.totals; }
  //! What the last compute_async found. Blocks: until it has. Throws DeviceError.
  [[nodiscard]] std::vector<double> read(cudaStream_t stream) const { return sums_.read(stream); }

 private:
  static std::vector<ConstTensor> checked(std::vector<ConstTensor> tensors) {
    for (const ConstTensor& t : tensors) with_floating(t.type, "a sum of squares", [](auto) {});
    return tensors;
  }

  detail::SquaresTable table_;
  detail::BlockSums<1> sums_;
};

}  // namespace mend::cuda
