#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace mend::cuda {

//! Values that one instruction loads or stores: sizeof(T) * count is 4, 8 or 16 bytes.
template <class T, unsigned count>
struct alignas(sizeof(T) * count) Vector {
  T values[count];

  //! from, to: aligned for the vector.
  __device__ static Vector load(const T* from) { return *reinterpret_cast<const Vector*>(from); }
  __device__ void store(T* to) const { *reinterpret_cast<Vector*>(to) = *this; }
};

//! Whether an address is a multiple of 16 bytes (or of another power of two).
__device__ inline bool aligned(const void* p, std::size_t bytes = 16) {
  return reinterpret_cast<std::uintptr_t>(p) % bytes == 0;
}

}  // namespace mend::cuda
