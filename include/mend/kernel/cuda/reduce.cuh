#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "mend/core/dtype.hpp"
#include "mend/core/error.hpp"
#include "mend/kernel/cuda/launch.cuh"
#include "mend/kernel/cuda/stored.cuh"
#include "mend/kernel/cuda/vector.cuh"

namespace mend::cuda {

namespace detail {

//! Elements whose wrapping sums are those of their unsigned type.
template <class T>
struct Integer {
  using Element = T;
  __device__ static T load(const T* from) { return *from; }
  __device__ static void store(T* to, T x) { *to = x; }
};
//! Numbers of which every NaN is written as the one quiet NaN.
template <class As>
struct OneNan : As {
  __device__ static void store(typename As::Element* to, const typename As::Number& x) {
    As::store(to, one_nan(x));
  }
};

struct Add {
  template <class Number>
  __device__ Number operator()(const Number& into, const Number& from) const {
    return static_cast<Number>(from + into);  // bytes and short integers are added as int
  }
};
struct DivideBy {
  int divisor;
  template <class Real>
  __device__ Real operator()(const Real& into, const Real&) const {
    return into / divisor;
  }
};
struct Assign {
  template <class Real>
  __device__ Real operator()(const Real&, const Real& from) const {
    return from;
  }
};

//! into = operation(into, from) for `width` elements from `at` on.
template <class Into, class From, unsigned width, class Operation>
__device__ void combine(typename Into::Element* into, const typename From::Element* from,
                        std::size_t at, const Operation& operation) {
  auto a = Vector<typename Into::Element, width>::load(into + at);
  const auto b = Vector<typename From::Element, width>::load(from + at);
  for (unsigned i = 0; i < width; ++i)
    Into::store(&a.values[i], operation(Into::load(&a.values[i]), From::load(&b.values[i])));
  a.store(into + at);
}

template <class Into, class From, class Operation>
__global__ void __launch_bounds__(block_size)
    elementwise(typename Into::Element* into, const typename From::Element* from, std::size_t n,
                Operation operation) {
  using A = typename Into::Element;
  using B = typename From::Element;
  constexpr unsigned width = 16 / (sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B));
  const std::size_t me = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::size_t all = std::size_t{gridDim.x} * blockDim.x;
  std::size_t whole = 0;
  if (aligned(into, width * sizeof(A)) && aligned(from, width * sizeof(B))) {
    whole = n / width * width;
    for (std::size_t at = me * width; at < whole; at += all * width)
      combine<Into, From, width>(into, from, at, operation);
  }
  for (std::size_t at = whole + me; at < n; at += all)
    combine<Into, From, 1>(into, from, at, operation);
}

template <class Into, class From, class Operation>
void start_elementwise(void* into, const void* from, std::size_t n, Operation operation,
                       cudaStream_t stream) {
  constexpr std::size_t elements_of_block = 8 * block_size, most = 1 << 20;
  const std::size_t blocks = (n + elements_of_block - 1) / elements_of_block;
  Launch{std::min(blocks, most), stream}(
      &elementwise<Into, From, Operation>, static_cast<typename Into::Element*>(into),
      static_cast<const typename From::Element*>(from), n, operation);
}

}  // namespace detail

// The verbs of kernel/host/reduce.hpp on device memory, to the same bits. Arrays are aligned for
// their elements; best to 16 bytes. Blocks: no. Throws DeviceError, and OptionError for a type that
// has no such sum, mean or conversion.

//! into = from + into. Floating types round once (bf16 and f16 in float, then to nearest even) and
//! every NaN becomes the one quiet NaN; integers wrap. No overlap. Cost: 3 accesses per element.
inline void accumulate_async(DType type, void* into, const void* from, std::size_t n,
                             cudaStream_t stream) {
  const auto integers = [&]<class T>(T) {
    detail::start_elementwise<detail::Integer<T>, detail::Integer<T>>(into, from, n, detail::Add{},
                                                                      stream);
  };
  switch (type) {
    case DType::i8:
    case DType::u8: return integers(std::uint8_t{});
    case DType::i16:
    case DType::u16: return integers(std::uint16_t{});
    case DType::i32:
    case DType::u32: return integers(std::uint32_t{});
    case DType::i64:
    case DType::u64: return integers(std::uint64_t{});
    default:
      with_floating(type, "a sum", [&]<class As>(As) {
        detail::start_elementwise<detail::OneNan<As>, As>(into, from, n, detail::Add{}, stream);
      });
  }
}

//! Divides n elements by the number of ranks, rounding once.
inline void scale_to_mean_async(DType type, void* data, std::size_t n, int ranks,
                                cudaStream_t stream) {
  with_floating(type, "a mean", [&]<class As>(As) {
    detail::start_elementwise<detail::OneNan<As>, As>(data, data, n, detail::DivideBy{ranks},
                                                      stream);
  });
}

//! n elements of f32, bf16 or f16 as floats, exactly.
inline void to_float_async(DType type, const void* from, float* into, std::size_t n,
                           cudaStream_t stream) {
  if (type == DType::f64) throw OptionError{"a conversion to float would round F64"};
  with_floating(type, "a conversion to float", [&]<class As>(As) {
    if constexpr (sizeof(typename As::Element) != 8)
      detail::start_elementwise<detail::OneNan<Stored<DType::f32>>, As>(into, from, n,
                                                                        detail::Assign{}, stream);
  });
}

//! n floats as f32, bf16 or f16, rounded to nearest even.
inline void from_float_async(DType type, const float* from, void* into, std::size_t n,
                             cudaStream_t stream) {
  if (type == DType::f64) throw OptionError{"a conversion from float does not make F64"};
  with_floating(type, "a conversion from float", [&]<class As>(As) {
    if constexpr (sizeof(typename As::Element) != 8)
      detail::start_elementwise<detail::OneNan<As>, Stored<DType::f32>>(into, from, n,
                                                                        detail::Assign{}, stream);
  });
}

}  // namespace mend::cuda
