#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "mend/compress/compressor.hpp"
#include "mend/core/bytes.hpp"
#include "mend/core/dtype.hpp"
#include "mend/kernel/host/reduce.hpp"

namespace mend {

//! Classic error feedback (Seide and others, 2014; Karimireddy and others, 2019): what a piece left
//! out is added to the next step's gradient. Per tensor and rank a residual r of n elements, zero
//! at first, in the memory of whoever calls:
//!   x = g + r    rounded once per element
//!   piece = C(x)
//!   r' = x - C(x)
//! With mend's codecs the last line is exact while x is finite: C(x) + r' = x, nothing is lost but
//! what g + r rounds. An infinity or NaN that was sent leaves a NaN in r', so such a step is to be
//! skipped.
template <class C>
struct ErrorFeedback {
  static_assert(Compressor<C>, "ErrorFeedback wraps a codec, as in ErrorFeedback{TopK{}}");
  using Codec = C;
  Codec codec{};

  static constexpr std::string_view name = "ErrorFeedback";
  //! The arrays that a tensor needs, each of n elements and zero at first; they differ from rank to
  //! rank.
  static constexpr std::array<std::string_view, 1> slots{"residual"};
  void check() const { codec.check(); }

  //! Appends the piece and writes the residual that is right once the step is committed; the old
  //! one is only read. So a step that commits swaps the two arrays, and one that is skipped or
  //! repeated does not. Three arrays of n elements, no overlap. Throws as the codec's encode.
  template <class T>
  void encode(std::span<const T> gradient, const PieceKey& key, std::span<const T> residual,
              std::span<T> next, Bytes& out) const {
    std::copy(residual.begin(), residual.end(), next.begin());
    kernel::accumulate(dtype_of<T>, next.data(), gradient.data(), next.size());
    const std::size_t at = out.size();
    codec.encode(std::span<const T>{next}, key, out);
    Codec::subtract(ByteView{out}.subspan(at), next);
  }
};
template <class C>
ErrorFeedback(C) -> ErrorFeedback<C>;

}  // namespace mend
