#include <mend/optim/inverse.hpp>

#include <doctest/doctest.h>

#include <mend/kernel/host/scalar.hpp>

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernel/numbers.hpp"

namespace {

template <class T>
T undo(T now, T t, T b) {
  using Real = mend::kernel::Scalar<T>;
  T x;
  mend::undo_fma(Real{now}, Real{t}, Real{b}, Real{1 / b}).store(&x);
  return x;
}

}  // namespace

TEST_CASE_TEMPLATE("the inverse of x -> fma(b, x, t) is right to a hair more than half a unit", T,
                   float, double) {
  double worst = 0;
  for (std::uint64_t i = 0; i < 100000; ++i) {
    const T b = T(0.75) + std::ldexp(std::fabs(test::number<T>(3 * i, 1)), -3);
    const T now = test::number<T>(3 * i + 1, 3), t = test::number<T>(3 * i + 2, 3);
    const long double exact = (static_cast<long double>(now) - t) / b;
    if (exact == 0) continue;
    const T unit =
        std::numeric_limits<T>::epsilon() * std::ldexp(T(1), std::ilogb(static_cast<T>(exact)));
    worst = std::fmax(worst, static_cast<double>(std::fabs(undo(now, t, b) - exact) / unit));
  }
  CHECK(worst > 0.4);
  CHECK(worst < 0.501);
}

TEST_CASE_TEMPLATE("zeros, and a factor of 1", T, float, double) {
  CHECK(undo(T(0.5), T(0.5), T(0.9)) == 0);
  CHECK(!std::signbit(undo(T(0.5), T(0.5), T(0.9))));
  CHECK(!std::signbit(undo(T(0), T(0), T(0.9))));
  for (std::uint64_t i = 0; i < 10000; ++i) {
    const T now = test::number<T>(2 * i, 3), t = test::number<T>(2 * i + 1, 3);
    CHECK(undo(now, t, T(1)) == now - t);
  }
}

TEST_CASE_TEMPLATE("the largest and the smallest numbers", T, float, double) {
  using Limits = std::numeric_limits<T>;
  const T b = T(0.875), largest = Limits::max();
  CHECK(undo(b * largest, T(0), b) >= largest * (1 - Limits::epsilon()));
  CHECK(undo(largest, -largest, T(1)) == Limits::infinity());
  CHECK(undo(Limits::denorm_min(), T(0), b) == Limits::denorm_min());
  CHECK(undo(Limits::min() * b, T(0), b) == Limits::min());
}
