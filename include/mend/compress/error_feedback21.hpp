#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "mend/compress/compressor.hpp"
#include "mend/compress/sparse_piece.hpp"
#include "mend/core/bytes.hpp"
#include "mend/core/dtype.hpp"
#include "mend/kernel/host/reduce.hpp"
#include "mend/kernel/host/simd.hpp"

namespace mend {

//! EF21 (Richtarik, Sokolov, Fatkhullin, 2021): every rank keeps an estimate e of its gradient,
//! which changes by what is sent and by nothing else, and all ranks the mean m of the estimates:
//!   piece = C(g - e)       the difference rounded once per element
//!   m' = m + merge(pieces) what the optimizer consumes
//!   e' = e + C(g - e)
//! So the pieces of a rank, applied to an older e, give the newer one bit for bit. Another training
//! method than ErrorFeedback: what is consumed is m', not the mean of the pieces. An infinity or
//! NaN stays in e and m for good, so such a step is to be skipped.
template <class C>
struct ErrorFeedback21 {
  static_assert(Compressor<C>, "ErrorFeedback21 wraps a codec, as in ErrorFeedback21{TopK{}}");
  using Codec = C;
  Codec codec{};

  static constexpr std::string_view name = "ErrorFeedback21";
  //! The arrays that a tensor needs, each of n elements and zero at first: the estimate differs
  //! from rank to rank, the mean does not.
  static constexpr std::array<std::string_view, 2> slots{"estimate", "mean"};
  void check() const { codec.check(); }

  //! Appends the piece. scratch: n elements, overwritten; no overlap. Throws as the codec's encode.
  template <class T>
  void encode(std::span<const T> gradient, const PieceKey& key, std::span<const T> estimate,
              std::span<T> scratch, Bytes& out) const {
    using As = kernel::detail::AsIs<T>;
    std::copy(gradient.begin(), gradient.end(), scratch.begin());
    kernel::detail::elementwise<As, As>(scratch.data(), estimate.data(), scratch.size(),
                                        detail::SubtractFrom{}, kernel::best_simd());
    codec.encode(std::span<const T>{scratch}, key, out);
  }

  //! merged = mean + merged: makes of the ranks' merged pieces what the optimizer consumes.
  template <class T>
  static void consume(std::span<const T> mean, std::span<T> merged) {
    kernel::accumulate(dtype_of<T>, merged.data(), mean.data(), merged.size());
  }

  //! For a step that commits, not for one that is skipped or repeated: the estimate moves by this
  //! rank's piece, and the mean becomes what was consumed.
  template <class T>
  static void commit(ByteView piece, std::span<T> estimate, std::span<const T> consumed,
                     std::span<T> mean) {
    Codec::add(piece, estimate);
    std::copy(consumed.begin(), consumed.end(), mean.begin());
  }
};
template <class C>
ErrorFeedback21(C) -> ErrorFeedback21<C>;

}  // namespace mend
