#pragma once

// The device that the emulator shows to the runtime API of cuda_runtime.h, and the faults that
// tests give it. Work on a stream waits until somebody waits for it, so that a missing wait is
// seen. Host code that touches device memory is an error under ASan.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "fibers.hpp"

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorECCUncorrectable = 214,
  cudaErrorUnsupportedPtxVersion = 222,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchTimeout = 702,
  cudaErrorAssert = 710,
  cudaErrorHardwareStackError = 714,
  cudaErrorIllegalInstruction = 715,
  cudaErrorMisalignedAddress = 716,
  cudaErrorInvalidAddressSpace = 717,
  cudaErrorInvalidPc = 718,
  cudaErrorLaunchFailure = 719,
  cudaErrorUnknown = 999
};

//! A stream: work in order.
struct CUstream_st {
  std::deque<std::function<void()>> work;
  std::uint64_t begun = 0, done = 0;
  bool blocking = true;  // the default stream waits for it
};
struct CUevent_st {
  CUstream_st* stream = nullptr;
  std::uint64_t after = 0;  // complete when the stream has done so many
  std::shared_ptr<std::chrono::steady_clock::time_point> at;
};

namespace emulator {

class Device {
 public:
  // What it is.
  int count = 1, major = 9, minor = 0, processors = 4, driver = 13000;
  std::string name = "emulated device";
  std::size_t memory = std::size_t{1} << 30;

  static Device& get() {
    static Device device;
    return device;
  }
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() {  // what a failed cudaFree has left goes with the process
    for (const auto* all : {&device_, &pinned_})
      for (const auto& [p, n] : *all) std::free(p);
  }

  //! The call after `after` more calls of the API fails; sticky: so do all that follow it.
  void fail(cudaError_t error, int after = 0, bool sticky = false) {
    next_ = error;
    after_ = after;
    sticky_ = sticky;
  }
  //! As it was made, without its allocations.
  void repair() {
    count = 1, major = 9, minor = 0, driver = 13000;
    memory = std::size_t{1} << 30;
    next_ = last_ = cudaSuccess;
    sticky_ = false;
  }
  [[nodiscard]] std::size_t allocations() const { return device_.size() + pinned_.size(); }
  [[nodiscard]] std::uint64_t calls() const { return calls_; }

  // For the API.

  //! Begins a call: the fault that is due, or the body's own answer.
  template <class Body>
  cudaError_t call(const Body& body) {
    std::lock_guard lock{mutex_};
    ++calls_;
    if (next_ != cudaSuccess && after_-- <= 0) {
      const cudaError_t error = next_;
      if (!sticky_) next_ = cudaSuccess;
      return last_ = error;
    }
    if (driver < 13000) return last_ = cudaErrorInsufficientDriver;
    if (count == 0) return last_ = cudaErrorNoDevice;
    const cudaError_t error = body();
    return error == cudaSuccess ? error : last_ = error;
  }
  cudaError_t take_last() {
    const cudaError_t error = last_;
    last_ = sticky_ ? next_ : cudaSuccess;
    return error;
  }

  cudaError_t allocate(void** p, std::size_t n, bool on_device) {
    *p = nullptr;
    if (n == 0) return cudaSuccess;
    if (on_device && used_ + n > memory) return cudaErrorMemoryAllocation;
    if (::posix_memalign(p, alignment, n + guard) != 0) return cudaErrorMemoryAllocation;
    std::memset(*p, garbage, n + guard);
    (on_device ? device_ : pinned_)[static_cast<std::byte*>(*p)] = n;
    if (on_device) used_ += n;
    if (on_device) reach(static_cast<std::byte*>(*p), n, false);
    return cudaSuccess;
  }
  cudaError_t release(void* p, bool on_device) {
    if (p == nullptr) return cudaSuccess;
    auto& from = on_device ? device_ : pinned_;
    const auto at = from.find(static_cast<std::byte*>(p));
    if (at == from.end()) return cudaErrorInvalidValue;
    drain_all();
    reach(at->first, at->second, true);
    for (std::size_t i = 0; i < guard; ++i)
      if (at->first[at->second + i] != std::byte{garbage})
        throw KernelError{"a write past the end of device memory"};
    if (on_device) used_ -= at->second;
    from.erase(at);
    std::free(p);
    return cudaSuccess;
  }
  //! Whether [p, p + n) lies in one allocation.
  [[nodiscard]] bool holds(const void* p, std::size_t n, bool on_device = true) const {
    const auto& in = on_device ? device_ : pinned_;
    const auto* b = static_cast<const std::byte*>(p);
    auto at = in.upper_bound(const_cast<std::byte*>(b));
    if (n == 0) return true;
    if (at == in.begin()) return false;
    --at;
    return b + n <= at->first + at->second;
  }

  void enqueue(CUstream_st* stream, std::function<void()> work) {
    if (stream == nullptr) {
      drain_blocking();
      run(work);
      return;
    }
    stream->work.push_back(std::move(work));
    ++stream->begun;
  }
  void drain(CUstream_st* stream, std::uint64_t until = ~std::uint64_t{0}) {
    while (!stream->work.empty() && stream->done < until) {
      const auto work = std::move(stream->work.front());
      stream->work.pop_front();
      ++stream->done;
      run(work);
    }
  }
  void drain_all() {
    for (const auto& [stream, owned] : streams_) drain(stream);
  }
  //! What the default stream waits for: not the streams made with cudaStreamNonBlocking.
  void drain_blocking() {
    for (const auto& [stream, owned] : streams_)
      if (stream->blocking) drain(stream);
  }
  CUstream_st* make_stream(bool blocking) {
    auto stream = std::make_unique<CUstream_st>();
    stream->blocking = blocking;
    CUstream_st* p = stream.get();
    streams_[p] = std::move(stream);
    return p;
  }
  CUevent_st* make_event() {
    auto event = std::make_unique<CUevent_st>();
    CUevent_st* p = event.get();
    events_[p] = std::move(event);
    return p;
  }
  void drop_event(CUevent_st* event) { events_.erase(event); }
  void drop_stream(CUstream_st* stream) {
    drain(stream);
    streams_.erase(stream);
  }

 private:
  static constexpr std::size_t alignment = 256;
  static constexpr unsigned char garbage = 0xa5;  // what fresh memory holds
#if defined(EMULATOR_ASAN)
  static constexpr std::size_t guard = 0;  // ASan has its own
#else
  static constexpr std::size_t guard = 64;
#endif

  void run(const std::function<void()>& work) {
    for (const auto& [p, n] : device_) reach(p, n, true);
    struct Close {
      Device& device;
      ~Close() {
        for (const auto& [p, n] : device.device_) device.reach(p, n, false);
      }
    } close{*this};
    work();
  }
  void reach([[maybe_unused]] std::byte* p, [[maybe_unused]] std::size_t n,
             [[maybe_unused]] bool open) {
#if defined(EMULATOR_ASAN)
    if (open)
      __asan_unpoison_memory_region(p, n);
    else
      __asan_poison_memory_region(p, n);
#endif
  }

  std::recursive_mutex mutex_;
  std::map<std::byte*, std::size_t> device_, pinned_;
  std::map<CUstream_st*, std::unique_ptr<CUstream_st>> streams_;
  std::map<CUevent_st*, std::unique_ptr<CUevent_st>> events_;
  std::size_t used_ = 0;
  std::uint64_t calls_ = 0;
  cudaError_t next_ = cudaSuccess, last_ = cudaSuccess;
  int after_ = 0;
  bool sticky_ = false;
};

}  // namespace emulator
