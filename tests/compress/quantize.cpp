#include <mend/compress/quantize.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "compress/pieces.hpp"
#include "kernel/numbers.hpp"

using mend::Quantize8;

namespace {

//! The plain definition, of one block.
template <class T>
void quantized(T* x, std::size_t n) {
  T most = 0;
  bool finite = true;
  for (std::size_t i = 0; i < n; ++i) {
    most = std::max(most, std::abs(x[i]));
    finite = finite && std::isfinite(x[i]);
  }
  const T scale = most / 127;
  if (!finite || (most > 0 && scale < std::numeric_limits<T>::min())) return;
  for (std::size_t i = 0; i < n; ++i)
    x[i] = most == 0 ? T(0) : std::nearbyint(x[i] / scale) * scale;
}

template <class T>
std::vector<T> round_trip(const std::vector<T>& g) {
  return test::decoded<Quantize8, T>(test::encoded(Quantize8{}, g), g.size());
}

}  // namespace

TEST_CASE_TEMPLATE("a piece holds what the definition says", T, float, double) {
  for (std::size_t n : test::lengths()) {
    CAPTURE(n);
    for (bool special : {false, true}) {
      auto g = special ? test::numbers<T>(n, n) : std::vector<T>(n);
      if (!special)
        for (std::size_t i = 0; i < n; ++i) g[i] = test::number<T>(i + n);
      const auto c = round_trip(g);
      for (std::size_t at = 0; at < n; at += 256)
        quantized(&g[at], std::min<std::size_t>(256, n - at));
      for (std::size_t i = 0; i < n; ++i) CHECK((c[i] == g[i] || test::same_number(c[i], g[i])));
    }
  }
}

TEST_CASE("halves go to the even neighbour") {
  CHECK(round_trip<float>({127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 126.5f, 125.5f}) ==
        std::vector<float>{127, 0, 2, 2, 0, -2, 126, 126});
}

TEST_CASE_TEMPLATE("the stated bounds hold, and are not idle", T, float, double) {
  double most = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    std::vector<T> g(256);
    for (std::size_t i = 0; i < g.size(); ++i) g[i] = test::number<T>(1000 * seed + i, 4);
    const auto c = round_trip(g);
    double size = 0, error = 0, lost = 0, all = 0;
    for (std::size_t i = 0; i < g.size(); ++i) {
      const double x = static_cast<double>(g[i]), off = x - static_cast<double>(c[i]);
      size = std::max(size, std::abs(x));
      error = std::max(error, std::abs(off));
      lost += off * off;
      all += x * x;
    }
    most = std::max(most, error / size);
    CHECK(error <= 0.00394 * size);
    CHECK(lost <= 0.004 * all);
  }
  CHECK(most > 0.0039);
}

TEST_CASE_TEMPLATE("infinities, NaNs and tiny numbers keep their block as it is", T, float,
                   double) {
  using Limits = std::numeric_limits<T>;
  for (T special : {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()}) {
    std::vector<T> g(600, T(0.3));
    g[300] = special;
    const auto c = round_trip(g);
    for (std::size_t i = 256; i < 512; ++i) CHECK(test::same_number(c[i], g[i]));
    CHECK(c[0] == g[0]);  // the largest of its block, to rounding
    CHECK(c[599] == g[599]);
  }
  std::vector<T> tiny(300);
  for (std::size_t i = 0; i < tiny.size(); ++i) tiny[i] = static_cast<T>(i) * Limits::denorm_min();
  CHECK(round_trip(tiny) == tiny);
  const std::vector<T> huge(300, Limits::max());
  CHECK(round_trip(huge) == huge);
}

TEST_CASE("a piece is about a quarter of the gradient; of zeros, next to nothing") {
  const auto size = [](const std::vector<float>& g) {
    return test::encoded(Quantize8{}, g).size();
  };
  CHECK(size(std::vector<float>(2560, 1.0f)) == 12 + 10 * (4 + 256));
  CHECK(size(std::vector<float>(2560)) == 12 + 10 * 4);
  CHECK(size({}) == 12);
}

TEST_CASE_TEMPLATE("the same at every level, appended, within the bound", T, float, double) {
  test::check_codec<T>(Quantize8{});
}

TEST_CASE("a damaged piece is refused, or is another piece") {
  for (bool special : {false, true}) {
    auto g = test::finite_numbers<float>(300, 3);
    for (std::size_t i = 0; i < g.size(); ++i) g[i] = test::number<float>(i);
    if (special) g[270] = std::numeric_limits<float>::infinity();
    test::check_damage<Quantize8, float>(test::encoded(Quantize8{}, g), g.size());
  }
  std::vector<double> d(40, 1.5);
  test::check_damage<Quantize8, double>(test::encoded(Quantize8{}, d), d.size());
}
