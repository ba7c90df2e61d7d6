#include <mend/optim/momentum.hpp>

#include <doctest/doctest.h>

#include <mend/optim/check_rule.hpp>

#include <cmath>
#include <cstring>
#include <vector>

#include "optim/reference.hpp"

using mend::Momentum;

TEST_CASE("momentum is sound in all its forms") {
  CHECK(mend::check_rule<Momentum>());
  CHECK(mend::check_rule(Momentum{.nesterov = true}));
  CHECK(mend::check_rule(Momentum{.weight_decay = 0.01}));
  CHECK(mend::check_rule(Momentum{.beta = 0.5, .nesterov = true, .weight_decay = 0.1}));
}

TEST_CASE_TEMPLATE("momentum follows its formula", T, float, double) {
  for (bool nesterov : {false, true})
    for (double decay : {0.0, 0.02}) {
      const Momentum rule{.lr = 0.01, .beta = 0.9, .nesterov = nesterov, .weight_decay = decay};
      const double error = test::worst_error<T>(rule, 200, [&](double& p, auto& m, double g, int) {
        const double e = g + decay * p;
        m[0] = 0.9 * m[0] + e;
        p -= 0.01 * (nesterov ? e + 0.9 * m[0] : m[0]);
      });
      // 1 - lr weight_decay is off by half a unit of 1: 1.5e-4 of this decay, in float.
      const double most = nesterov && decay > 0 ? 5e-4 : 1e-4;
      CHECK(error < (sizeof(T) == 4 ? most : 5e-13));
    }
}

TEST_CASE("the order of roundings is the documented one, special values included") {
  const std::size_t n = 4000;
  const auto g = test::numbers<float>(n, 1);
  for (bool nesterov : {false, true}) {
    auto p = test::numbers<float>(n, 2), m = test::numbers<float>(n, 3);
    const auto p0 = p, m0 = m;
    const Momentum rule{.lr = 0.1f, .beta = 0.9, .nesterov = nesterov, .weight_decay = 0.02};
    mend::kernel::apply<Momentum>(rule.at(0), p.data(), {m.data()}, g.data(), n);
    const auto kept = static_cast<float>(1 - static_cast<double>(0.1f) * 0.02);
    int wrong = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const float e = std::fma(0.02f, p0[i], g[i]), next = std::fma(0.9f, m0[i], e);
      volatile float plain = 0.1f * next, ahead = 0.1f * std::fma(0.9f, next, g[i]);
      wrong +=
          !test::same_number(m[i], next) ||
          !test::same_number<float>(p[i], nesterov ? std::fma(kept, p0[i], -ahead) : p0[i] - plain);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("a first step reverts to the very bits of slots and zero parameters") {
  CHECK(test::first_step_reverts(Momentum{}));
  CHECK(test::first_step_reverts(Momentum{.nesterov = true, .weight_decay = 0.1}));
}

TEST_CASE("without memory, momentum is plain descent, and reverts the parameter") {
  std::vector<float> p{1, 2, 3}, m(3), g{1, -1, 0.5f};
  const auto c = Momentum{.lr = 0.5, .beta = 0}.at(0);
  mend::kernel::apply<Momentum>(c, p.data(), {m.data()}, g.data(), 3);
  CHECK(p == std::vector<float>{0.5f, 2.5f, 2.75f});
  mend::kernel::revert<Momentum>(c, p.data(), {m.data()}, g.data(), 3);
  CHECK(p == std::vector<float>{1, 2, 3});
  for (float x : m) CHECK(std::isfinite(x));
}

TEST_CASE("momentum refuses what cannot work, by name") {
  CHECK_THROWS_WITH_AS(mend::check_options(Momentum{.beta = 1}),
                       "Momentum: beta = 1 must lie in [0, 1), as a float too", mend::OptionError);
  CHECK_THROWS_WITH_AS(mend::check_options(Momentum{.weight_decay = -0.5}),
                       "Momentum: weight_decay = -0.5 must be finite as a float and not negative",
                       mend::OptionError);
  CHECK_THROWS_AS(mend::check_options(Momentum{.lr = HUGE_VAL}), mend::OptionError);
  CHECK_THROWS_AS(mend::check_options(Momentum{.weight_decay = std::nan("")}), mend::OptionError);
  CHECK_NOTHROW(mend::check_options(Momentum{.beta = 0}));
}
