#include <mend/optim/adamw.hpp>

#include <doctest/doctest.h>

#include <mend/optim/adam.hpp>
#include <mend/optim/check_rule.hpp>

#include <cmath>
#include <vector>

#include "optim/reference.hpp"

using mend::AdamW;

TEST_CASE("adamw is sound") {
  CHECK(mend::check_rule<AdamW>());
  CHECK(mend::check_rule(AdamW{.lr = 0.1, .beta1 = 0.5, .beta2 = 0.95, .weight_decay = 0.3}));
  CHECK(AdamW{}.weight_decay == 0.01);
}

TEST_CASE_TEMPLATE("adamw follows its formula", T, float, double) {
  const AdamW rule{.lr = 0.01, .weight_decay = 0.05};
  const double error = test::worst_error<T>(rule, 200, [](double& p, auto& s, double g, int t) {
    s[0] = 0.9 * s[0] + (1 - 0.9) * g;
    s[1] = 0.999 * s[1] + (1 - 0.999) * g * g;
    const double m = s[0] / (1 - std::pow(0.9, t)), v = s[1] / (1 - std::pow(0.999, t));
    p -= 0.01 * 0.05 * p;
    p -= 0.01 * m / (std::sqrt(v) + 1e-8);
  });
  CHECK(error < (sizeof(T) == 4 ? 3e-5 : 1e-13));
}

TEST_CASE("the parameter decays and moves in one rounding") {
  const std::size_t n = 4000;
  const auto g = test::numbers<float>(n, 1);
  auto p = test::numbers<float>(n, 2), m = test::numbers<float>(n, 3),
       v = test::numbers<float>(n, 4);
  for (float& x : v) x = std::fabs(x);
  const auto p0 = p, m0 = m, v0 = v;
  mend::kernel::apply<AdamW>(AdamW{}.at(9), p.data(), {m.data(), v.data()}, g.data(), n);
  const double rate = static_cast<double>(1e-3f);
  const auto step = static_cast<float>(rate / mend::bias_correction(0.9, 10));
  const auto scale = static_cast<float>(1 / std::sqrt(mend::bias_correction(0.999, 10)));
  const auto kept = static_cast<float>(1 - rate * 0.01);
  const auto w1 = static_cast<float>(1 - 0.9), w2 = static_cast<float>(1 - 0.999);
  int wrong = 0;
  for (std::size_t i = 0; i < n; ++i) {
    volatile float t1 = w1 * g[i], weighted = w2 * g[i], t2 = weighted * g[i];
    const float mean = std::fma(0.9f, m0[i], t1), square = std::fma(0.999f, v0[i], t2);
    volatile float u = step * (mean / std::fma(std::sqrt(square), scale, 1e-8f));
    wrong += !test::same_number(m[i], mean) || !test::same_number(v[i], square) ||
             !test::same_number(p[i], std::fma(kept, p0[i], -u));
  }
  CHECK(wrong == 0);
}

TEST_CASE("without decay adamw is adam to the bit") {
  const std::size_t n = 1000;
  const auto g = test::numbers<float>(n, 1);
  auto p = test::numbers<float>(n, 2), m = test::numbers<float>(n, 3),
       v = test::numbers<float>(n, 4);
  auto q = p, mq = m, vq = v;
  mend::kernel::apply<AdamW>(AdamW{.weight_decay = 0}.at(4), p.data(), {m.data(), v.data()},
                             g.data(), n);
  mend::kernel::apply<mend::Adam>(mend::Adam{}.at(4), q.data(), {mq.data(), vq.data()}, g.data(),
                                  n);
  CHECK(test::same_bits(p, q));
  CHECK(test::same_bits(m, mq));
  CHECK(test::same_bits(v, vq));
}

TEST_CASE("a first step reverts to the very bits of slots and zero parameters") {
  CHECK(test::first_step_reverts(AdamW{}));
}

TEST_CASE("a step that leaves nothing of a parameter reverts to something finite") {
  std::vector<float> p{1, 2}, m(2), v(2), g{1, -3};
  const auto c = AdamW{.lr = 0.5, .weight_decay = 2}.at(4);
  mend::kernel::apply<AdamW>(c, p.data(), {m.data(), v.data()}, g.data(), 2);
  mend::kernel::revert<AdamW>(c, p.data(), {m.data(), v.data()}, g.data(), 2);
  for (float x : {p[0], p[1], m[0], m[1], v[0], v[1]}) CHECK(std::isfinite(x));
}

TEST_CASE("adamw refuses what cannot work, by name") {
  CHECK_THROWS_WITH_AS(mend::check_options(AdamW{.beta1 = 1}),
                       "AdamW: beta1 = 1 must lie in [0, 1), as a float too", mend::OptionError);
  CHECK_THROWS_WITH_AS(mend::check_options(AdamW{.weight_decay = -0.1}),
                       "AdamW: weight_decay = -0.1 must be finite as a float and not negative",
                       mend::OptionError);
  CHECK_THROWS_AS(mend::check_options(AdamW{.beta2 = 1}), mend::OptionError);
  CHECK_THROWS_AS(mend::check_options(AdamW{.eps = 0}), mend::OptionError);
  CHECK_THROWS_AS(mend::check_options(AdamW{.lr = -1e-3f}), mend::OptionError);
  CHECK_NOTHROW(mend::check_options(AdamW{.lr = 3e-4f, .weight_decay = 0.1f}));
}
