#include <mend/compress/top_k.hpp>

#include <doctest/doctest.h>

#include <mend/core/error.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <type_traits>
#include <vector>

#include "compress/pieces.hpp"
#include "kernel/numbers.hpp"

using mend::TopK;

namespace {

//! The plain definition.
template <class T>
std::vector<T> kept(const std::vector<T>& g, std::size_t k) {
  using Word = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  std::vector<std::size_t> order(g.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{}, [&](std::size_t i) {
    return static_cast<Word>(std::bit_cast<Word>(g[i]) << 1);
  });
  std::vector<T> all(g.size());
  for (std::size_t j = 0; j < k; ++j) all[order[j]] = g[order[j]];
  return all;
}

template <class T>
bool same_numbers(const std::vector<T>& a, const std::vector<T>& b) {
  return std::ranges::equal(a, b, [](T x, T y) { return x == y || test::same_number(x, y); });
}

}  // namespace

TEST_CASE_TEMPLATE("a piece holds the k largest", T, float, double) {
  for (float keep : {0.01f, 0.1f, 0.3f, 0.5f, 0.9f, 1.0f}) {
    CAPTURE(keep);
    for (std::size_t n : test::lengths()) {
      CAPTURE(n);
      const auto g = test::numbers<T>(n, n);
      const double share = std::round(static_cast<double>(keep) * static_cast<double>(n));
      const std::size_t k = n == 0 ? 0 : std::max<std::size_t>(1, static_cast<std::size_t>(share));
      CHECK(same_numbers(test::decoded<TopK, T>(test::encoded(TopK{keep}, g), n), kept(g, k)));
    }
  }
  const auto g = test::numbers<T>(1'000'000, 2);
  CHECK(same_numbers(test::decoded<TopK, T>(test::encoded(TopK{0.01f}, g), g.size()),
                     kept(g, 10'000)));
}

TEST_CASE("k is the nearest whole number, at least 1") {
  const auto count = [](float keep, std::size_t n) {
    return (test::encoded(TopK{keep}, std::vector<float>(n)).size() - mend::Piece::head_bytes) / 8;
  };
  CHECK(count(0.01f, 1) == 0);  // all of it, without an index
  CHECK(count(0.01f, 149) == 1);
  CHECK(count(0.01f, 151) == 2);
  CHECK(count(0.1f, 10) == 1);
  CHECK(count(0.01f, 1'000'000) == 10'000);
}

TEST_CASE_TEMPLATE("the same at every level, appended, within the bound", T, float, double) {
  test::check_codec<T>(TopK{0.05f});
  test::check_codec<T>(TopK{0.7f});
  test::check_codec<T>(TopK{1});
}

TEST_CASE_TEMPLATE("what is left out is small", T, float, double) {
  for (std::size_t n : {100, 5003}) {
    std::vector<T> g(n);
    for (std::size_t i = 0; i < n; ++i) g[i] = test::number<T>(i + n);
    const auto c = test::decoded<TopK, T>(test::encoded(TopK{0.1f}, g), n);
    double lost = 0, all = 0;
    for (std::size_t i = 0; i < n; ++i) {
      all += static_cast<double>(g[i]) * static_cast<double>(g[i]);
      lost += (static_cast<double>(g[i]) - static_cast<double>(c[i])) *
              (static_cast<double>(g[i]) - static_cast<double>(c[i]));
    }
    CHECK(lost > 0);
    CHECK(lost <= 0.9 * all);
  }
  // No better where all are equal.
  const std::vector<T> flat(1000, T(2));
  const auto c = test::decoded<TopK, T>(test::encoded(TopK{0.1f}, flat), flat.size());
  CHECK(std::ranges::count(c, T(0)) == 900);
  CHECK(std::ranges::count(std::span{c}.first(100), T(2)) == 100);
}

TEST_CASE("a damaged piece is refused, or is another piece") {
  const auto g = test::numbers<float>(40, 3);
  test::check_damage<TopK, float>(test::encoded(TopK{0.1f}, g), g.size());
  test::check_damage<TopK, float>(test::encoded(TopK{1}, g), g.size());
  const auto d = test::numbers<double>(33, 3);
  test::check_damage<TopK, double>(test::encoded(TopK{0.1f}, d), d.size());
}

TEST_CASE("keep lies in (0, 1]") {
  CHECK_NOTHROW(TopK{}.check());
  CHECK_NOTHROW(TopK{1}.check());
  for (float keep : {0.0f, -0.1f, 1.01f, std::numeric_limits<float>::quiet_NaN(),
                     std::numeric_limits<float>::infinity()})
    CHECK_THROWS_AS(TopK{keep}.check(), mend::OptionError);
}

TEST_CASE("a tensor that 32 bits cannot count is refused before it is read") {
  mend::Bytes out;
  const float one = 1;
  const std::span<const float> huge{&one, std::size_t{1} << 32};
  CHECK_THROWS_AS(TopK{}.encode(huge, {}, out), mend::OptionError);
  CHECK(out.empty());
}
