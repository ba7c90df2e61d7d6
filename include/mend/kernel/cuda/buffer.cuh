#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>
#include <utility>

#include "mend/core/source_location.hpp"
#include "mend/kernel/cuda/error.cuh"
#include "mend/kernel/cuda/span.cuh"

namespace mend::cuda {

//! Device memory for `size` elements, aligned to 256 bytes; its contents are unspecified at first.
//! Owns it; moves, does not copy. Freeing it waits for the device. Throws DeviceError when the
//! device's memory is full.
template <class T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>, "device memory holds plain values");

 public:
  Buffer() = default;
  explicit Buffer(std::size_t size, SourceLocation at = SourceLocation::current()) : size_{size} {
    if (size != 0) check(cudaMalloc(&data_, size * sizeof(T)), at);
  }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer{std::move(other)}.swap(*this);
    return *this;
  }
  ~Buffer() {
    // On a lost device this fails, and there is nothing left to free.
    if (data_ != nullptr && cudaFree(data_) != cudaSuccess) (void)cudaGetLastError();
  }

  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }
  operator span<T>() const { return {data_, size_}; }        // NOLINT: a buffer is its elements
  operator span<const T>() const { return {data_, size_}; }  // NOLINT

 private:
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace mend::cuda
