#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

#include "mend/core/source_location.hpp"
#include "mend/kernel/cuda/error.cuh"

namespace mend::cuda {

//! Threads of a block, in every kernel that needs no other number.
inline constexpr unsigned block_size = 256;

//! Where a kernel runs: `blocks` blocks of `threads` threads, after what is on the stream already.
class Launch {
 public:
  Launch(std::size_t blocks, cudaStream_t stream, unsigned threads = block_size,
         SourceLocation at = SourceLocation::current())
      : blocks_{blocks}, stream_{stream}, threads_{threads}, at_{at} {}

  //! Starts the kernel; nothing for 0 blocks. Blocks: no. Throws DeviceError.
  template <class... Parameters>
  void operator()(void (*kernel)(Parameters...),
                  std::type_identity_t<Parameters>... arguments) const {
    if (blocks_ == 0) return;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks_));
    config.blockDim = dim3(threads_);
    config.stream = stream_;
    check(cudaLaunchKernelEx(&config, kernel, arguments...), at_);
  }

 private:
  std::size_t blocks_;
  cudaStream_t stream_;
  unsigned threads_;
  SourceLocation at_;
};

}  // namespace mend::cuda
