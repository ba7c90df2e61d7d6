#pragma once

#include <cuda_runtime.h>

#include <string>

#include "mend/core/source_location.hpp"
#include "mend/kernel/cuda/error.cuh"

namespace mend::cuda {

//! The device that this thread has chosen.
struct Device {
  int index;
  std::string name;
  int processors;  //!< streaming multiprocessors

  static constexpr int oldest = 8;  //!< major compute capability that mend's kernels need

  //! Throws DeviceError where there is none, or one below compute capability 8.0. Blocks: for the
  //! start of the CUDA runtime, the first time.
  [[nodiscard]] static Device current(SourceLocation at = SourceLocation::current()) {
    int index = 0;
    check(cudaGetDevice(&index), at);
    cudaDeviceProp device;
    check(cudaGetDeviceProperties(&device, index), at);
    if (device.major < oldest)
      throw DeviceError{std::string{device.name} + " has compute capability " +
                            std::to_string(device.major) + "." + std::to_string(device.minor) +
                            "; mend needs 8.0 or newer: use another device, or train on the host",
                        cudaSuccess, at};
    return {index, device.name, device.multiProcessorCount};
  }
};

}  // namespace mend::cuda
