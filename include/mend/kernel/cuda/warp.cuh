#pragma once

#include <cuda_runtime.h>

namespace mend::cuda {

inline constexpr unsigned warp_size = 32, whole_warp = 0xffffffff;

//! This thread's place in its warp.
__device__ inline unsigned lane() { return threadIdx.x % warp_size; }

//! The sum over a warp of integers, or of another type whose order of sums does not matter; in lane
//! 0.
template <class T>
__device__ T sum_of_warp(T x) {
  for (unsigned lanes = warp_size / 2; lanes > 0; lanes /= 2)
    x += __shfl_down_sync(whole_warp, x, lanes);
  return x;
}

}  // namespace mend::cuda
