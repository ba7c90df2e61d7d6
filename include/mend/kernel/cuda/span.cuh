#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

#include "mend/config.hpp"
#include "mend/core/train_state.hpp"
#include "mend/kernel/cuda/error.cuh"

namespace mend::cuda {

//! CUDA's memory as the host reads and writes it; on the default stream, waiting for its end. What
//! other streams do with the memory must have ended before.
inline constexpr DeviceMemory device_memory{
    [](const std::byte* from, std::byte* to, std::size_t n) {
      check(cudaMemcpy(to, from, n, cudaMemcpyDeviceToHost));
    },
    [](const std::byte* from, std::byte* to, std::size_t n) {
      check(cudaMemcpy(to, from, n, cudaMemcpyHostToDevice));
      check(cudaStreamSynchronize(nullptr));  // the copy may return before it has come to its end
    }};

//! Elements in device memory, where a std::span means host memory. Owns nothing. The host cannot
//! read through it; in a kernel, data() is an ordinary pointer.
template <class T>
class span {
 public:
  using element_type = T;

  constexpr span() = default;
  MEND_RULE constexpr span(T* data, std::size_t size) : data_{data}, size_{size} {}
  template <class U>
    requires(std::is_convertible_v<U (*)[], T (*)[]>)
  MEND_RULE constexpr span(span<U> other) : data_{other.data()}, size_{other.size()} {}  // NOLINT

  [[nodiscard]] MEND_RULE constexpr T* data() const { return data_; }
  [[nodiscard]] MEND_RULE constexpr std::size_t size() const { return size_; }
  [[nodiscard]] MEND_RULE constexpr std::size_t size_bytes() const { return size_ * sizeof(T); }
  [[nodiscard]] MEND_RULE constexpr bool empty() const { return size_ == 0; }
  //! The `count` elements from `at` on, which must exist.
  [[nodiscard]] MEND_RULE constexpr span subspan(std::size_t at, std::size_t count) const {
    return {data_ + at, count};
  }
  //! How the host reaches it; see TrainState::add.
  [[nodiscard]] static const DeviceMemory& memory() { return device_memory; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace mend::cuda
