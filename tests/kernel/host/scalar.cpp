#include <mend/kernel/host/scalar.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <type_traits>

#include "kernel/numbers.hpp"

using mend::kernel::Scalar;

namespace {

template <class T>
T value_of(const Scalar<T>& s) {
  T value;
  s.store(&value);
  return value;
}

// What a rule says, and what must come of it: the product in memory, then the difference.
template <class T>
__attribute__((noinline)) T natural(T p, T g, T lr) {
  return value_of<T>(Scalar<T>{p} - Scalar<T>{g} * lr);
}
template <class T>
T rounded_twice(T p, T g, T lr) {
  volatile T product = g * lr;
  return p - product;
}

}  // namespace

TEST_CASE_TEMPLATE("a product is rounded before the sum that uses it", T, float, double) {
  int fused = 0, wrong = 0;
  for (std::uint64_t i = 0; i < 10000; ++i) {
    const T g = test::number<T>(3 * i), lr = test::number<T>(3 * i + 1), p = g * lr;
    wrong += natural(p, g, lr) != rounded_twice(p, g, lr);
    fused += std::fma(-g, lr, p) != rounded_twice(p, g, lr);
  }
  CHECK(wrong == 0);
  CHECK(fused > 5000);  // the data do tell the two apart
}

TEST_CASE_TEMPLATE("fma is rounded once", T, float, double) {
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const T a = test::number<T>(3 * i), b = test::number<T>(3 * i + 1), c = -a * b;
    CHECK(value_of(fma(Scalar<T>{a}, Scalar<T>{b}, Scalar<T>{c})) == std::fma(a, b, c));
  }
}

TEST_CASE("numbers of every type stand on either side and are rounded once to the element") {
  const Scalar<float> x = 3;
  CHECK(value_of(x * 0.1) == 3 * 0.1f);
  CHECK(value_of(0.1 * x) == 3 * 0.1f);
  CHECK(value_of(x - 1) == 2);
  CHECK(value_of(1.5f + x) == 4.5f);
  CHECK(value_of(1 / x) == 1 / 3.0f);
  CHECK(value_of(fma(0.5, x, 1)) == 2.5f);
  const Scalar<double> y = 3;
  CHECK(value_of(y * 0.1) == 3 * 0.1);
  CHECK(value_of(y * 0.1f) == 3 * static_cast<double>(0.1f));
  static_assert(!std::is_convertible_v<float, Scalar<float>*>);
  static_assert(sizeof(Scalar<float>) == sizeof(float));
}
