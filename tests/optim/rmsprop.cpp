#include <mend/optim/rmsprop.hpp>

#include <doctest/doctest.h>

#include <mend/optim/check_rule.hpp>

#include <cmath>
#include <vector>

#include "optim/reference.hpp"

using mend::RmsProp;

TEST_CASE("rmsprop is sound") {
  CHECK(mend::check_rule<RmsProp>());
  CHECK(mend::check_rule(RmsProp{.lr = 0.1, .alpha = 0.5, .eps = 1e-3}));
  CHECK(mend::check_rule(RmsProp{.weight_decay = 0.1}));
}

TEST_CASE_TEMPLATE("rmsprop follows its formula", T, float, double) {
  for (double decay : {0.0, 0.02}) {
    const RmsProp rule{.lr = 0.01, .alpha = 0.9, .eps = 1e-6, .weight_decay = decay};
    const double error = test::worst_error<T>(rule, 200, [&](double& p, auto& s, double g, int) {
      const double e = g + decay * p;
      s[0] = 0.9 * s[0] + (1 - 0.9) * e * e;
      p -= 0.01 * e / (std::sqrt(s[0]) + 1e-6);
    });
    CHECK(error < (sizeof(T) == 4 ? 1e-4 : 1e-13));
  }
}

TEST_CASE("the order of roundings is the documented one, special values included") {
  const std::size_t n = 4000;
  const auto g = test::numbers<float>(n, 1);
  for (bool decays : {false, true}) {
    auto p = test::numbers<float>(n, 2), v = test::numbers<float>(n, 3);
    for (float& x : v) x = std::fabs(x);
    const auto p0 = p, v0 = v;
    mend::kernel::apply<RmsProp>(RmsProp{.lr = 0.1f, .weight_decay = decays ? 0.5 : 0}.at(0),
                                 p.data(), {v.data()}, g.data(), n);
    const auto weight = static_cast<float>(1 - 0.99);
    const auto step = static_cast<float>(static_cast<double>(0.1f) * 0.5);
    int wrong = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const float e = decays ? std::fma(0.5f, p0[i], g[i]) : g[i];
      volatile float weighted = weight * e, square = weighted * e;
      const float mean = std::fma(0.99f, v0[i], square), d = std::sqrt(mean) + 1e-8f;
      volatile float u = 0.1f * (g[i] / d);
      const float kept = decays ? 1 - step / d : 1;
      wrong += !test::same_number(v[i], mean) ||
               !test::same_number<float>(p[i], decays ? std::fma(kept, p0[i], -u) : p0[i] - u);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("a first step reverts to the very bits of slots and zero parameters") {
  CHECK(test::first_step_reverts(RmsProp{}));
  CHECK(test::first_step_reverts(RmsProp{.weight_decay = 1e-6}));
}

TEST_CASE("without memory rmsprop reverts the parameter and stays finite") {
  std::vector<float> p{1, 2}, v(2), g{1, -3};
  const auto c = RmsProp{.lr = 0.5, .alpha = 0}.at(4);
  mend::kernel::apply<RmsProp>(c, p.data(), {v.data()}, g.data(), 2);
  CHECK(p == std::vector<float>{0.5f, 2.5f});
  mend::kernel::revert<RmsProp>(c, p.data(), {v.data()}, g.data(), 2);
  CHECK(p == std::vector<float>{1, 2});
  for (float x : v) CHECK(std::isfinite(x));
}

TEST_CASE("rmsprop refuses what cannot work, by name") {
  CHECK_THROWS_WITH_AS(mend::check_options(RmsProp{.alpha = 1}),
                       "RmsProp: alpha = 1 must lie in [0, 1), as a float too", mend::OptionError);
  CHECK_THROWS_WITH_AS(mend::check_options(RmsProp{.eps = 0}),
                       "RmsProp: eps = 0 must be finite and positive as a float",
                       mend::OptionError);
  CHECK_THROWS_WITH_AS(mend::check_options(RmsProp{.weight_decay = -0.1}),
                       "RmsProp: weight_decay = -0.1 must be finite as a float and not negative",
                       mend::OptionError);
  CHECK_THROWS_AS(mend::check_options(RmsProp{.lr = -1e-3f}), mend::OptionError);
}
