#include <mend/kernel/host/lanes.hpp>

#include <doctest/doctest.h>

#include <mend/kernel/host/instruction_sets.hpp>
#include <mend/kernel/host/scalar.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernel/numbers.hpp"

using namespace mend::kernel;

namespace {

constexpr std::size_t results = 20;

//! Every operation on x, y, z (as many as the widest register, 16), one row of results each.
template <class T>
struct AllOperations {
  const T *x, *y, *z;
  T* out;

  template <class Set>
  void operator()(Set) const {
    using Real = Lanes<T, Set>;
    for (std::size_t i = 0; i < 16; i += Real::width) {
      const Real a = Real::load(x + i), b = Real::load(y + i), c = Real::load(z + i);
      T* row = out + i;
      auto put = [&row](const Real& r) {
        r.store(row);
        row += 16;
      };
      put(a + b);
      put(a - b);
      put(a * b);
      put(a / b);
      put(-a);
      put(fma(a, b, c));
      put(fma(0.1, a, 1));
      put(sqrt(a));
      put(abs(a));
      put(copysign(a, b));
      put(copysign(a, a - a));
      put(max(a, b));
      put(min(a, b));
      put(select(a < b, a, c));
      put(select(a > b, a, c));
      put(select(a <= b, a, c));
      put(select(a >= b, a, c));
      put(select(a == b, a, c));
      put(a - b * c);
      Real copy = a;
      copy = 2.5 * copy;
      put(copy);
    }
  }
};

template <class T>
std::vector<T> all_operations(Simd simd, const std::vector<T>& x, const std::vector<T>& y,
                              const std::vector<T>& z) {
  std::vector<T> out(results * x.size());
  for (std::size_t i = 0; i < x.size(); i += 16)
    run_on(simd,
           AllOperations<T>{x.data() + i, y.data() + i, z.data() + i, out.data() + results * i});
  return out;
}

template <class T>
int differences(const std::vector<T>& a, const std::vector<T>& b) {
  int different = 0;
  for (std::size_t i = 0; i < a.size(); ++i) different += !test::same_number(a[i], b[i]);
  return different;
}

}  // namespace

TEST_CASE_TEMPLATE("every operation gives one result in every instruction set", T, float, double) {
  // Every pair of special values with a random third, then random numbers and special values.
  const auto& special = test::special_values<T>();
  std::vector<T> x, y;
  for (T a : special)
    for (T b : special) {
      x.push_back(a);
      y.push_back(b);
    }
  const auto more_x = test::numbers<T>(20000, 1), more_y = test::numbers<T>(20000, 2);
  x.insert(x.end(), more_x.begin(), more_x.end());
  y.insert(y.end(), more_y.begin(), more_y.end());
  x.resize((x.size() + 15) / 16 * 16);
  y.resize(x.size());
  const auto z = test::numbers<T>(x.size(), 3);
  const auto expected = all_operations(Simd::scalar, x, y, z);
  for (Simd simd : test::levels()) {
    CAPTURE(name_of(simd));
    CHECK(differences(all_operations(simd, x, y, z), expected) == 0);
  }
}

TEST_CASE_TEMPLATE("fma is rounded once where the sum falls between two floats", T, float, double) {
  // c near -a b, near half a unit of a b, and far below it: where rounding twice goes wrong.
  std::vector<T> x, y, z;
  using Limits = std::numeric_limits<T>;
  for (std::uint64_t i = 0; i < 32000; ++i) {
    const int range = i % 4 == 0 ? Limits::max_exponent / 2 - 2 : 20;
    const T a = test::number<T>(5 * i, range), b = test::number<T>(5 * i + 1, range);
    const T unit = a * b * Limits::epsilon() / 2;
    const T near[] = {-a * b,
                      unit,
                      -unit,
                      unit * (1 + Limits::epsilon()),
                      unit * Limits::epsilon(),
                      test::number<T>(5 * i + 2, range),
                      Limits::denorm_min()};
    x.push_back(a);
    y.push_back(b);
    z.push_back(near[test::mix(i) % std::size(near)]);
  }
  const auto expected = all_operations(Simd::scalar, x, y, z);
  int wrong = 0;
  for (std::size_t i = 0; i < x.size(); ++i)  // row 5
    wrong += !test::same_number(expected[i / 16 * 16 * results + 5 * 16 + i % 16],
                                std::fma(x[i], y[i], z[i]));
  CHECK(wrong == 0);
  for (Simd simd : test::levels()) {
    CAPTURE(name_of(simd));
    CHECK(differences(all_operations(simd, x, y, z), expected) == 0);
  }
}

TEST_CASE("what max, min and copysign do with zeros and NaNs is fixed") {
  auto value = [](const Scalar<float>& s) {
    float x;
    s.store(&x);
    return x;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  using S = Scalar<float>;
  CHECK(value(max(S{1}, S{nan})) == 1);
  CHECK(std::isnan(value(max(S{nan}, S{1}))));
  CHECK(std::signbit(value(max(S{-0.0f}, S{0.0f}))));
  CHECK(!std::signbit(value(min(S{0.0f}, S{-0.0f}))));
  CHECK(value(copysign(S{2}, S{-nan})) == 2);
  CHECK(value(copysign(S{2}, S{-0.0f})) == -2);
}
