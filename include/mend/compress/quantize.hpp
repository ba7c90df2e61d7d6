#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>

#include "mend/compress/compressor.hpp"
#include "mend/compress/piece.hpp"
#include "mend/compress/sparse_piece.hpp"
#include "mend/core/bytes.hpp"
#include "mend/core/dtype.hpp"
#include "mend/kernel/host/reduce.hpp"
#include "mend/kernel/host/rounding.hpp"
#include "mend/kernel/host/select.hpp"
#include "mend/kernel/host/simd.hpp"

namespace mend {

namespace detail {

//! value / scale as a whole number, rounded to nearest even, in the lowest byte of the result.
template <class T>
struct ToBytes {
  T scale;
  template <class Real>
  Real operator()(const Real&, const Real& value) const {
    // Added to 1.5 * 2^(p - 1), a small number leaves no room for a fraction.
    constexpr T shift =
        3 * static_cast<T>(std::uint64_t{1} << (std::numeric_limits<T>::digits - 2));
    return value / scale + shift;
  }
};

//! op(into, byte * scale), the product rounded first.
template <class T, class Op>
struct FromBytes {
  T scale;
  Op op;
  template <class Real>
  Real operator()(const Real& into, const Real& byte) const {
    return op(into, byte * scale);
  }
};

}  // namespace detail

//! Keeps every element in 8 bits: in each block of 256, the nearest of the 255 multiples of
//! scale = max |g| / 127, ties to even. A block with an infinity or a NaN keeps its values as they
//! are, and so does one whose scale would be a denormal number or whose largest multiple might
//! overflow; a block of zeros is its scale alone, and -0 becomes +0.
//! Loses little: |g - C(g)| <= 0.00394 max |g| of the block, so |g - C(g)|^2 <= 0.004 |g|^2.
//! Cost: about two passes over the gradient.
struct Quantize8 {
  static constexpr std::size_t block = 256;

  static constexpr std::string_view name = "Quantize8";
  void check() const {}
  [[nodiscard]] std::size_t bound(std::size_t n, DType type) const {
    return Piece::head_bytes + (n + block - 1) / block * size_of(type) + n * size_of(type);
  }

  template <class T>
  void encode(std::span<const T> gradient, const PieceKey&, Bytes& out,
              kernel::Simd simd = kernel::best_simd()) const {
    using As = kernel::detail::AsIs<T>;
    const std::size_t n = gradient.size();
    Piece::check_size(n);
    out.reserve(out.size() + Piece::head_bytes + (n + block - 1) / block * sizeof(T) + n);
    Piece::append(out, Piece::Form::quantized, dtype_of<T>, n, n, 0);
    for (std::size_t at = 0; at < n; at += block) {
      const std::span<const T> values = gradient.subspan(at, std::min(block, n - at));
      const T scale = scale_of(values);
      std::byte* to = extend(out, sizeof scale + body_bytes(scale, values.size()));
      std::memcpy(to, &scale, sizeof scale);
      to += sizeof scale;
      if (scale != scale) {
        std::memcpy(to, values.data(), values.size_bytes());
      } else if (scale > 0) {
        T wide[block];
        kernel::detail::elementwise<As, As>(wide, values.data(), values.size(),
                                            detail::ToBytes<T>{scale}, simd);
        for (std::size_t i = 0; i < values.size(); ++i)
          to[i] = static_cast<std::byte>(std::bit_cast<kernel::detail::WordOf<T>>(wide[i]) & 255);
      }
    }
  }
  template <class T>
  static void add(ByteView piece, std::span<T> into, kernel::Simd simd = kernel::best_simd()) {
    combine(piece, into, detail::AddTo{}, simd);
  }
  template <class T>
  static void subtract(ByteView piece, std::span<T> into, kernel::Simd simd = kernel::best_simd()) {
    combine(piece, into, detail::SubtractFrom{}, simd);
  }

 private:
  static std::byte* extend(Bytes& out, std::size_t bytes) {
    out.resize(out.size() + bytes);
    return out.data() + out.size() - bytes;
  }

  //! 0 for zeros; NaN, in its one form, where the values are kept as they are.
  template <class T>
  static T scale_of(std::span<const T> values) {
    kernel::detail::WordOf<T> most = 0;
    for (T value : values) most = std::max(most, kernel::detail::magnitude(value));
    if (most == 0) return 0;
    kernel::StandardRounding rounding;
    const T scale = std::bit_cast<T>(most) / 127;
    return usable(scale) ? scale : std::numeric_limits<T>::quiet_NaN();
  }
  //! Not a denormal number, and no multiple up to 127 overflows.
  template <class T>
  static bool usable(T scale) {
    using Limits = std::numeric_limits<T>;
    return scale >= Limits::min() && scale <= Limits::max() / 128;
  }
  //! What follows a block's scale.
  template <class T>
  static std::size_t body_bytes(T scale, std::size_t count) {
    return scale != scale ? count * sizeof(T) : scale > 0 ? count : 0;
  }

  //! Calls body(first element, elements, scale, what follows it) for each block of a piece.
  template <class T>
  static void for_blocks(const Piece& piece, const auto& body) {
    const std::byte* from = piece.body.data();
    std::size_t left = piece.body.size();
    for (std::size_t at = 0; at < piece.size; at += block) {
      const std::size_t count = std::min<std::size_t>(block, piece.size - at);
      T scale;
      piece.require(left >= sizeof scale, "it is cut short");
      std::memcpy(&scale, from, sizeof scale);
      piece.require(usable(scale) || scale == 0 || scale != scale, "a scale is out of range");
      from += sizeof scale;
      left -= sizeof scale;
      const std::size_t bytes = body_bytes(scale, count);
      piece.require(left >= bytes, "it is cut short");
      body(at, count, scale, from);
      from += bytes;
      left -= bytes;
    }
    piece.require(left == 0, "there is more behind its end");
  }

  template <class T, class Op>
  static void combine(ByteView bytes, std::span<T> into, Op op, kernel::Simd simd) {
    using As = kernel::detail::AsIs<T>;
    const Piece piece = Piece::parse(bytes, dtype_of<T>, into.size());
    piece.require(piece.form == Piece::Form::quantized && piece.count == piece.size,
                  "it is of another codec");
    for_blocks<T>(piece, [](auto&&...) {});  // all of it, before `into` changes
    for_blocks<T>(piece, [&](std::size_t at, std::size_t count, T scale, const std::byte* from) {
      if (scale != scale) return detail::combine_dense(from, &into[at], count, op, simd);
      if (scale == 0) return;
      T values[block];
      for (std::size_t i = 0; i < count; ++i)
        values[i] = static_cast<T>(static_cast<std::int8_t>(from[i]));
      kernel::detail::elementwise<As, As>(&into[at], values, count,
                                          detail::FromBytes<T, Op>{scale, op}, simd);
    });
  }
};
static_assert(Compressor<Quantize8>);

}  // namespace mend
