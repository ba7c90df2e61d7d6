#pragma once

// What the tests of every codec share.

#include <doctest/doctest.h>

#include <mend/compress/compressor.hpp>
#include <mend/core/bytes.hpp>
#include <mend/core/error.hpp>
#include <mend/kernel/host/simd.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "kernel/numbers.hpp"

namespace test {

//! Lengths around registers and blocks.
inline std::vector<std::size_t> lengths() {
  std::vector<std::size_t> all{0, 1, 2, 255, 256, 257, 511, 512, 1000, 5003};
  for (std::size_t n = 63; n <= 130; ++n) all.push_back(n);
  return all;
}

//! Without infinities and NaNs.
template <class T>
std::vector<T> finite_numbers(std::size_t n, std::uint64_t seed) {
  std::vector<T> v = numbers<T>(n, seed);
  for (T& x : v)
    if (!(x - x == 0)) x = T(0);
  return v;
}

template <class C, class T>
mend::Bytes encoded(const C& codec, const std::vector<T>& gradient,
                    const mend::PieceKey& key = {}) {
  mend::Bytes out;
  codec.encode(std::span<const T>{gradient}, key, out);
  return out;
}

template <class T>
T one_nan(T x) {
  return x == x ? x : std::numeric_limits<T>::quiet_NaN();
}

//! The piece added to zeros.
template <class C, class T>
std::vector<T> decoded(const mend::Bytes& piece, std::size_t n) {
  std::vector<T> into(n);
  C::add(mend::ByteView{piece}, std::span<T>{into});
  return into;
}

//! What every codec promises of a gradient, and of the piece when it is damaged.
template <class T, class C>
void check_codec(const C& codec) {
  using mend::kernel::Simd;
  for (std::size_t n : lengths()) {
    CAPTURE(n);
    const auto gradient = numbers<T>(n, n), before = numbers<T>(n, n + 1);
    const mend::PieceKey key{3, mend::Step{7}, mend::Rank{1}};
    const mend::Bytes piece = encoded(codec, gradient, key);
    CHECK(piece.size() <= codec.bound(n, mend::dtype_of<T>));
    CHECK(encoded(codec, gradient, key) == piece);

    mend::Bytes after{std::byte{1}, std::byte{2}};  // appended to what is there
    codec.encode(std::span<const T>{gradient}, key, after);
    CHECK(after.size() == piece.size() + 2);
    CHECK(std::memcmp(after.data() + 2, piece.data(), piece.size()) == 0);

    const auto held = decoded<C, T>(piece, n);
    auto sum = before, difference = before;
    C::add(mend::ByteView{piece}, std::span<T>{sum});
    C::subtract(mend::ByteView{piece}, std::span<T>{difference});
    for (std::size_t i = 0; i < n; ++i) {
      CAPTURE(i);
      if (held[i] == 0) {  // not held, or a zero
        CHECK((sum[i] == before[i] || same_number(sum[i], before[i])));
        CHECK((difference[i] == before[i] || same_number(difference[i], before[i])));
      } else {
        CHECK(same_bits<T>({sum[i]}, {one_nan<T>(before[i] + held[i])}));
        CHECK(same_bits<T>({difference[i]}, {one_nan<T>(before[i] - held[i])}));
      }
    }
    for (Simd simd : levels()) {
      mend::Bytes again;
      codec.encode(std::span<const T>{gradient}, key, again, simd);
      CHECK(again == piece);
      auto into = before;
      C::add(mend::ByteView{piece}, std::span<T>{into}, simd);
      CHECK(same_bits(into, sum));
      into = before;
      C::subtract(mend::ByteView{piece}, std::span<T>{into}, simd);
      CHECK(same_bits(into, difference));
    }
  }
}

//! Adds a piece that may be damaged: false, with nothing changed, where it is refused.
template <class C, class T>
bool add_damaged(const mend::Bytes& piece, std::size_t n) {
  const mend::Bytes exact{piece.begin(), piece.end()};  // nothing behind its end
  const std::vector<T> before(n, T(5));
  auto into = before;
  try {
    C::add(mend::ByteView{exact}, std::span<T>{into});
    return true;
  } catch (const mend::FileError&) {
    CHECK(into == before);
    return false;
  }
}

//! Every truncation is refused; every byte replaced is refused or makes another piece.
template <class C, class T>
void check_damage(const mend::Bytes& piece, std::size_t n) {
  REQUIRE(add_damaged<C, T>(piece, n));
  for (std::size_t size = 0; size < piece.size(); ++size)
    CHECK_FALSE(add_damaged<C, T>({piece.begin(), piece.begin() + static_cast<long>(size)}, n));
  auto longer = piece;
  longer.push_back(std::byte{0});
  CHECK_FALSE(add_damaged<C, T>(longer, n));
  for (std::size_t at = 0; at < piece.size(); ++at)
    for (unsigned bits = 1; bits < 256; ++bits) {
      auto flipped = piece;
      flipped[at] ^= static_cast<std::byte>(bits);
      const bool taken = add_damaged<C, T>(flipped, n);
      if (at < 8) CHECK_FALSE(taken);  // form, type, zeros, size of the tensor
    }
  CHECK_FALSE(add_damaged<C, T>(piece, n + 1));
  CHECK_FALSE(add_damaged<C, T>(piece, n - 1));
  using Other = std::conditional_t<sizeof(T) == 4, double, float>;
  CHECK_FALSE(add_damaged<C, Other>(piece, n));
}

}  // namespace test
