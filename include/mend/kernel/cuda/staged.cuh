#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include "mend/kernel/cuda/buffer.cuh"
#include "mend/kernel/cuda/error.cuh"

namespace mend::cuda {

//! A small array that the host fills anew for every launch: the kernels of a stream read it on the
//! device in the order in which they were started. Owns pinned host and device memory of `size`
//! elements.
template <class T>
class Staged {
 public:
  explicit Staged(std::size_t size) : on_device_{size} {
    if (size != 0) check(cudaMallocHost(&pinned_, size * sizeof(T)));
    if (const cudaError_t error = cudaEventCreateWithFlags(&read_, cudaEventDisableTiming);
        error != cudaSuccess) {
      if (pinned_ != nullptr) (void)cudaFreeHost(pinned_);
      check(error);
    }
  }
  Staged(Staged&& other) noexcept
      : on_device_{std::move(other.on_device_)},
        pinned_{std::exchange(other.pinned_, nullptr)},
        read_{std::exchange(other.read_, nullptr)} {}
  Staged& operator=(Staged&&) = delete;
  ~Staged() {
    if (read_ == nullptr) return;  // moved from
    const cudaError_t read = cudaEventSynchronize(read_), event = cudaEventDestroy(read_);
    const cudaError_t memory = pinned_ != nullptr ? cudaFreeHost(pinned_) : cudaSuccess;
    // On a lost device they fail, and there is nothing left to free.
    if (read != cudaSuccess || event != cudaSuccess || memory != cudaSuccess)
      (void)cudaGetLastError();
  }

  //! What kernels that are started on the stream from now on will read. values: `size` or fewer.
  //! Blocks: only while the copy of the call before this one is under way. Throws DeviceError.
  void upload_async(std::span<const T> values, cudaStream_t stream) {
    check(cudaEventSynchronize(read_));
    if (values.empty()) return;
    std::memcpy(pinned_, values.data(), values.size_bytes());
    check(cudaMemcpyAsync(on_device_.data(), pinned_, values.size_bytes(), cudaMemcpyHostToDevice,
                          stream));
    check(cudaEventRecord(read_, stream));
  }
  [[nodiscard]] const T* data() const { return on_device_.data(); }
  [[nodiscard]] std::size_t size() const { return on_device_.size(); }

 private:
  static_assert(std::is_trivially_copyable_v<T>, "device memory holds plain values");

  Buffer<T> on_device_;
  T* pinned_ = nullptr;
  cudaEvent_t read_ = nullptr;
};

}  // namespace mend::cuda
