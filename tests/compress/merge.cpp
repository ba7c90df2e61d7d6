#include <mend/compress/merge.hpp>

#include <doctest/doctest.h>

#include <mend/compress/quantize.hpp>
#include <mend/compress/random_k.hpp>
#include <mend/compress/top_k.hpp>
#include <mend/core/dtype.hpp>
#include <mend/core/error.hpp>
#include <mend/kernel/host/reduce.hpp>

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "compress/pieces.hpp"
#include "kernel/numbers.hpp"

using mend::TopK, mend::RandomK, mend::Quantize8;

namespace {

template <class C, class T>
std::vector<T> merged(const std::vector<mend::Bytes>& pieces, std::size_t n) {
  const std::vector<mend::ByteView> views{pieces.begin(), pieces.end()};
  std::vector<T> into(n, T(9));
  mend::merge<C>(std::span<const mend::ByteView>{views}, std::span<T>{into});
  return into;
}

template <class C, class T>
void check_merge(const C& codec, bool special) {
  for (int ranks : {1, 2, 3, 7})
    for (std::size_t n : test::lengths()) {
      CAPTURE(ranks);
      CAPTURE(n);
      std::vector<mend::Bytes> pieces;
      std::vector<T> expected(n);
      for (int r = 0; r < ranks; ++r) {
        const auto seed = static_cast<std::uint64_t>(r) + n;
        pieces.push_back(test::encoded(
            codec, special ? test::numbers<T>(n, seed) : test::finite_numbers<T>(n, seed)));
        const auto held = test::decoded<C, T>(pieces.back(), n);
        for (std::size_t i = 0; i < n; ++i) expected[i] = expected[i] + held[i];
      }
      for (T& x : expected) {
        x = x / static_cast<T>(ranks);
        if (std::isnan(x)) x = std::numeric_limits<T>::quiet_NaN();
      }
      CHECK(test::same_bits(merged<C, T>(pieces, n), expected));
    }
}

template <class T>
std::vector<T> stored(const std::vector<T>& dense, std::size_t* bytes = nullptr) {
  mend::Bytes out;
  mend::encode_merged(std::span<const T>{dense}, out);
  if (bytes != nullptr) *bytes = out.size();
  std::vector<T> into(dense.size(), T(9));
  mend::decode_merged(mend::ByteView{out}, std::span<T>{into});
  return into;
}

}  // namespace

TEST_CASE_TEMPLATE("the mean of the pieces, summed in rank order", T, float, double) {
  for (bool special : {false, true}) {
    check_merge<TopK, T>(TopK{0.1f}, special);
    check_merge<TopK, T>(TopK{1}, special);
    check_merge<RandomK, T>(RandomK{0.1f, 3}, special);
    check_merge<Quantize8, T>(Quantize8{}, special);
  }
}

TEST_CASE_TEMPLATE("of whole gradients, the bits of mend's own mean", T, float, double) {
  constexpr std::size_t n = 5003;
  constexpr int ranks = 3;
  std::vector<mend::Bytes> pieces;
  std::vector<T> sum;
  for (int r = 0; r < ranks; ++r) {
    const auto g = test::numbers<T>(n, static_cast<std::uint64_t>(r));
    pieces.push_back(test::encoded(TopK{1}, g));
    if (r == 0) {
      sum = g;
      continue;
    }
    auto mine = g;
    mend::kernel::accumulate(mend::dtype_of<T>, mine.data(), sum.data(), n);
    sum = mine;
  }
  mend::kernel::scale_to_mean(mend::dtype_of<T>, sum.data(), n, ranks);
  const auto mean = merged<TopK, T>(pieces, n);
  std::size_t zeros = 0;
  for (std::size_t i = 0; i < n; ++i) {
    zeros += sum[i] == 0 && std::signbit(sum[i]) && !std::signbit(mean[i]);  // all were -0
    CHECK((test::same_number(mean[i], sum[i]) || (mean[i] == 0 && sum[i] == 0)));
  }
  CHECK(zeros < 10);
}

TEST_CASE("what cannot be merged") {
  std::vector<float> into(10);
  CHECK_THROWS_AS(mend::merge<TopK>({}, std::span<float>{into}), mend::OptionError);
  const auto piece = test::encoded(TopK{1}, std::vector<float>(9));
  CHECK_THROWS_AS((merged<TopK, float>({piece}, 10)), mend::FileError);
}

TEST_CASE_TEMPLATE("merged values are stored bit for bit, whatever they are", T, float, double) {
  for (std::size_t n : test::lengths())
    for (std::size_t every : {1, 2, 5, 50}) {
      auto x = test::numbers<T>(n, n + every);
      for (std::size_t i = 0; i < n; ++i)
        if (i % every != 0) x[i] = 0;
      CHECK(test::same_bits(stored(x), x));
    }
  std::vector<T> minus(100, -T(0));
  CHECK(test::same_bits(stored(minus), minus));
}

TEST_CASE("the union of sparse pieces is stored as one, and never takes more than all values") {
  std::vector<float> x(1000);
  std::size_t bytes = 0;
  stored(x, &bytes);
  CHECK(bytes == 12);
  for (std::size_t i = 0; i < 20; ++i) x[i * 49] = 1;
  stored(x, &bytes);
  CHECK(bytes == 12 + 20 * 8);
  for (float& v : x) v = 1;
  stored(x, &bytes);
  CHECK(bytes == 12 + 1000 * 4);
}

TEST_CASE("a damaged differential is refused, or is another one") {
  std::vector<float> x(40);
  for (std::size_t i = 0; i < 5; ++i) x[i * 9] = static_cast<float>(i) - 2.5f;
  mend::Bytes piece;
  mend::encode_merged(std::span<const float>{x}, piece);
  const auto taken = [&](const mend::Bytes& bytes) {
    std::vector<float> into(x.size(), 5.0f);
    try {
      mend::decode_merged(mend::ByteView{bytes}, std::span<float>{into});
      return true;
    } catch (const mend::FileError&) {
      CHECK(into == std::vector<float>(x.size(), 5.0f));
      return false;
    }
  };
  REQUIRE(taken(piece));
  for (std::size_t size = 0; size < piece.size(); ++size)
    CHECK_FALSE(taken({piece.begin(), piece.begin() + static_cast<long>(size)}));
  for (std::size_t at = 0; at < piece.size(); ++at)
    for (unsigned bits = 1; bits < 256; ++bits) {
      auto flipped = piece;
      flipped[at] ^= static_cast<std::byte>(bits);
      const bool good = taken(flipped);
      if (at < 8) CHECK_FALSE(good);
    }
}
