#include <mend/optim/moments.hpp>

#include <doctest/doctest.h>

#include <mend/core/error.hpp>
#include <mend/kernel/host/scalar.hpp>
#include <mend/optim/bias_correction.hpp>
#include <mend/optim/bounded_rule.hpp>

#include <cmath>

using mend::Moments;

namespace {

using Real = mend::kernel::Scalar<double>;

double value(const Real& x) {
  double out;
  x.store(&out);
  return out;
}

}  // namespace

TEST_CASE("averages of a constant gradient, corrected, are the gradient and its square") {
  Real m = 0, v = 0;
  for (int t = 1; t <= 50; ++t) {
    const auto c = Moments::at(0.9, 0.99, 1e-30, t);
    Moments::advance(m, v, Moments::added(Real{-3}, c), c);
    CHECK(value(m) == doctest::Approx(-3 * mend::bias_correction(0.9, t)));
    CHECK(value(v) == doctest::Approx(9 * mend::bias_correction(0.99, t)));
    CHECK(value(Moments::denominator(v, c)) == doctest::Approx(3));
    CHECK(value(Moments::direction(m, v, c)) == doctest::Approx(-mend::bias_correction(0.9, t)));
  }
}

TEST_CASE("what a step added is taken out again") {
  const auto c = Moments::at(0.9, 0.99, 1e-8, 5);
  Real m = 0.5, v = 0.25;
  const auto add = Moments::added(Real{7}, c);
  Moments::advance(m, v, add, c);
  mend::Unrecorded none;
  Moments::recall(m, v, add, c, none);
  CHECK(value(m) == doctest::Approx(0.5).epsilon(1e-15));
  CHECK(value(v) == doctest::Approx(0.25).epsilon(1e-15));
}

TEST_CASE("without memory nothing is divided by zero, and nothing is bounded") {
  const auto c = Moments::at(0, 0, 1e-8, 1);
  CHECK(c.inverse1 == 0);
  CHECK(c.inverse2 == 0);
  CHECK(c.scale == 1);
  CHECK(!c.bounded());
  CHECK(Moments::at(0.9, 0.999, 1e-8, 1).bounded());
}

TEST_CASE("options are refused in the name of the rule") {
  CHECK_NOTHROW(Moments::check(0, 0.999, 1e-8, "R"));
  CHECK_THROWS_WITH_AS(Moments::check(1, 0.9, 1, "R"),
                       "R: beta1 = 1 must lie in [0, 1), as a float too", mend::OptionError);
  CHECK_THROWS_WITH_AS(Moments::check(0, -1, 1, "R"),
                       "R: beta2 = -1 must lie in [0, 1), as a float too", mend::OptionError);
  CHECK_THROWS_WITH_AS(Moments::check(0, 0, 0, "R"),
                       "R: eps = 0 must be finite and positive as a float", mend::OptionError);
}
