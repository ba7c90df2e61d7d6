#pragma once

#include <cuda_runtime.h>

#include "mend/core/policy.hpp"
#include "mend/kernel/cuda/device.cuh"
#include "mend/kernel/cuda/error.cuh"

namespace mend {

//! Orders mend's work on the device after what the trainer has put on this stream, and before what
//! it puts there later. The stream stays the trainer's and must outlive the session.
class OnStream {
 public:
  using kind = mend::kind::device;

  //! Throws DeviceError where this thread's device is missing or too old.
  explicit OnStream(cudaStream_t stream)
      : stream_{stream}, device_{cuda::Device::current().index} {}

  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  //! Blocks until all work on the stream is done; from then on the calling thread uses the stream's
  //! device. Throws DeviceError: also for a fault in a kernel that was started before.
  void wait() const {
    cuda::check(cudaSetDevice(device_));
    cuda::check(cudaStreamSynchronize(stream_));
  }

 private:
  cudaStream_t stream_;
  int device_;
};
static_assert(Is<OnStream, kind::device>);

}  // namespace mend
