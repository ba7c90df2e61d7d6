#include <mend/optim/adam.hpp>

#include <doctest/doctest.h>

#include <mend/optim/check_rule.hpp>

#include <cmath>
#include <cstring>
#include <vector>

#include "optim/reference.hpp"

using mend::Adam;

TEST_CASE("adam is sound") {
  CHECK(mend::check_rule<Adam>());
  CHECK(mend::check_rule(Adam{.lr = 0.1, .beta1 = 0.5, .beta2 = 0.95, .eps = 1e-3}));
  CHECK(mend::check_rule(Adam{.weight_decay = 0.1}));
}

TEST_CASE_TEMPLATE("adam follows its formula", T, float, double) {
  for (double decay : {0.0, 0.02}) {
    const Adam rule{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = decay};
    const double error = test::worst_error<T>(rule, 200, [&](double& p, auto& s, double g, int t) {
      const double e = g + decay * p;
      s[0] = 0.9 * s[0] + (1 - 0.9) * e;
      s[1] = 0.999 * s[1] + (1 - 0.999) * e * e;
      const double m = s[0] / (1 - std::pow(0.9, t)), v = s[1] / (1 - std::pow(0.999, t));
      p -= 0.01 * m / (std::sqrt(v) + 1e-8);
    });
    CHECK(error < (sizeof(T) == 4 ? 2e-5 : 1e-13));
  }
}

TEST_CASE("the order of roundings is the documented one, special values included") {
  const std::size_t n = 4000;
  const auto g = test::numbers<float>(n, 1);
  auto p = test::numbers<float>(n, 2), m = test::numbers<float>(n, 3),
       v = test::numbers<float>(n, 4);
  for (float& x : v) x = std::fabs(x);
  const auto p0 = p, m0 = m, v0 = v;
  const Adam rule{};
  mend::kernel::apply<Adam>(rule.at(9), p.data(), {m.data(), v.data()}, g.data(), n);
  const auto step = static_cast<float>(static_cast<double>(1e-3f) / mend::bias_correction(0.9, 10));
  const auto scale = static_cast<float>(1 / std::sqrt(mend::bias_correction(0.999, 10)));
  const auto w1 = static_cast<float>(1 - 0.9), w2 = static_cast<float>(1 - 0.999);
  int wrong = 0;
  for (std::size_t i = 0; i < n; ++i) {
    volatile float t1 = w1 * g[i], weighted = w2 * g[i], t2 = weighted * g[i];
    const float mean = std::fma(0.9f, m0[i], t1), square = std::fma(0.999f, v0[i], t2);
    volatile float u = step * (mean / std::fma(std::sqrt(square), scale, 1e-8f));
    wrong += !test::same_number(m[i], mean) || !test::same_number(v[i], square) ||
             !test::same_number<float>(p[i], p0[i] - u);
  }
  CHECK(wrong == 0);
}

TEST_CASE("a first step reverts to the very bits of slots and zero parameters") {
  CHECK(test::first_step_reverts(Adam{}));
  CHECK(test::first_step_reverts(Adam{.weight_decay = 0.1}));
}

TEST_CASE("without memory adam reverts the parameter and stays finite") {
  std::vector<float> p{1, 2}, m(2), v(2), g{1, -3};
  const auto c = Adam{.lr = 0.5, .beta1 = 0, .beta2 = 0}.at(4);
  mend::kernel::apply<Adam>(c, p.data(), {m.data(), v.data()}, g.data(), 2);
  CHECK(p == std::vector<float>{0.5f, 2.5f});
  mend::kernel::revert<Adam>(c, p.data(), {m.data(), v.data()}, g.data(), 2);
  CHECK(p == std::vector<float>{1, 2});
  for (float x : {m[0], m[1], v[0], v[1]}) CHECK(std::isfinite(x));
}

TEST_CASE("adam refuses what cannot work, by name") {
  CHECK_THROWS_WITH_AS(mend::check_options(Adam{.beta1 = 1}),
                       "Adam: beta1 = 1 must lie in [0, 1), as a float too", mend::OptionError);
  CHECK_THROWS_WITH_AS(mend::check_options(Adam{.beta2 = -0.1}),
                       "Adam: beta2 = -0.1 must lie in [0, 1), as a float too", mend::OptionError);
  CHECK_THROWS_WITH_AS(mend::check_options(Adam{.eps = 0}),
                       "Adam: eps = 0 must be finite and positive as a float", mend::OptionError);
  for (double eps : {-1e-8, 1e-60, HUGE_VAL, std::nan("")})
    CHECK_THROWS_AS(mend::check_options(Adam{.eps = eps}), mend::OptionError);
  CHECK_THROWS_AS(mend::check_options(Adam{.weight_decay = -1}), mend::OptionError);
  CHECK_THROWS_AS(mend::check_options(Adam{.lr = -1e-3f}), mend::OptionError);
  CHECK_NOTHROW(
      mend::check_options(Adam{.lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f}));
}
