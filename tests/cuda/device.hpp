#pragma once

// Tests of the device side run twice: on the emulator (tests/cuda/emulator, found as
// <cuda_runtime.h> by a plain C++ compiler) and, built by nvcc, on a device (tests/cuda/run.sh).

#include <cuda_runtime.h>

#include <mend/core/dtype.hpp>
#include <mend/kernel/cuda/buffer.cuh>
#include <mend/kernel/cuda/copy.cuh>
#include <mend/kernel/cuda/error.cuh>

#include <cstddef>
#include <span>
#include <vector>

#include "kernel/numbers.hpp"

namespace test {

//! A stream of the test's own.
class Stream {
 public:
  Stream() { mend::cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() {
    if (cudaStreamDestroy(stream_) != cudaSuccess) (void)cudaGetLastError();
  }
  operator cudaStream_t() const { return stream_; }  // NOLINT
  void wait() const { mend::cuda::check(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

//! An array on the device, `shift` elements behind an aligned address.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values, std::size_t shift = 0)
      : buffer_{values.size() + shift}, shift_{shift} {
    Stream stream;
    mend::cuda::copy_async<T>(std::span<const T>{values}, span(), stream);
    stream.wait();
  }
  [[nodiscard]] T* data() const { return buffer_.data() + shift_; }
  [[nodiscard]] std::size_t size() const { return buffer_.size() - shift_; }
  [[nodiscard]] mend::cuda::span<T> span() const { return {data(), size()}; }
  [[nodiscard]] mend::cuda::span<std::byte> bytes() const {
    return {reinterpret_cast<std::byte*>(data()), size() * sizeof(T)};
  }
  //! After all that is on the stream.
  [[nodiscard]] std::vector<T> read(const Stream& stream) const {
    std::vector<T> values(size());
    mend::cuda::copy_async<T>(mend::cuda::span<const T>{span()}, std::span{values}, stream);
    stream.wait();
    return values;
  }

 private:
  mend::cuda::Buffer<T> buffer_;
  std::size_t shift_;
};

//! Random bit patterns, NaNs and all.
inline std::vector<std::uint16_t> patterns(std::size_t n, std::uint64_t seed) {
  std::vector<std::uint16_t> v(n);
  for (std::size_t i = 0; i < n; ++i) v[i] = static_cast<std::uint16_t>(mix(mix(seed) + i));
  return v;
}

}  // namespace test
