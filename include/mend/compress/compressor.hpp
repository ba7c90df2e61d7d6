#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "mend/core/bytes.hpp"
#include "mend/core/dtype.hpp"
#include "mend/core/rank.hpp"
#include "mend/core/step.hpp"

namespace mend {

//! Which gradient a piece is made of; all that a codec's random choices may depend on.
struct PieceKey {
  std::uint64_t tensor = 0;  //!< its place in the state
  Step step{};
  Rank rank{};
};

namespace detail {

template <class C, class T>
concept CompressorOf = requires(const C& codec, std::span<const T> gradient, const PieceKey& key,
                                Bytes& out, ByteView piece, std::span<T> into) {
  { codec.encode(gradient, key, out) } -> std::same_as<void>;
  { C::add(piece, into) } -> std::same_as<void>;
  { C::subtract(piece, into) } -> std::same_as<void>;
};

}  // namespace detail

//! A codec: turns one tensor's gradient (n elements of float or double) into a *piece*, bytes that
//! say themselves what they hold, and adds pieces to a tensor.
//!
//!   C::name                          stands for the format of its pieces; stored beside them
//!   codec.check()                    throws OptionError for options that cannot work
//!   codec.bound(n, type)             the most bytes that encode appends for n elements
//!   codec.encode(gradient, key, out) appends the piece; throws OptionError from 2^32 elements on
//!   C::add(piece, into)              into += what the piece holds, rounded once per element held
//!   C::subtract(piece, into)         into -= what the piece holds
//!
//! The same gradient, key and options give the same piece, and the same piece and tensor the same
//! sum, for every Simd level, compiler and number of threads. A NaN becomes the one quiet NaN in a
//! sum. Where a gradient has infinities or NaNs, so has its piece: a check after the merge sees it.
//! add and subtract read the element type and n from `into`; for a piece that does not fit or is
//! damaged they throw FileError, before `into` changes, and allocate nothing.
template <class C>
concept Compressor = detail::CompressorOf<C, float> && detail::CompressorOf<C, double> &&
    requires(const C& codec, std::size_t n, DType type) {
  { C::name } -> std::convertible_to<std::string_view>;
  { codec.check() } -> std::same_as<void>;
  { codec.bound(n, type) } -> std::same_as<std::size_t>;
};

}  // namespace mend
