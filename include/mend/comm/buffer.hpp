#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "mend/core/dtype.hpp"

namespace mend::comm {

//! What a reduction makes of the ranks' values, always in rank order: ((g0 + g1) + g2) + ...
//! mean divides the sum by the number of ranks, rounded once; floating-point types only.
enum class Reduction : std::uint8_t { mean, sum };

//! Typed memory for collectives, borrowed for the call. bf16 and f16 are summed in float.
struct Buffer {
  std::byte* data = nullptr;
  std::size_t count = 0;  //!< elements
  DType dtype = DType::f32;
  Reduction reduction = Reduction::mean;
  std::uint32_t tag = 0;  //!< tells buffers of one step apart; equal on all ranks

  template <Element T, std::size_t N>
  static Buffer of(std::span<T, N> values, Reduction reduction = Reduction::mean,
                   std::uint32_t tag = 0) {
    return {reinterpret_cast<std::byte*>(values.data()), values.size(), dtype_of<T>, reduction,
            tag};
  }
  [[nodiscard]] std::size_t bytes() const { return count * size_of(dtype); }
};

}  // namespace mend::comm
