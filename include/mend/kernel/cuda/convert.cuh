#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "mend/core/dtype.hpp"
#include "mend/core/error.hpp"
#include "mend/kernel/cuda/launch.cuh"
#include "mend/kernel/cuda/reduce.cuh"
#include "mend/kernel/cuda/stored.cuh"
#include "mend/kernel/cuda/table.cuh"
#include "mend/kernel/cuda/vector.cuh"

namespace mend::cuda {

//! n floats and as many f32, bf16 or f16 numbers that stand for them. Device memory, aligned for
//! its types, without overlap.
struct Conversion {
  float* wide;
  void* narrow;
  DType type;
  std::size_t n;
};

namespace detail {

using ConversionTable = Table<Conversion, 16384>;

//! into = from for a share, numbers by vectors where both sides are aligned.
template <class Into, class From>
__device__ void convert_share(typename Into::Element* into, const typename From::Element* from,
                              std::size_t begin, std::size_t end) {
  constexpr unsigned width = 4;
  std::size_t whole = begin;
  if (aligned(into, width * sizeof(*into)) && aligned(from, width * sizeof(*from))) {
    whole = begin + (end - begin) / width * width;
    for (std::size_t at = begin + width * threadIdx.x; at < whole; at += width * blockDim.x)
      combine<Into, From, width>(into, from, at, Assign{});
  }
  for (std::size_t at = whole + threadIdx.x; at < end; at += blockDim.x)
    combine<Into, From, 1>(into, from, at, Assign{});
}

template <bool narrow, class View>
__global__ void __launch_bounds__(block_size) convert(View table) {
  const auto share = table.share_of_block();
  for_floating(share.entry.type, [&]<DType type>(Stored<type>) {
    using Float = Stored<DType::f32>;
    if constexpr (type != DType::f64) {
      auto* other = static_cast<typename Stored<type>::Element*>(share.entry.narrow);
      if constexpr (narrow)
        convert_share<OneNan<Stored<type>>, Float>(other, share.entry.wide, share.begin, share.end);
      else
        convert_share<OneNan<Float>, Stored<type>>(share.entry.wide, other, share.begin, share.end);
    }
  });
}

}  // namespace detail

//! Float tensors and their copies in another type, converted in one launch: to the bits of
//! kernel::from_float and kernel::to_float. Owns the list only; the tensors are the caller's and
//! stay where they are.
class Conversions {
 public:
  //! Blocks: until the list is on the device. Throws DeviceError, and OptionError for another type.
  Conversions(std::vector<Conversion> tensors, cudaStream_t stream)
      : table_{checked(std::move(tensors)), stream} {}

  //! narrow = wide, rounded to nearest even. Blocks: no. Throws DeviceError. Cost: one read, one
  //! write.
  void round_async(cudaStream_t stream) const {
    using View = detail::ConversionTable::View;
    Launch{table_.chunks(), stream}(&detail::convert<true, View>, table_.view());
  }
  //! wide = narrow, exactly.
  void widen_async(cudaStream_t stream) const {
    using View = detail::ConversionTable::View;
    Launch{table_.chunks(), stream}(&detail::convert<false, View>, table_.view());
  }

 private:
  static std::vector<Conversion> checked(std::vector<Conversion> tensors) {
    for (const Conversion& t : tensors) {
      if (t.type == DType::f64) throw OptionError{"a conversion of floats does not make F64"};
      with_floating(t.type, "a conversion of floats", [](auto) {});
    }
    return tensors;
  }

  detail::ConversionTable table_;
};

}  // namespace mend::cuda
