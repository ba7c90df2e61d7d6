#include <mend/optim/nadam.hpp>

#include <doctest/doctest.h>

#include <mend/optim/check_rule.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "optim/reference.hpp"

using mend::NAdam;

TEST_CASE("nadam is sound") {
  CHECK(mend::check_rule<NAdam>());
  CHECK(mend::check_rule(NAdam{.lr = 0.1, .beta1 = 0.5, .beta2 = 0.95, .eps = 1e-3}));
  CHECK(mend::check_rule(NAdam{.weight_decay = 0.1}));
}

TEST_CASE_TEMPLATE("nadam follows its formula", T, float, double) {
  for (double decay : {0.0, 0.02}) {
    const NAdam rule{.lr = 0.01, .weight_decay = decay};
    double product = 1;
    int last = 0;
    const double error = test::worst_error<T>(rule, 200, [&](double& p, auto& s, double g, int t) {
      const double mu = 0.9 * (1 - 0.5 * std::pow(0.96, t * 0.004));
      const double next = 0.9 * (1 - 0.5 * std::pow(0.96, (t + 1) * 0.004));
      if (t != last) product *= mu;
      last = t;
      const double e = g + decay * p;
      s[0] = 0.9 * s[0] + (1 - 0.9) * e;
      s[1] = 0.999 * s[1] + (1 - 0.999) * e * e;
      const double d = std::sqrt(s[1] / (1 - std::pow(0.999, t))) + 1e-8;
      p -= 0.01 * (1 - mu) / (1 - product) * e / d + 0.01 * next / (1 - product * next) * s[0] / d;
    });
    CHECK(error < (sizeof(T) == 4 ? 5e-5 : 1e-13));
  }
}

TEST_CASE("the steps follow from how many updates there were, whatever the options") {
  for (double beta1 : {0.0, 0.5, 0.9, 0.999, 0.999999})
    for (double decay : {0.0, 1e-4, 4e-3, 0.3, 2.0, 1e4, 1e9}) {
      CAPTURE(beta1);
      CAPTURE(decay);
      const NAdam rule{.lr = 1, .beta1 = beta1, .momentum_decay = decay};
      const auto mu = [&](double t) { return beta1 * (1 - 0.5 * std::pow(0.96, t * decay)); };
      double product = 1, worst = 0;
      for (int t = 1; t <= 100000; ++t) {
        product *= mu(t);
        if (t > 40 && t != 1000 && t != 100000) continue;
        const auto c = rule.at(t - 1);
        worst = std::fmax(worst, std::fabs(c.now - (1 - mu(t)) / (1 - product)) / c.now);
        worst = std::fmax(
            worst, std::fabs(c.ahead - mu(t + 1) / (1 - product * mu(t + 1))) / (c.ahead + 1e-300));
      }
      // A power is off by up to t roundings. Where beta1 is next to 1, 1 - product is as uncertain
      // as the product.
      CHECK(worst < (beta1 > 0.9999 ? 1e-9 : 1e-11));
    }
}

TEST_CASE("the steps have the same bits everywhere") {
  std::uint64_t hash = 0;
  for (double decay : {0.0, 4e-3, 0.3, 30.0})
    for (int t : {0, 1, 2, 9, 99, 999, 99999}) {
      const auto c = NAdam{.lr = 1, .momentum_decay = decay}.at(t);
      for (double x : {c.now, c.ahead})
        hash = hash * 0x9e3779b97f4a7c15 + std::bit_cast<std::uint64_t>(x);
    }
  CHECK(hash == 5631916742084964270u);
}

TEST_CASE("after a million updates a step costs no more") {
  const auto late = NAdam{}.at(1'000'000'000'000), later = NAdam{}.at(1'000'000'000'001);
  CHECK(late.now == later.now);
  CHECK(late.ahead == 0.9 * static_cast<double>(2e-3f));
}

TEST_CASE("the order of roundings is the documented one, special values included") {
  const std::size_t n = 4000;
  const auto g = test::numbers<float>(n, 1);
  auto p = test::numbers<float>(n, 2), m = test::numbers<float>(n, 3),
       v = test::numbers<float>(n, 4);
  for (float& x : v) x = std::fabs(x);
  const auto p0 = p, m0 = m, v0 = v;
  const auto c = NAdam{.weight_decay = 0.5}.at(9);
  mend::kernel::apply<NAdam>(c, p.data(), {m.data(), v.data()}, g.data(), n);
  const auto a = static_cast<float>(c.now), b = static_cast<float>(c.ahead);
  const auto scale = static_cast<float>(1 / std::sqrt(mend::bias_correction(0.999, 10)));
  const auto w1 = static_cast<float>(1 - 0.9), w2 = static_cast<float>(1 - 0.999);
  const auto step = static_cast<float>(c.now * 0.5);
  int wrong = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const float e = std::fma(0.5f, p0[i], g[i]);
    volatile float t1 = w1 * e, weighted = w2 * e, t2 = weighted * e, now = a * g[i];
    const float mean = std::fma(0.9f, m0[i], t1), square = std::fma(0.999f, v0[i], t2);
    const float d = std::fma(std::sqrt(square), scale, 1e-8f), u = std::fma(b, mean, now) / d;
    wrong += !test::same_number(m[i], mean) || !test::same_number(v[i], square) ||
             !test::same_number(p[i], std::fma(1 - step / d, p0[i], -u));
  }
  CHECK(wrong == 0);
}

TEST_CASE("a first step reverts to the very bits of slots and zero parameters") {
  CHECK(test::first_step_reverts(NAdam{}));
  CHECK(test::first_step_reverts(NAdam{.weight_decay = 1e-6}));
}

TEST_CASE("nadam refuses what cannot work, by name") {
  CHECK_THROWS_WITH_AS(mend::check_options(NAdam{.beta1 = 1}),
                       "NAdam: beta1 = 1 must lie in [0, 1), as a float too", mend::OptionError);
  CHECK_THROWS_WITH_AS(mend::check_options(NAdam{.momentum_decay = -1}),
                       "NAdam: momentum_decay = -1 must be finite as a float and not negative",
                       mend::OptionError);
  CHECK_THROWS_WITH_AS(mend::check_options(NAdam{.weight_decay = -1}),
                       "NAdam: weight_decay = -1 must be finite as a float and not negative",
                       mend::OptionError);
  CHECK_THROWS_AS(mend::check_options(NAdam{.eps = 0}), mend::OptionError);
  CHECK_THROWS_AS(mend::check_options(NAdam{.lr = -1e-3f}), mend::OptionError);
}
