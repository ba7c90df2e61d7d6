#include <mend/compress/random_k.hpp>

#include <doctest/doctest.h>

#include <mend/compress/top_k.hpp>
#include <mend/core/error.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "compress/pieces.hpp"
#include "kernel/numbers.hpp"

using mend::RandomK, mend::PieceKey, mend::Rank, mend::Step;

namespace {

//! Which elements of n are kept.
std::vector<std::size_t> chosen(const RandomK& codec, std::size_t n, const PieceKey& key) {
  const std::vector<float> ones(n, 1.0f);
  const auto c = test::decoded<RandomK, float>(test::encoded(codec, ones, key), n);
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < n; ++i)
    if (c[i] != 0) all.push_back(i);
  return all;
}

}  // namespace

TEST_CASE("k distinct elements, the same on all ranks, others for another seed, tensor and step") {
  for (std::size_t n : {1, 2, 63, 64, 65, 1000, 100'003})
    for (float keep : {0.01f, 0.3f, 0.6f, 1.0f}) {
      CAPTURE(n);
      const auto all = chosen({keep, 1}, n, {2, Step{3}, Rank{0}});
      const double share = std::round(static_cast<double>(keep) * static_cast<double>(n));
      CHECK(all.size() == std::max<std::size_t>(1, static_cast<std::size_t>(share)));
      CHECK(chosen({keep, 1}, n, {2, Step{3}, Rank{5}}) == all);
      if (n < 1000 || keep == 1) continue;
      CHECK(chosen({keep, 2}, n, {2, Step{3}, Rank{0}}) != all);
      CHECK(chosen({keep, 1}, n, {3, Step{3}, Rank{0}}) != all);
      CHECK(chosen({keep, 1}, n, {2, Step{4}, Rank{0}}) != all);
    }
}

TEST_CASE("the choice does not change between versions") {
  CHECK(chosen({0.1f, 42}, 60, {1, Step{2}, Rank{0}}) ==
        std::vector<std::size_t>{0, 15, 26, 34, 43, 55});
}

TEST_CASE("over the steps, every element is chosen about equally often") {
  constexpr std::size_t n = 70, steps = 20'000;
  std::vector<std::size_t> times(n);
  for (std::size_t step = 0; step < steps; ++step)
    for (std::size_t i : chosen({0.1f, 9}, n, {4, Step{step}, Rank{0}})) ++times[i];
  for (std::size_t t : times) {  // 2000 expected, a deviation of 42
    CHECK(t > 1750);
    CHECK(t < 2250);
  }
}

TEST_CASE_TEMPLATE("values are kept as they are", T, float, double) {
  const auto g = test::finite_numbers<T>(5003, 1);
  const auto c = test::decoded<RandomK, T>(test::encoded(RandomK{0.2f, 7}, g), g.size());
  const auto all = chosen({0.2f, 7}, g.size(), {});
  std::vector<T> expected(g.size());
  for (std::size_t i : all) expected[i] = g[i] == 0 ? T(0) : g[i];
  CHECK(test::same_bits(c, expected));
}

TEST_CASE_TEMPLATE("infinities and NaNs are sent first", T, float, double) {
  using Limits = std::numeric_limits<T>;
  for (T bad : {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()}) {
    std::vector<T> g(1000, T(1));
    g[777] = bad;
    const auto piece = test::encoded(RandomK{0.01f, 3}, g);
    CHECK(piece == test::encoded(mend::TopK{0.01f}, g));
    CHECK(test::same_number(test::decoded<RandomK, T>(piece, g.size())[777], bad));
  }
}

TEST_CASE_TEMPLATE("the same at every level, appended, within the bound", T, float, double) {
  test::check_codec<T>(RandomK{0.05f, 1});
  test::check_codec<T>(RandomK{1, 1});
}

TEST_CASE("a damaged piece is refused, or is another piece") {
  const auto g = test::finite_numbers<float>(40, 3);
  test::check_damage<RandomK, float>(test::encoded(RandomK{0.1f, 1}, g), g.size());
  const auto d = test::finite_numbers<double>(33, 3);
  test::check_damage<RandomK, double>(test::encoded(RandomK{1, 1}, d), d.size());
}

TEST_CASE("keep lies in (0, 1]") {
  CHECK_NOTHROW(RandomK{}.check());
  CHECK_THROWS_AS(RandomK{0}.check(), mend::OptionError);
  CHECK_THROWS_AS(RandomK{2}.check(), mend::OptionError);
}
