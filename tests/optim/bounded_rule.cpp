#include <mend/optim/bounded_rule.hpp>

#include <doctest/doctest.h>

#include <mend/optim/adam.hpp>
#include <mend/optim/rmsprop.hpp>
#include <mend/optim/sgd.hpp>

#include <array>
#include <cstddef>
#include <string_view>

namespace {

// What is nearly a bounded rule: each differs from Mine in one place.
struct Mine {
  static constexpr std::array<std::string_view, 0> slots{};
  static constexpr std::array<int, 1> kept_bits{2};
  struct Coefficients {
    float lr;
  };
  Coefficients at(mend::Step) const { return {0.5f}; }
  static bool bounded(const Coefficients&) { return true; }

  template <class Real>
  MEND_RULE static void apply(Real& p, mend::Slots<Real, 0>& s, Real g, const auto& c) {
    mend::Unrecorded none;
    apply(p, s, g, c, none);
  }
  template <class Real>
  MEND_RULE static void revert(Real& p, mend::Slots<Real, 0>& s, Real g, const auto& c) {
    mend::Unrecorded none;
    revert(p, s, g, c, none);
  }
  template <class Real, class Record>
  MEND_RULE static void apply(Real& p, mend::Slots<Real, 0>&, Real g, const auto& c,
                              Record& record) {
    p = p - c.lr * g;
    record.keep(0, p, p + c.lr * g);
  }
  template <class Real, class Record>
  MEND_RULE static void revert(Real& p, mend::Slots<Real, 0>&, Real g, const auto& c,
                               Record& record) {
    const Real old = p + c.lr * g;
    record.recall(0, p, old, old);
  }
};
static_assert(mend::BoundedOptimizer<Mine>);

struct NoBits : Mine {
  static constexpr std::array<int, 2> kept_bits{2, 2};  // of a slot that is not there
};
static_assert(mend::InvertibleOptimizer<NoBits> && !mend::BoundedOptimizer<NoBits>);

struct NotSaid : Mine {
  static void bounded(const Coefficients&) {}
};
static_assert(mend::InvertibleOptimizer<NotSaid> && !mend::BoundedOptimizer<NotSaid>);

struct Plain {
  static constexpr std::array<std::string_view, 0> slots{};
  static constexpr std::array<int, 1> kept_bits{2};
  using Coefficients = Mine::Coefficients;
  Coefficients at(mend::Step) const { return {0.5f}; }
  static bool bounded(const Coefficients&) { return true; }
  template <class Real>
  MEND_RULE static void apply(Real& p, mend::Slots<Real, 0>&, Real g, const auto& c) {
    p = p - c.lr * g;
  }
  template <class Real>
  MEND_RULE static void revert(Real& p, mend::Slots<Real, 0>&, Real g, const auto& c) {
    p = p + c.lr * g;
  }
};
static_assert(mend::InvertibleOptimizer<Plain> && !mend::BoundedOptimizer<Plain>, "no record");

}  // namespace

TEST_CASE("without a record a rule's estimate is what it restores") {
  using Real = mend::kernel::Scalar<float>;
  Real p = 1;
  mend::Slots<Real, 0> none;
  const auto c = Mine{}.at(0);
  Mine::apply<Real>(p, none, Real{4}, c);
  float value = 0;
  p.store(&value);
  CHECK(value == -1);
  Mine::revert<Real>(p, none, Real{4}, c);
  p.store(&value);
  CHECK(value == 1);
}

TEST_CASE("a coefficient that a float rounds onto a limit is outside") {
  using mend::between;
  static_assert(between(0.75, 0.8, 1));
  static_assert(!between(0.75, 0.75, 1));
  static_assert(!between(0.75, 0x1.8000008p-1, 1), "0.75 as a float");
  static_assert(between(0.75, 0x1.800002p-1, 1), "the next float");
  static_assert(!between(0.5, 0x1.ffffffp-1, 1), "1 as a float");
  const double nearly = 0x1.8000008p-1;
  CHECK(!mend::Adam::bounded(mend::Adam{.beta2 = nearly}.at(9)));
  CHECK(!mend::RmsProp::bounded(mend::RmsProp{.alpha = nearly}.at(9)));
  CHECK(!mend::Sgd::bounded(mend::Sgd{.lr = 1, .weight_decay = 1 - nearly}.at(9)));
  CHECK(mend::Adam::bounded(mend::Adam{}.at(9)));
}
