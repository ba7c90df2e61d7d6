#pragma once

#include <cuda_runtime.h>

#include <cassert>
#include <cstddef>
#include <span>
#include <type_traits>

#include "mend/core/source_location.hpp"
#include "mend/kernel/cuda/error.cuh"
#include "mend/kernel/cuda/span.cuh"

namespace mend::cuda {

// copy_async(from, to, stream): `from` and `to` have the same size and do not overlap; both must
// live until the stream has come past. Blocks: no between device and pinned memory; for ordinary
// host memory the runtime waits, as for any cudaMemcpyAsync. Throws DeviceError.

//! Host to device.
template <class T>
void copy_async(std::span<const std::type_identity_t<T>> from, span<T> to, cudaStream_t stream,
                SourceLocation at = SourceLocation::current()) {
  assert(from.size() == to.size());
  if (from.empty()) return;
  check(cudaMemcpyAsync(to.data(), from.data(), from.size_bytes(), cudaMemcpyHostToDevice, stream),
        at);
}

//! Device to host.
template <class T>
void copy_async(span<const T> from, std::span<std::type_identity_t<T>> to, cudaStream_t stream,
                SourceLocation at = SourceLocation::current()) {
  assert(from.size() == to.size());
  if (from.empty()) return;
  check(cudaMemcpyAsync(to.data(), from.data(), from.size_bytes(), cudaMemcpyDeviceToHost, stream),
        at);
}

//! Device to device.
template <class T>
void copy_async(span<const T> from, span<std::type_identity_t<T>> to, cudaStream_t stream,
                SourceLocation at = SourceLocation::current()) {
  assert(from.size() == to.size());
  if (from.empty()) return;
  check(
      cudaMemcpyAsync(to.data(), from.data(), from.size_bytes(), cudaMemcpyDeviceToDevice, stream),
      at);
}

//! Writes one byte everywhere. Blocks: no. Throws DeviceError.
template <class T>
void fill_async(span<T> to, int byte, cudaStream_t stream,
                SourceLocation at = SourceLocation::current()) {
  if (!to.empty()) check(cudaMemsetAsync(to.data(), byte, to.size_bytes(), stream), at);
}

}  // namespace mend::cuda
