#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "mend/core/dtype.hpp"
#include "mend/core/error.hpp"
#include "mend/kernel/cuda/device_set.cuh"
#include "mend/kernel/host/lanes.hpp"

namespace mend::cuda {

//! How the elements of a floating dtype lie in memory and become numbers in a kernel.
template <DType type>
struct Stored {
  using Element = std::conditional_t<type == DType::f32, float,
                                     std::conditional_t<type == DType::f64, double, std::uint16_t>>;
  using Value = std::conditional_t<type == DType::f64, double, float>;
  using Number = kernel::Lanes<Value, kernel::DeviceSet>;

  __device__ static Number load(const Element* from) {
    if constexpr (type == DType::bf16)
      return Number::load_bf16(from);
    else if constexpr (type == DType::f16)
      return Number::load_f16(from);
    else
      return Number::load(from);
  }
  __device__ static void store(Element* to, const Number& x) {
    if constexpr (type == DType::bf16)
      x.store_bf16(to);
    else if constexpr (type == DType::f16)
      x.store_f16(to);
    else
      x.store(to);
  }
};

template <class T>
inline constexpr T quiet_nan = std::numeric_limits<T>::quiet_NaN();

//! The one quiet NaN in place of every other.
template <class T>
__device__ kernel::Lanes<T, kernel::DeviceSet> one_nan(
    const kernel::Lanes<T, kernel::DeviceSet>& x) {
  return select(x == x, x, kernel::Lanes<T, kernel::DeviceSet>{quiet_nan<T>});
}

//! In a kernel: calls body(Stored<type>{}) for a floating dtype, nothing for another.
template <class Body>
__device__ void for_floating(DType type, const Body& body) {
  switch (type) {
    case DType::f32: return body(Stored<DType::f32>{});
    case DType::f64: return body(Stored<DType::f64>{});
    case DType::bf16: return body(Stored<DType::bf16>{});
    case DType::f16: return body(Stored<DType::f16>{});
    default: return;
  }
}
//! The same for the types that a gradient of values T may have.
template <class T, class Body>
__device__ void for_gradient(DType type, const Body& body) {
  if constexpr (std::is_same_v<T, double>)
    body(Stored<DType::f64>{});
  else if (type == DType::bf16)
    body(Stored<DType::bf16>{});
  else if (type == DType::f16)
    body(Stored<DType::f16>{});
  else
    body(Stored<DType::f32>{});
}

//! On the host: calls body(Stored<type>{}) for a floating dtype. Throws OptionError for another;
//! what: "a sum".
template <class Body>
auto with_floating(DType type, const char* what, const Body& body) {
  switch (type) {
    case DType::f32: return body(Stored<DType::f32>{});
    case DType::f64: return body(Stored<DType::f64>{});
    case DType::bf16: return body(Stored<DType::bf16>{});
    case DType::f16: return body(Stored<DType::f16>{});
    default:
      throw OptionError{std::string{what} + " needs a floating type, not " +
                        std::string{name_of(type)}};
  }
}

}  // namespace mend::cuda
