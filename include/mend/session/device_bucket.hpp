#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "mend/core/byte_count.hpp"
#include "mend/core/dtype.hpp"

namespace mend {

//! Stands for a device policy in a session whose tensors are all in host memory.
struct HostMemory {};

//! A tensor of a bucket in a device's memory, as its update sees it. Pointers are the device's.
template <std::size_t slot_count>
struct DeviceTensor {
  struct Copy {
    std::byte* data;
    DType dtype;
  };

  DType dtype, gradient_dtype;
  std::size_t count;
  std::size_t group;  //!< whose coefficients
  std::byte* value;
  std::array<std::byte*, slot_count> slots;
  const std::byte* gradient;
  std::vector<Copy> copies;
};

//! How a device, Policy, runs rule R over the tensors of a bucket; Undo says what it keeps. For
//! OnStream it is in session/device_bucket.cuh, which a trainer includes by mend_cuda.cuh.
//!
//!   DeviceBucket(policy, tensors)
//!   apply(coefficients of each group, gradient scale)
//!       updates all, rounds copies anew
//!   revert()
//!       takes that back, to the same bits; nothing where it was not applied since drop
//!   drop()
//!       the update stands
//!   refresh()
//!       rounds copies anew
//!   memory()
//!       bytes that the undo policy holds
template <class Policy, class R, class Undo>
class DeviceBucket;

template <class R, class Undo>
class DeviceBucket<HostMemory, R, Undo> {  // there is none
 public:
  DeviceBucket(const HostMemory&, const std::vector<DeviceTensor<R::slots.size()>>&) {}
  void apply(const std::vector<typename R::Coefficients>&, double) {}
  void revert() {}
  void drop() {}
  void refresh() {}
  [[nodiscard]] ByteCount memory() const { return {}; }
};

//! Zeroed memory of a device, aligned for a cache line: `DeviceArena<Policy>{policy, bytes}` owns
//! it, `data()` is a pointer of the device.
template <class Policy>
class DeviceArena;

template <>
class DeviceArena<HostMemory> {  // there is none
 public:
  DeviceArena() = default;
  DeviceArena(const HostMemory&, std::size_t) {}
  [[nodiscard]] std::byte* data() const { return nullptr; }
};

}  // namespace mend
