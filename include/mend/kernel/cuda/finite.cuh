#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "mend/core/dtype.hpp"
#include "mend/kernel/cuda/buffer.cuh"
#include "mend/kernel/cuda/copy.cuh"
#include "mend/kernel/cuda/error.cuh"
#include "mend/kernel/cuda/launch.cuh"
#include "mend/kernel/cuda/stored.cuh"
#include "mend/kernel/cuda/table.cuh"
#include "mend/kernel/cuda/vector.cuh"

namespace mend::cuda {

namespace detail {

using FiniteTable = Table<ConstTensor, 32768>;

//! Whether an element of [begin, end) that this thread takes is infinite or a NaN.
template <DType type>
__device__ bool finds_non_finite(const void* data, std::size_t begin, std::size_t end) {
  using As = Stored<type>;
  using Element = typename As::Element;
  using Number = typename As::Number;
  constexpr unsigned width = 16 / sizeof(Element);
  const auto* x = static_cast<const Element*>(data);
  Number sum{0};  // of zeros, or a NaN
  std::size_t whole = begin;
  if (aligned(data)) {
    whole = begin + (end - begin) / width * width;
    for (std::size_t at = begin + width * threadIdx.x; at < whole; at += width * blockDim.x) {
      const auto v = Vector<Element, width>::load(x + at);
      for (unsigned i = 0; i < width; ++i) {
        const Number number = As::load(&v.values[i]);
        sum = sum + (number - number);
      }
    }
  }
  for (std::size_t at = whole + threadIdx.x; at < end; at += blockDim.x) {
    const Number number = As::load(x + at);
    sum = sum + (number - number);
  }
  typename As::Value total;
  sum.store(&total);
  return !(total == 0);
}

template <class View>
__global__ void __launch_bounds__(block_size) find_non_finite(View table, int* found) {
  const auto share = table.share_of_block();
  bool here = false;  // integers are always finite
  for_floating(share.entry.type, [&]<DType type>(Stored<type>) {
    here = finds_non_finite<type>(share.entry.data, share.begin, share.end);
  });
  if (here) *found = 1;
}

}  // namespace detail

//! Whether all elements of some tensors in device memory are finite. The tensors are the caller's
//! and stay where they are, aligned for their types.
class FiniteCheck {
 public:
  //! Blocks: until the list is on the device. Throws DeviceError.
  FiniteCheck(std::vector<ConstTensor> tensors, cudaStream_t stream)
      : table_{std::move(tensors), stream}, found_{1} {}

  //! Blocks: no. Throws DeviceError. Cost: one read.
  void compute_async(cudaStream_t stream) {
    fill_async<int>(found_, 0, stream);
    Launch{table_.chunks(), stream}(&detail::find_non_finite<detail::FiniteTable::View>,
                                    table_.view(), found_.data());
  }
  //! False where the last compute_async met an infinity or a NaN. Blocks: until it is done. Throws
  //! DeviceError.
  [[nodiscard]] bool read(cudaStream_t stream) const {
    int found = 0;
    copy_async<int>(found_, std::span{&found, 1}, stream);
    check(cudaStreamSynchronize(stream));
    return found == 0;
  }

 private:
  detail::FiniteTable table_;
  Buffer<int> found_;
};

}  // namespace mend::cuda
