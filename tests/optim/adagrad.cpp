#include <mend/optim/adagrad.hpp>

#include <doctest/doctest.h>

#include <mend/optim/check_rule.hpp>

#include <cmath>
#include <vector>

#include "optim/reference.hpp"

using mend::Adagrad;

TEST_CASE("adagrad is sound") {
  CHECK(mend::check_rule<Adagrad>());
  CHECK(mend::check_rule(Adagrad{.lr = 0.1, .eps = 1e-3}));
  CHECK(mend::check_rule(Adagrad{.weight_decay = 0.1}));
}

TEST_CASE_TEMPLATE("adagrad follows its formula", T, float, double) {
  for (double decay : {0.0, 0.02}) {
    const Adagrad rule{.lr = 0.05, .eps = 1e-10, .weight_decay = decay};
    const double error = test::worst_error<T>(rule, 200, [&](double& p, auto& s, double g, int) {
      const double e = g + decay * p;
      s[0] += e * e;
      p -= 0.05 * e / (std::sqrt(s[0]) + 1e-10);
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
    mend::kernel::apply<Adagrad>(Adagrad{.lr = 0.1f, .weight_decay = decays ? 0.5 : 0}.at(0),
                                 p.data(), {v.data()}, g.data(), n);
    const auto step = static_cast<float>(static_cast<double>(0.1f) * 0.5);
    int wrong = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const float e = decays ? std::fma(0.5f, p0[i], g[i]) : g[i];
      volatile float square = e * e;
      const float sum = v0[i] + square, d = std::sqrt(sum) + 1e-10f;
      volatile float u = 0.1f * (g[i] / d);
      const float kept = decays ? 1 - step / d : 1;
      wrong += !test::same_number(v[i], sum) ||
               !test::same_number<float>(p[i], decays ? std::fma(kept, p0[i], -u) : p0[i] - u);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("a first step reverts to the very bits of slots and zero parameters") {
  CHECK(test::first_step_reverts(Adagrad{}));
  CHECK(test::first_step_reverts(Adagrad{.weight_decay = 1e-6}));
}

TEST_CASE("adagrad refuses what cannot work, by name") {
  CHECK_THROWS_WITH_AS(mend::check_options(Adagrad{.eps = 0}),
                       "Adagrad: eps = 0 must be finite and positive as a float",
                       mend::OptionError);
  CHECK_THROWS_WITH_AS(mend::check_options(Adagrad{.weight_decay = -0.1}),
                       "Adagrad: weight_decay = -0.1 must be finite as a float and not negative",
                       mend::OptionError);
  CHECK_THROWS_AS(mend::check_options(Adagrad{.lr = -1e-3f}), mend::OptionError);
}
