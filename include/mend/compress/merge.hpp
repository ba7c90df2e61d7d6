#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "mend/compress/compressor.hpp"
#include "mend/compress/piece.hpp"
#include "mend/compress/sparse_piece.hpp"
#include "mend/core/bytes.hpp"
#include "mend/core/dtype.hpp"
#include "mend/core/error.hpp"
#include "mend/kernel/host/reduce.hpp"
#include "mend/kernel/host/select.hpp"
#include "mend/kernel/host/simd.hpp"

namespace mend {

//! into = the mean of the ranks' pieces of one tensor, as in `merge<TopK>(pieces, into)`: element
//! by element (((0 + p0) + p1) + ...) / pieces.size(), each operation rounded once in T; an element
//! that a piece does not hold counts as 0, which changes no sum. The same bits as the mean of dense
//! gradients in rank order, except that a zero sum is always +0; a NaN is the one quiet NaN.
//! pieces: in rank order. Throws OptionError for none, FileError as C::add; `into` is not specified
//! then. Cost: two passes over `into`, and the elements held.
template <Compressor C, class T>
void merge(std::span<const ByteView> pieces, std::span<T> into) {
  if (pieces.empty()) throw OptionError{"merge: no pieces; there is one of every rank"};
  std::fill(into.begin(), into.end(), T{0});
  for (ByteView piece : pieces) C::add(piece, into);
  kernel::scale_to_mean(dtype_of<T>, into.data(), into.size(), static_cast<int>(pieces.size()));
}

//! Appends a piece of exactly these values: those that are not +0, or all where that is shorter. So
//! a differential holds the very bits that the optimizer consumed, whatever the codec. dense: fewer
//! than 2^32 elements, else OptionError. Cost: one read.
template <class T>
void encode_merged(std::span<const T> dense, Bytes& out, kernel::Simd simd = kernel::best_simd()) {
  const std::size_t n = dense.size(), limit = n * sizeof(T) / (sizeof(std::uint32_t) + sizeof(T));
  Piece::check_size(n);
  if (const auto indices = kernel::non_zero(dense.data(), n, limit, simd))
    SparsePiece::append<T>(dense, *indices, out);
  else
    SparsePiece::append_dense<T>(dense, out);
}

//! into = the values that encode_merged was given, bit for bit. Throws FileError for a damaged
//! piece, or one of another tensor; `into` has not changed then.
template <class T>
void decode_merged(ByteView piece, std::span<T> into) {
  SparsePiece::read(Piece::parse(piece, dtype_of<T>, into.size()), into);
}

}  // namespace mend
