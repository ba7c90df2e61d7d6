#include <mend/compress/sparse_piece.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "kernel/numbers.hpp"

using mend::DType, mend::Piece, mend::SparsePiece;

namespace {

template <class T>
mend::Bytes written(const std::vector<T>& x, const std::vector<std::uint32_t>& indices) {
  mend::Bytes out;
  SparsePiece::append<T>(x, indices, out);
  CHECK(out.size() == SparsePiece::bytes(x.size(), indices.size(), mend::dtype_of<T>));
  return out;
}

template <class T>
std::vector<T> read(const mend::Bytes& piece, std::size_t n) {
  std::vector<T> into(n, T(77));
  SparsePiece::read<T>(Piece::parse(piece, mend::dtype_of<T>, n), into);
  return into;
}

// A piece of two floats of a tensor of 9 at these places.
bool takes(std::uint32_t first, std::uint32_t second) {
  auto piece = written<float>(std::vector<float>(9), {3, 5});
  std::memcpy(&piece[Piece::head_bytes], &first, 4);
  std::memcpy(&piece[Piece::head_bytes + 4], &second, 4);
  std::vector<float> into(9);
  try {
    SparsePiece::combine<float>(Piece::parse(piece, DType::f32, 9), into, mend::detail::AddTo{},
                                mend::kernel::best_simd());
    return true;
  } catch (const mend::FileError&) {
    return false;
  }
}

}  // namespace

TEST_CASE_TEMPLATE("chosen values come back bit for bit, the rest is +0", T, float, double) {
  const auto x = test::numbers<T>(1000, 1);
  for (std::size_t every : {1, 2, 3, 100, 1001}) {
    std::vector<std::uint32_t> indices;
    std::vector<T> expected(x.size());
    for (std::size_t i = every - 1; i < x.size(); i += every) {
      indices.push_back(static_cast<std::uint32_t>(i));
      expected[i] = x[i];
    }
    CHECK(test::same_bits(read<T>(written(x, indices), x.size()), expected));
  }
}

TEST_CASE("the shorter form is taken") {
  const std::vector<float> x(10, 1.0f);
  CHECK(written<float>(x, {0, 1, 2, 9})[0] == static_cast<std::byte>(Piece::Form::sparse));
  CHECK(written<float>(x, {0, 1, 2, 3, 9})[0] == static_cast<std::byte>(Piece::Form::dense));
  CHECK(written<float>(x, {}).size() == Piece::head_bytes);
  CHECK(written<float>({}, {}).size() == Piece::head_bytes);
  mend::Bytes all;
  SparsePiece::append_dense<float>(x, all);
  CHECK(all == written<float>(x, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST_CASE("indices ascend and lie within the tensor") {
  CHECK(takes(0, 8));
  CHECK_FALSE(takes(3, 3));
  CHECK_FALSE(takes(5, 3));
  CHECK_FALSE(takes(3, 9));
  CHECK_FALSE(takes(9, 3));
  CHECK_FALSE(takes(3, 0xffffffff));
}
