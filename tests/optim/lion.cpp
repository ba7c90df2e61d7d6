#include <mend/optim/lion.hpp>

#include <doctest/doctest.h>

#include <mend/optim/check_rule.hpp>

#include <cmath>
#include <vector>

#include "optim/reference.hpp"

using mend::Lion;

TEST_CASE("lion is sound") {
  CHECK(mend::check_rule<Lion>());
  CHECK(mend::check_rule(Lion{.lr = 0.01, .beta1 = 0.5, .beta2 = 0.9, .weight_decay = 0.3}));
}

TEST_CASE_TEMPLATE("lion follows its formula", T, float, double) {
  const Lion rule{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.05};
  const double error = test::worst_error<T>(rule, 200, [](double& p, auto& s, double g, int) {
    const double c = 0.9 * s[0] + (1 - 0.9) * g;
    p -= 0.01 * 0.05 * p + 0.01 * (c > 0 ? 1 : -1);
    s[0] = 0.99 * s[0] + (1 - 0.99) * g;
  });
  CHECK(error < (sizeof(T) == 4 ? 1e-4 : 1e-13));
}

TEST_CASE("the order of roundings is the documented one, special values included") {
  const std::size_t n = 4000;
  const auto g = test::numbers<float>(n, 1);
  auto p = test::numbers<float>(n, 2), m = test::numbers<float>(n, 3);
  const auto p0 = p, m0 = m;
  mend::kernel::apply<Lion>(Lion{.lr = 0.1f, .weight_decay = 0.3}.at(0), p.data(), {m.data()},
                            g.data(), n);
  const auto kept = static_cast<float>(1 - static_cast<double>(0.1f) * 0.3);
  const auto w1 = static_cast<float>(1 - 0.9), w2 = static_cast<float>(1 - 0.99);
  int wrong = 0;
  for (std::size_t i = 0; i < n; ++i) {
    volatile float t1 = w1 * g[i], t2 = w2 * g[i];
    const float c = std::fma(0.9f, m0[i], t1);
    const float u = c > 0 ? 0.1f : c < 0 ? -0.1f : c;
    wrong += !test::same_number(m[i], std::fma(0.99f, m0[i], t2)) ||
             !test::same_number(p[i], std::fma(kept, p0[i], -u));
  }
  CHECK(wrong == 0);
}

TEST_CASE("nothing moves where the average is zero, and a NaN stays one") {
  std::vector<float> p{1, 1, 1}, m{0, 0, 0}, g{0, -0.0f, std::nanf("")};
  mend::kernel::apply<Lion>(Lion{.lr = 0.5}.at(0), p.data(), {m.data()}, g.data(), 3);
  CHECK(p[0] == 1);
  CHECK(p[1] == 1);
  CHECK(std::isnan(p[2]));
}

TEST_CASE("a first step reverts to the very bits of slots and zero parameters") {
  CHECK(test::first_step_reverts(Lion{}));
}

TEST_CASE("lion refuses what cannot work, by name") {
  CHECK_THROWS_WITH_AS(mend::check_options(Lion{.beta1 = 1}),
                       "Lion: beta1 = 1 must lie in [0, 1), as a float too", mend::OptionError);
  CHECK_THROWS_WITH_AS(mend::check_options(Lion{.beta2 = -1}),
                       "Lion: beta2 = -1 must lie in [0, 1), as a float too", mend::OptionError);
  CHECK_THROWS_WITH_AS(mend::check_options(Lion{.weight_decay = -0.1}),
                       "Lion: weight_decay = -0.1 must be finite as a float and not negative",
                       mend::OptionError);
  CHECK_THROWS_AS(mend::check_options(Lion{.lr = -1e-3f}), mend::OptionError);
  CHECK_NOTHROW(mend::check_options(Lion{.beta1 = 0, .beta2 = 0}));
}
