#pragma once

// Found in the place of CUDA's own header: what mend's device side uses of the runtime API and of
// the device functions, on the CPU. See fibers.hpp and emulator.hpp.

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "emulator.hpp"

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

using cudaStream_t = CUstream_st*;
using cudaEvent_t = CUevent_st*;
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
struct cudaDeviceProp {
  char name[256];
  int major, minor, multiProcessorCount;
};
struct cudaLaunchAttribute {};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};
inline constexpr unsigned cudaEventDefault = 0, cudaEventDisableTiming = 2;
inline constexpr unsigned cudaStreamNonBlocking = 1;

// Device functions. A product is kept from being fused into a sum as on the host.

namespace emulator {
template <class T>
T rounded(T x) {
#if defined(__x86_64__)
  asm("" : "+x"(x));
#elif defined(__aarch64__)
  asm("" : "+w"(x));
#else
  asm("" : "+m"(x));
#endif
  return x;
}
template <class T>
std::uint64_t to_word(T value) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t word = 0;
  std::memcpy(&word, &value, sizeof value);
  return word;
}
template <class T>
T from_word(std::uint64_t word) {
  T value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}
}  // namespace emulator

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return emulator::rounded(a * b); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return emulator::rounded(a * b); }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline double __dsqrt_rn(double a) { return std::sqrt(a); }
inline unsigned __float_as_uint(float a) { return std::bit_cast<unsigned>(a); }
inline float __uint_as_float(unsigned a) { return std::bit_cast<float>(a); }
inline long long __double_as_longlong(double a) { return std::bit_cast<long long>(a); }
inline double __longlong_as_double(long long a) { return std::bit_cast<double>(a); }
inline int __popc(unsigned a) { return std::popcount(a); }
inline int __ffs(int a) { return __builtin_ffs(a); }

#define EMULATOR_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()
inline void __syncthreads(EMULATOR_SITE) {
  emulator::Machine::get().block_barrier({"__syncthreads", file, line});
}
inline void __syncwarp(unsigned mask = 0xffffffff, EMULATOR_SITE) {
  emulator::Machine::get().warp({"__syncwarp", file, line}, mask, 0, -1);
}
inline unsigned __activemask() { return emulator::Machine::get().active_mask(); }
inline unsigned __ballot_sync(unsigned mask, int predicate, EMULATOR_SITE) {
  return static_cast<unsigned>(emulator::Machine::get().warp({"__ballot_sync", file, line}, mask,
                                                             predicate != 0 ? 1 : 0, -1));
}
inline int __any_sync(unsigned mask, int predicate, EMULATOR_SITE) {
  return emulator::Machine::get().warp({"__any_sync", file, line}, mask, predicate != 0 ? 1 : 0,
                                       -1) != 0;
}
template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int = 32, EMULATOR_SITE) {
  return emulator::from_word<T>(emulator::Machine::get().warp({"__shfl_sync", file, line}, mask,
                                                              emulator::to_word(value), lane % 32));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int = 32, EMULATOR_SITE) {
  emulator::Machine& machine = emulator::Machine::get();
  return emulator::from_word<T>(machine.warp({"__shfl_xor_sync", file, line}, mask,
                                             emulator::to_word(value),
                                             static_cast<int>(machine.lane()) ^ lanes));
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int = 32, EMULATOR_SITE) {
  emulator::Machine& machine = emulator::Machine::get();
  const unsigned from = machine.lane() + lanes;
  return emulator::from_word<T>(machine.warp({"__shfl_down_sync", file, line}, mask,
                                             emulator::to_word(value),
                                             static_cast<int>(from < 32 ? from : machine.lane())));
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned lanes, int = 32, EMULATOR_SITE) {
  emulator::Machine& machine = emulator::Machine::get();
  const unsigned me = machine.lane();
  return emulator::from_word<T>(machine.warp({"__shfl_up_sync", file, line}, mask,
                                             emulator::to_word(value),
                                             static_cast<int>(me >= lanes ? me - lanes : me)));
}

template <class T>
T atomicAdd(T* to, std::type_identity_t<T> value) {
  return std::exchange(*to, *to + value);
}
template <class T>
T atomicOr(T* to, std::type_identity_t<T> value) {
  return std::exchange(*to, *to | value);
}
template <class T>
T atomicMax(T* to, std::type_identity_t<T> value) {
  return std::exchange(*to, std::max(*to, value));
}
template <class T>
T atomicExch(T* to, std::type_identity_t<T> value) {
  return std::exchange(*to, value);
}

// The runtime API.

inline const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    default: return "cudaErrorOther";
  }
}
inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorInvalidValue ? "invalid argument" : "some other error";
}
inline cudaError_t cudaGetLastError() { return emulator::Device::get().take_last(); }
inline cudaError_t cudaDriverGetVersion(int* version) {
  *version = emulator::Device::get().driver;
  return cudaSuccess;
}

inline cudaError_t cudaGetDevice(int* device) {
  return emulator::Device::get().call([&] { return *device = 0, cudaSuccess; });
}
inline cudaError_t cudaSetDevice(int device) {
  auto& d = emulator::Device::get();
  return d.call([&] { return device < d.count ? cudaSuccess : cudaErrorInvalidDevice; });
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  auto& d = emulator::Device::get();
  return d.call([&] {
    *properties = {"", d.major, d.minor, d.processors};
    d.name.copy(properties->name, sizeof properties->name - 1);
    return cudaSuccess;
  });
}
inline cudaError_t cudaDeviceSynchronize() {
  auto& d = emulator::Device::get();
  return d.call([&] { return d.drain_all(), cudaSuccess; });
}

template <class T>
cudaError_t cudaMalloc(T** p, std::size_t n) {
  auto& d = emulator::Device::get();
  return d.call([&] { return d.allocate(reinterpret_cast<void**>(p), n, true); });
}
inline cudaError_t cudaFree(void* p) {
  auto& d = emulator::Device::get();
  return d.call([&] { return d.release(p, true); });
}
template <class T>
cudaError_t cudaMallocHost(T** p, std::size_t n) {
  auto& d = emulator::Device::get();
  return d.call([&] { return d.allocate(reinterpret_cast<void**>(p), n, false); });
}
inline cudaError_t cudaFreeHost(void* p) {
  auto& d = emulator::Device::get();
  return d.call([&] { return d.release(p, false); });
}

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  auto& d = emulator::Device::get();
  return d.call([&] {
    *stream = d.make_stream((flags & cudaStreamNonBlocking) == 0);
    return cudaSuccess;
  });
}
inline cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, 0);
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  auto& d = emulator::Device::get();
  return d.call([&] { return d.drop_stream(stream), cudaSuccess; });
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  auto& d = emulator::Device::get();
  return d.call([&] {
    if (stream == nullptr)
      d.drain_blocking();
    else
      d.drain(stream);
    return cudaSuccess;
  });
}

inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  auto& d = emulator::Device::get();
  return d.call([&] { return *event = d.make_event(), cudaSuccess; });
}
inline cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
  auto& d = emulator::Device::get();
  return d.call([&] { return d.drop_event(event), cudaSuccess; });
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  auto& d = emulator::Device::get();
  return d.call([&] {
    auto at = std::make_shared<std::chrono::steady_clock::time_point>();
    d.enqueue(stream, [at] { *at = std::chrono::steady_clock::now(); });
    *event = {stream, stream == nullptr ? 0 : stream->begun, at};
    return cudaSuccess;
  });
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  auto& d = emulator::Device::get();
  return d.call([&] {
    if (event->stream != nullptr) d.drain(event->stream, event->after);
    return cudaSuccess;
  });
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned = 0) {
  auto& d = emulator::Device::get();
  return d.call([&] {
    if (event->stream != nullptr)
      d.enqueue(stream, [&d, e = *event] { d.drain(e.stream, e.after); });
    return cudaSuccess;
  });
}
inline cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  return emulator::Device::get().call([&] {
    *milliseconds = std::chrono::duration<float, std::milli>(*to->at - *from->at).count();
    return cudaSuccess;
  });
}

inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t n, cudaMemcpyKind kind,
                                   cudaStream_t stream = nullptr) {
  auto& d = emulator::Device::get();
  return d.call([&] {
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (n == 0) return cudaSuccess;
    if (d.holds(to, 1) != to_device || d.holds(from, 1) != from_device)
      return cudaErrorInvalidValue;
    if ((to_device && !d.holds(to, n)) || (from_device && !d.holds(from, n)))
      return cudaErrorInvalidValue;
    const bool staged = !from_device && !d.holds(from, n, false);
    const bool waits = !to_device && !d.holds(to, n, false);  // for pageable memory
    if (staged) {
      std::vector<std::byte> bytes(n);
      std::memcpy(bytes.data(), from, n);
      d.enqueue(stream, [to, b = std::move(bytes)] { std::memcpy(to, b.data(), b.size()); });
    } else {
      d.enqueue(stream, [=] { std::memmove(to, from, n); });
    }
    if (waits && stream != nullptr) d.drain(stream);
    return cudaSuccess;
  });
}
inline cudaError_t cudaMemcpy(void* to, const void* from, std::size_t n, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, n, kind, nullptr);
}
inline cudaError_t cudaMemsetAsync(void* to, int value, std::size_t n,
                                   cudaStream_t stream = nullptr) {
  auto& d = emulator::Device::get();
  return d.call([&] {
    if (n == 0) return cudaSuccess;
    if (!d.holds(to, n)) return cudaErrorInvalidValue;
    d.enqueue(stream, [=] { std::memset(to, value, n); });
    return cudaSuccess;
  });
}

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  auto& d = emulator::Device::get();
  return d.call([&] {
    const dim3 g = config->gridDim, b = config->blockDim;
    if (g.x == 0 || g.y == 0 || g.z == 0 || b.x * b.y * b.z == 0 || b.x * b.y * b.z > 1024)
      return cudaErrorInvalidConfiguration;
    d.enqueue(config->stream, [=, held = std::tuple<std::decay_t<Parameters>...>{arguments...}] {
      emulator::Machine::get().run(g, b, [&] { std::apply(kernel, held); });
    });
    return cudaSuccess;
  });
}
