#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

#include "mend/compress/piece.hpp"
#include "mend/core/bytes.hpp"
#include "mend/core/dtype.hpp"
#include "mend/kernel/host/reduce.hpp"
#include "mend/kernel/host/rounding.hpp"
#include "mend/kernel/host/simd.hpp"

namespace mend {

namespace detail {

//! What a piece does to a tensor; T or Lanes.
struct AddTo {
  template <class Real>
  Real operator()(const Real& into, const Real& piece) const {
    return into + piece;
  }
};
struct SubtractFrom {
  template <class Real>
  Real operator()(const Real& into, const Real& piece) const {
    return into - piece;
  }
};

//! into[i] = op(into[i], from[i]) for n values that need not be aligned.
template <class T, class Op>
void combine_dense(const std::byte* from, T* into, std::size_t n, Op op, kernel::Simd simd) {
  constexpr std::size_t chunk = 1024;
  using As = kernel::detail::AsIs<T>;
  T values[chunk];
  for (std::size_t at = 0; at < n; at += chunk) {
    const std::size_t size = std::min(chunk, n - at);
    std::memcpy(values, from + at * sizeof(T), size * sizeof(T));
    kernel::detail::elementwise<As, As>(into + at, values, size, op, simd);
  }
}

//! into[index(j)] = op(..., value j), for values that need not be aligned.
template <class T, class Op>
void combine_at(const std::byte* values, std::size_t count, T* into, Op op, const auto& index) {
  kernel::StandardRounding rounding;
  for (std::size_t j = 0; j < count; ++j) {
    T value;
    std::memcpy(&value, values + j * sizeof(T), sizeof value);
    T& element = into[index(j)];
    value = op(element, value);
    element = value == value ? value : std::numeric_limits<T>::quiet_NaN();
  }
}

}  // namespace detail

//! A piece of chosen elements, their values as they are: indices and values or, where that is
//! shorter, all values with +0 for those not chosen.
struct SparsePiece {
  //! The bytes of a piece that holds `count` of n elements.
  [[nodiscard]] static std::size_t bytes(std::size_t n, std::size_t count, DType type) {
    return Piece::head_bytes + std::min(n * size_of(type), count * (4 + size_of(type)));
  }

  //! Appends the elements of x at `indices`, which ascend. x: fewer than 2^32 elements.
  template <class T>
  static void append(std::span<const T> x, std::span<const std::uint32_t> indices, Bytes& out) {
    const std::size_t n = x.size(), count = indices.size();
    const std::size_t body_bytes = bytes(n, count, dtype_of<T>) - Piece::head_bytes;
    if (body_bytes == n * sizeof(T)) {
      std::byte* values =
          Piece::append(out, Piece::Form::dense, dtype_of<T>, n, n, body_bytes);  // zeros
      for (std::uint32_t i : indices) std::memcpy(values + i * sizeof(T), &x[i], sizeof(T));
      return;
    }
    std::byte* body = Piece::append(out, Piece::Form::sparse, dtype_of<T>, n, count, body_bytes);
    std::copy_n(std::as_bytes(indices).data(), indices.size_bytes(), body);
    std::byte* values = body + indices.size_bytes();
    for (std::uint32_t i : indices) {
      std::memcpy(values, &x[i], sizeof(T));
      values += sizeof(T);
    }
  }
  //! Appends all of x. x: fewer than 2^32 elements.
  template <class T>
  static void append_dense(std::span<const T> x, Bytes& out) {
    std::byte* values =
        Piece::append(out, Piece::Form::dense, dtype_of<T>, x.size(), x.size(), x.size_bytes());
    std::copy_n(std::as_bytes(x).data(), x.size_bytes(), values);
  }

  //! into = op(into, what the piece holds), element by element. Throws FileError, before `into`
  //! changes, for a damaged piece and one of another form.
  template <class T, class Op>
  static void combine(const Piece& piece, std::span<T> into, Op op, kernel::Simd simd) {
    const std::byte* values = values_of<T>(piece);
    if (piece.form == Piece::Form::dense)
      detail::combine_dense(values, into.data(), into.size(), op, simd);
    else
      detail::combine_at(values, piece.count, into.data(), op, Indices{piece.body.data()});
  }

  //! into = what the piece holds, bit for bit, and +0 elsewhere. Throws as combine.
  template <class T>
  static void read(const Piece& piece, std::span<T> into) {
    const std::byte* values = values_of<T>(piece);
    if (piece.form == Piece::Form::dense) {
      std::copy_n(values, into.size_bytes(), std::as_writable_bytes(into).data());
      return;
    }
    std::fill(into.begin(), into.end(), T{0});
    const Indices index{piece.body.data()};
    for (std::size_t j = 0; j < piece.count; ++j)
      std::memcpy(&into[index(j)], values + j * sizeof(T), sizeof(T));
  }

 private:
  struct Indices {
    const std::byte* from;
    std::uint32_t operator()(std::size_t j) const {
      std::uint32_t i;
      std::memcpy(&i, from + j * sizeof i, sizeof i);
      return i;
    }
  };

  //! Where the values begin, in a piece that is right.
  template <class T>
  static const std::byte* values_of(const Piece& piece) {
    if (piece.form == Piece::Form::dense) {
      piece.require(piece.count == piece.size && piece.body.size() == piece.size * sizeof(T),
                    "its length is not that of all values");
      return piece.body.data();
    }
    piece.require(piece.form == Piece::Form::sparse, "it is of another codec");
    piece.require(piece.body.size() == piece.count * (4 + sizeof(T)),
                  "its length is not that of its elements");
    const Indices index{piece.body.data()};
    bool good = piece.count == 0 || index(piece.count - 1) < piece.size;
    for (std::size_t j = 1; j < piece.count; ++j) good &= index(j - 1) < index(j);
    piece.require(good, "its indices do not ascend to the tensor's size");
    return piece.body.data() + piece.count * std::size_t{4};
  }
};

}  // namespace mend
