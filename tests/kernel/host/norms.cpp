#include <mend/kernel/host/norms.hpp>

#include <doctest/doctest.h>

#include <mend/core/dtype.hpp>
#include <mend/kernel/host/reduce.hpp>
#include <mend/kernel/host/scalar.hpp>
#include <mend/kernel/host/workers.hpp>
#include <mend/kernel/slots.hpp>
#include <mend/optim/lamb.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "kernel/numbers.hpp"

using namespace mend::kernel;

namespace {

// Terms that are not zero for zeros: an element too many shows.
struct Shifted {
  static constexpr std::array<std::string_view, 1> slots{"m"};
  struct Coefficients {
    double shift;
  };
  static constexpr std::size_t norms = 3;
  template <class Real>
  static void prepare(const Real& p, const mend::Slots<Real, 1>& s, Real g, const auto& c,
                      mend::Slots<Real, 3>& terms) {
    terms = {p + c.shift, s[0], g};
  }
};
struct Stateless {
  static constexpr std::array<std::string_view, 0> slots{};
  struct Coefficients {};
  static constexpr std::size_t norms = 1;
  template <class Real>
  static void prepare(const Real& p, const mend::Slots<Real, 0>&, Real, const auto&,
                      mend::Slots<Real, 1>& terms) {
    terms = {p};
  }
};

template <class T>
std::vector<T> ordinary(std::size_t n, std::uint64_t seed) {
  std::vector<T> v(n);
  for (std::size_t i = 0; i < n; ++i) v[i] = test::number<T>(test::mix(seed) + i);
  return v;
}

template <class T>
double norm_of(const std::vector<T>& x) {
  return std::sqrt(sum_of_squares(mend::dtype_of<T>, x.data(), x.size()));
}

}  // namespace

TEST_CASE_TEMPLATE("norms add in the order of sum_of_squares, for every length, level and threads",
                   T, float, double) {
  Workers workers{3};
  std::vector<std::size_t> lengths{65535, 65536, 65537, 200001};
  for (std::size_t n = 0; n <= 35; ++n) lengths.push_back(n);
  for (std::size_t n : lengths) {
    CAPTURE(n);
    const auto p = ordinary<T>(n, 1), m = ordinary<T>(n, 2), g = ordinary<T>(n, 3);
    auto shifted = p, scaled = g;
    for (T& x : shifted) x += T(0.25);
    for (T& x : scaled) x *= T(0.3);
    const std::array<double, 3> expected{norm_of(shifted), norm_of(m), norm_of(scaled)};
    for (Simd simd : test::levels())
      for (Workers* threads : {static_cast<Workers*>(nullptr), &workers}) {
        const auto found =
            norms<Shifted>({0.25}, p.data(), {m.data()}, g.data(), n, T(0.3), threads, simd);
        CHECK(std::memcmp(&found, &expected, sizeof found) == 0);
      }
    CHECK(norms<Stateless>({}, p.data(), {}, g.data(), n) == std::array{norm_of(p)});
  }
}

TEST_CASE("a real rule: the same bits in all levels, special values included") {
  const std::size_t n = 70003;
  const auto g = ordinary<float>(n, 1), p = ordinary<float>(n, 2), m = ordinary<float>(n, 3);
  auto v = ordinary<float>(n, 4);
  for (float& x : v) x = std::fabs(x);
  const auto c = mend::Lamb{}.at(5);
  const auto expected = norms<mend::Lamb>(c, p.data(), {m.data(), v.data()}, g.data(), n, 1.0f,
                                          nullptr, Simd::scalar);
  CHECK(expected[0] == norm_of(p));
  CHECK(std::isfinite(expected[1]));
  for (Simd simd : test::levels())
    CHECK(norms<mend::Lamb>(c, p.data(), {m.data(), v.data()}, g.data(), n, 1.0f, nullptr, simd) ==
          expected);
}

TEST_CASE("what is not finite shows, a NaN as the one quiet NaN") {
  std::vector<float> p(40), g(40);
  p[33] = HUGE_VALF;
  CHECK(norms<Stateless>({}, p.data(), {}, g.data(), 40)[0] == HUGE_VAL);
  p[7] = -std::nanf("7");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (Simd simd : test::levels()) {
    const auto found = norms<Stateless>({}, p.data(), {}, g.data(), 40, 1.0f, nullptr, simd);
    CHECK(std::memcmp(&found[0], &nan, sizeof nan) == 0);
  }
}

TEST_CASE("slots and parameters are only read") {
  const std::vector<float> p(100, 1.0f), m(100, 2.0f), v(100, 3.0f), g(100, 4.0f);
  const auto p0 = p, m0 = m, v0 = v, g0 = g;
  (void)norms<mend::Lamb>(mend::Lamb{}.at(0), p.data(), {m.data(), v.data()}, g.data(), 100);
  CHECK(p == p0);
  CHECK(m == m0);
  CHECK(v == v0);
  CHECK(g == g0);
}
