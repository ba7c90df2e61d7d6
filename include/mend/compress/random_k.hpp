#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "mend/compress/compressor.hpp"
#include "mend/compress/piece.hpp"
#include "mend/compress/sparse_piece.hpp"
#include "mend/compress/top_k.hpp"
#include "mend/core/bytes.hpp"
#include "mend/core/dtype.hpp"
#include "mend/kernel/host/reduce.hpp"
#include "mend/kernel/host/simd.hpp"

namespace mend {

namespace detail {

//! One element of each of `count` parts that n elements are cut into, in order; the parts' sizes
//! differ by at most one. A sample follows from its three numbers alone. 1 <= count <= n < 2^32.
struct Sample {
  std::uint64_t stream, n, count;

  [[nodiscard]] std::uint32_t operator()(std::uint64_t part) const {
    const std::uint64_t begin = part * n / count, size = (part + 1) * n / count - begin;
    return static_cast<std::uint32_t>(begin + ((mix(stream + part) >> 32) * size >> 32));
  }

  [[nodiscard]] static std::uint64_t mix(std::uint64_t z) {  // splitmix64
    z += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
};

}  // namespace detail

//! Keeps k random elements, the same on all ranks: one of each of k consecutive parts of the
//! tensor, chosen by (seed, tensor, step). So a piece needs no indices, and the ranks' pieces hold
//! the same elements. k as in TopK. The values are the gradient's, not scaled by n / k: a biased
//! estimate, which error feedback makes up for. A gradient with infinities or NaNs is sent as TopK
//! sends it, so that they are seen. Loses, in the mean over seeds, |g - C(g)|^2 <= (1 - 1 / ceil(n
//! / k)) |g|^2. Cost: one read of the gradient, to see that it is finite, and k elements.
struct RandomK {
  float keep = 0.01f;
  std::uint64_t seed = 0;

  static constexpr std::string_view name = "RandomK";
  void check() const { detail::check_keep(keep, name); }
  [[nodiscard]] std::size_t bound(std::size_t n, DType type) const {
    return SparsePiece::bytes(n, detail::kept_count(keep, n), type) + sizeof(std::uint64_t);
  }

  template <class T>
  void encode(std::span<const T> gradient, const PieceKey& key, Bytes& out,
              kernel::Simd simd = kernel::best_simd()) const {
    using detail::Sample;
    const std::size_t n = gradient.size(), count = detail::kept_count(keep, n);
    Piece::check_size(n);
    if (!kernel::all_finite(dtype_of<T>, gradient.data(), n, simd))
      return TopK{.keep = keep}.encode(gradient, key, out, simd);
    const std::uint64_t step = static_cast<std::uint64_t>(key.step.value());
    const Sample sample{Sample::mix(Sample::mix(Sample::mix(seed) + key.tensor) + step), n, count};
    std::byte* body = Piece::append(out, Piece::Form::sampled, dtype_of<T>, n, count,
                                    sizeof sample.stream + count * sizeof(T));
    std::memcpy(body, &sample.stream, sizeof sample.stream);
    body += sizeof sample.stream;
    for (std::size_t j = 0; j < count; ++j)
      std::memcpy(body + j * sizeof(T), &gradient[sample(j)], sizeof(T));
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
  template <class T>
  static void combine(ByteView bytes, std::span<T> into, auto op, kernel::Simd simd) {
    const Piece piece = Piece::parse(bytes, dtype_of<T>, into.size());
    if (piece.form != Piece::Form::sampled) return SparsePiece::combine(piece, into, op, simd);
    detail::Sample sample{0, piece.size, piece.count};
    piece.require(piece.body.size() == sizeof sample.stream + piece.count * sizeof(T),
                  "its length is not that of its elements");
    std::memcpy(&sample.stream, piece.body.data(), sizeof sample.stream);
    detail::combine_at(piece.body.data() + sizeof sample.stream, piece.count, into.data(), op,
                       sample);
  }
};
static_assert(Compressor<RandomK>);

}  // namespace mend
