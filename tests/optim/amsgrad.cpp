#include <mend/optim/amsgrad.hpp>

#include <doctest/doctest.h>

#include <mend/optim/bounded_rule.hpp>
#include <mend/optim/check_rule.hpp>

#include <algorithm>
#include <cmath>

#include "optim/reference.hpp"

using mend::AmsGrad;

TEST_CASE("amsgrad is sound, and not invertible") {
  static_assert(mend::Rule<AmsGrad>);
  static_assert(!mend::InvertibleOptimizer<AmsGrad>, "the maximum forgets");
  static_assert(!mend::BoundedOptimizer<AmsGrad>);
  CHECK(mend::check_rule<AmsGrad>());
  CHECK(mend::check_rule(AmsGrad{.weight_decay = 0.1}));
}

TEST_CASE_TEMPLATE("amsgrad follows its formula", T, float, double) {
  for (double decay : {0.0, 0.02}) {
    const AmsGrad rule{.lr = 0.01, .beta2 = 0.9, .weight_decay = decay};
    const double error = test::worst_error<T>(rule, 200, [&](double& p, auto& s, double g, int t) {
      const double e = g + decay * p;
      s[0] = 0.9 * s[0] + (1 - 0.9) * e;
      s[1] = 0.9 * s[1] + (1 - 0.9) * e * e;
      s[2] = std::max(s[2], s[1]);
      const double d = std::sqrt(s[2] / (1 - std::pow(0.9, t))) + 1e-8;
      p -= 0.01 * s[0] / (1 - std::pow(0.9, t)) / d;
    });
    CHECK(error < (sizeof(T) == 4 ? 1e-4 : 1e-13));
  }
}

TEST_CASE("amsgrad refuses what cannot work, by name") {
  CHECK_THROWS_WITH_AS(mend::check_options(AmsGrad{.beta2 = 1}),
                       "AmsGrad: beta2 = 1 must lie in [0, 1), as a float too", mend::OptionError);
  CHECK_THROWS_WITH_AS(mend::check_options(AmsGrad{.weight_decay = -1}),
                       "AmsGrad: weight_decay = -1 must be finite as a float and not negative",
                       mend::OptionError);
  CHECK_THROWS_AS(mend::check_options(AmsGrad{.eps = -1}), mend::OptionError);
  CHECK_THROWS_AS(mend::check_options(AmsGrad{.lr = -1}), mend::OptionError);
}
