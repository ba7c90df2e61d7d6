#include <mend/optim/coupled_decay.hpp>

#include <doctest/doctest.h>

#include <mend/kernel/host/scalar.hpp>
#include <mend/optim/bounded_rule.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernel/numbers.hpp"

using mend::CoupledDecay;

namespace {

using Real = mend::kernel::Scalar<double>;

double value(const Real& x) {
  double out;
  x.store(&out);
  return out;
}

struct Told {  // the remainder that a record is told
  double remainder = 0;
  void keep(std::size_t, const Real&, const Real& r) { remainder = value(r); }
};

}  // namespace

TEST_CASE("the decay is a part of the gradient, and none leaves it as it is") {
  const auto c = CoupledDecay::at(0.5, 0.25), none = CoupledDecay::at(0.5, 0);
  CHECK(value(CoupledDecay::gradient(Real{8}, Real{1}, c)) == 3);
  CHECK(value(CoupledDecay::gradient(Real{HUGE_VAL}, Real{1}, none)) == 1);
  CHECK(std::signbit(value(CoupledDecay::gradient(Real{8}, Real{-0.0}, none))));
}

TEST_CASE("what is divided by a denominator takes the decay along, and comes back") {
  const double rate = 0.1, decay = 0.2;
  const auto c = CoupledDecay::at(rate, decay), none = CoupledDecay::at(rate, 0);
  mend::Unrecorded unrecorded;
  double worst = 0;
  for (std::uint64_t i = 0; i < 10000; ++i) {
    const double p = test::number<double>(3 * i, 3), g = test::number<double>(3 * i + 1, 3),
                 d = std::fabs(test::number<double>(3 * i + 2, 3)), u = rate * (g / d);
    Real x{p};
    CoupledDecay::apply(x, Real{u}, Real{d}, c, unrecorded);
    const double size = std::fabs(p) + std::fabs(u);
    worst = std::fmax(worst, std::fabs(value(x) - (p - rate * (g + decay * p) / d)) / size);
    CoupledDecay::revert(x, Real{u}, Real{d}, c, unrecorded);
    worst = std::fmax(worst, std::fabs(value(x) - p) / size);

    Real y{p};
    CoupledDecay::apply(y, Real{u}, Real{d}, none, unrecorded);
    CHECK(value(y) == p - u);
    CoupledDecay::revert(y, Real{u}, Real{d}, none, unrecorded);
    CHECK(value(y) == (p - u) + u);
  }
  CHECK(worst < 1e-15);
}

TEST_CASE("an element that keeps little of its parameter has no bound") {
  const auto c = CoupledDecay::at(1, 0.25);
  for (double d : {0.5, 1.0, 1.5, std::numeric_limits<double>::quiet_NaN()}) {
    Real p{2};
    Told told;
    CoupledDecay::apply(p, Real{1}, Real{d}, c, told);
    CAPTURE(d);
    CHECK(std::isnan(told.remainder) == !(1 - 0.25 / d > 0.75));
  }
}
