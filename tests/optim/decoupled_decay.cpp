#include <mend/optim/decoupled_decay.hpp>

#include <doctest/doctest.h>

#include <mend/kernel/host/scalar.hpp>
#include <mend/optim/bounded_rule.hpp>

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernel/numbers.hpp"

using mend::DecoupledDecay;

namespace {

template <class T>
T applied(T p, T u, const DecoupledDecay& c) {
  mend::kernel::Scalar<T> x{p};
  mend::Unrecorded none;
  DecoupledDecay::apply(x, mend::kernel::Scalar<T>{u}, c, none);
  x.store(&p);
  return p;
}
template <class T>
T reverted(T p, T u, const DecoupledDecay& c) {
  mend::kernel::Scalar<T> x{p};
  mend::Unrecorded none;
  DecoupledDecay::revert(x, mend::kernel::Scalar<T>{u}, c, none);
  x.store(&p);
  return p;
}

}  // namespace

TEST_CASE_TEMPLATE("one rounding, and back", T, float, double) {
  const auto c = DecoupledDecay::at(0.1, 0.5), none = DecoupledDecay::at(0.1, 0);
  const T kept = static_cast<T>(1 - 0.1 * 0.5);
  int wrong = 0;
  for (std::uint64_t i = 0; i < 10000; ++i) {
    const T p = test::number<T>(2 * i, 4), u = test::number<T>(2 * i + 1, 4);
    const T next = applied(p, u, c);
    wrong += next != std::fma(kept, p, -u);
    wrong += std::fabs(reverted(next, u, c) - p) >
             std::numeric_limits<T>::epsilon() * std::fmax(std::fabs(p), std::fabs(next));
    wrong += applied(p, u, none) != p - u;
    wrong += reverted(p, u, none) != p + u;
  }
  CHECK(wrong == 0);
  CHECK(std::signbit(applied(T(-0.0), T(0), none)));
}

TEST_CASE("what is bounded, and a decay that leaves nothing") {
  CHECK(DecoupledDecay::at(0.1, 0).bounded());
  CHECK(DecoupledDecay::at(0.1, 2.4).bounded());
  CHECK(!DecoupledDecay::at(0.1, 2.5).bounded());
  const auto nothing = DecoupledDecay::at(0.5, 2);
  CHECK(nothing.kept == 0);
  CHECK(applied(3.0f, 1.0f, nothing) == -1);
  CHECK(std::isfinite(reverted(-1.0f, 1.0f, nothing)));
}
