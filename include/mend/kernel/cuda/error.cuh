#pragma once

#include <cuda_runtime.h>

#include <string>
#include <string_view>

#include "mend/core/error.hpp"
#include "mend/core/source_location.hpp"

namespace mend {

//! A device is missing, too old or full, or a call of the CUDA runtime failed.
class DeviceError : public Error {
 public:
  explicit DeviceError(std::string_view message, cudaError_t error = cudaSuccess,
                       SourceLocation where = SourceLocation::current())
      : Error{message, {}, where}, error_{error} {}

  //! What the runtime said; cudaSuccess where it was not asked.
  [[nodiscard]] cudaError_t cuda_error() const { return error_; }
  //! Whether every further call in this process will fail too: a replacement must take over.
  [[nodiscard]] bool device_lost() const {
    switch (error_) {
      case cudaErrorECCUncorrectable:
      case cudaErrorIllegalAddress:
      case cudaErrorLaunchTimeout:
      case cudaErrorAssert:
      case cudaErrorHardwareStackError:
      case cudaErrorIllegalInstruction:
      case cudaErrorMisalignedAddress:
      case cudaErrorInvalidAddressSpace:
      case cudaErrorInvalidPc:
      case cudaErrorLaunchFailure:
      case cudaErrorUnknown: return true;
      default: return false;
    }
  }

 private:
  cudaError_t error_;
};

namespace cuda {

//! What an error of the runtime means and what to do about it.
[[nodiscard]] inline std::string describe(cudaError_t error) {
  int driver = 0;
  switch (error) {
    case cudaErrorInsufficientDriver:
      if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        return "no NVIDIA driver is installed here: install one, or train on the host";
      return "the NVIDIA driver is older than the CUDA runtime of this program: update the driver";
    case cudaErrorNoDevice:
      return "there is no CUDA device here: look at CUDA_VISIBLE_DEVICES, or train on the host";
    case cudaErrorMemoryAllocation:
      return "the device's memory is full: keep less on it, or use a device with more";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
      return "this program was not compiled for this device: add its -gencode to nvcc's options";
    default: break;
  }
  std::string text =
      std::string{"CUDA: "} + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")";
  if (DeviceError{"", error}.device_lost())
    text += "; the device is lost to this process, which must end and be replaced";
  return text;
}

//! Throws a DeviceError unless the call succeeded, and clears the runtime's last error, so that the
//! next call does not report this one again.
inline void check(cudaError_t error, SourceLocation at = SourceLocation::current()) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();
  throw DeviceError{describe(error), error, at};
}

}  // namespace cuda
}  // namespace mend
