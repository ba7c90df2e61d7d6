#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string_view>

#include "mend/compress/compressor.hpp"
#include "mend/compress/piece.hpp"
#include "mend/compress/sparse_piece.hpp"
#include "mend/core/bytes.hpp"
#include "mend/core/dtype.hpp"
#include "mend/kernel/host/select.hpp"
#include "mend/kernel/host/simd.hpp"
#include "mend/optim/check_options.hpp"

namespace mend {

namespace detail {

//! How many of n elements the share `keep` is: the nearest whole number, at least 1 where there is
//! an element.
[[nodiscard]] inline std::size_t kept_count(float keep, std::size_t n) {
  const double share = static_cast<double>(keep) * static_cast<double>(n);
  return std::min(n, std::max<std::size_t>(1, static_cast<std::size_t>(std::round(share))));
}

inline void check_keep(float keep, std::string_view codec) {
  require_option(keep > 0 && keep <= 1, codec, "keep", static_cast<double>(keep), "lie in (0, 1]");
}

}  // namespace detail

//! Keeps the k elements of largest magnitude, of equal ones those of lower index; their values are
//! the gradient's, bit for bit. k = keep n rounded to the nearest whole number, at least 1.
//! NaNs come first, then infinities: k or all of them are kept.
//! Loses little: |g - C(g)|^2 <= (1 - k / n) |g|^2.
//! Cost: one read of the gradient, then work in proportion to k (kernel::largest).
struct TopK {
  float keep = 0.01f;

  static constexpr std::string_view name = "TopK";
  void check() const { detail::check_keep(keep, name); }
  [[nodiscard]] std::size_t bound(std::size_t n, DType type) const {
    return SparsePiece::bytes(n, detail::kept_count(keep, n), type);
  }

  template <class T>
  void encode(std::span<const T> gradient, const PieceKey&, Bytes& out,
              kernel::Simd simd = kernel::best_simd()) const {
    const std::size_t n = gradient.size();
    Piece::check_size(n);
    SparsePiece::append<T>(
        gradient, kernel::largest(gradient.data(), n, detail::kept_count(keep, n), simd), out);
  }
  template <class T>
  static void add(ByteView piece, std::span<T> into, kernel::Simd simd = kernel::best_simd()) {
    SparsePiece::combine(Piece::parse(piece, dtype_of<T>, into.size()), into, detail::AddTo{},
                         simd);
  }
  template <class T>
  static void subtract(ByteView piece, std::span<T> into, kernel::Simd simd = kernel::best_simd()) {
    SparsePiece::combine(Piece::parse(piece, dtype_of<T>, into.size()), into,
                         detail::SubtractFrom{}, simd);
  }
};
static_assert(Compressor<TopK>);

}  // namespace mend
