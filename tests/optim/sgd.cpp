#include <mend/optim/sgd.hpp>

#include <doctest/doctest.h>

#include <mend/optim/check_rule.hpp>

#include <array>
#include <cmath>

#include "optim/reference.hpp"

TEST_CASE("sgd is sound") {
  CHECK(mend::check_rule<mend::Sgd>());
  CHECK(mend::check_rule(mend::Sgd{.lr = 0.1, .weight_decay = 0.1}));
}

TEST_CASE_TEMPLATE("sgd follows its formula", T, float, double) {
  for (double decay : {0.0, 0.05}) {
    const mend::Sgd rule{.lr = [](mend::Step s) { return 0.1 / double(1 + s.value()); },
                         .weight_decay = decay};
    const double error = test::worst_error<T>(
        rule, 200, [&](double& p, auto&, double g, int t) { p -= 0.1 / t * (g + decay * p); });
    CHECK(error < (sizeof(T) == 4 ? 1e-5 : 1e-14));
  }
}

TEST_CASE("the gradient's product is rounded, and without decay sgd is p - lr g") {
  const std::size_t n = 4000;
  const auto g = test::numbers<float>(n, 1);
  for (double decay : {0.0, 0.3}) {
    auto p = test::numbers<float>(n, 2);
    const auto p0 = p;
    mend::kernel::apply<mend::Sgd>(mend::Sgd{.lr = 0.1f, .weight_decay = decay}.at(0), p.data(), {},
                                   g.data(), n);
    const auto kept = static_cast<float>(1 - static_cast<double>(0.1f) * decay);
    int wrong = 0;
    for (std::size_t i = 0; i < n; ++i) {
      volatile float u = 0.1f * g[i];
      wrong += !test::same_number<float>(p[i], decay == 0 ? p0[i] - u : std::fma(kept, p0[i], -u));
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("zero parameters revert to the bit") { CHECK(test::first_step_reverts(mend::Sgd{})); }

TEST_CASE("sgd refuses what cannot work, by name") {
  CHECK_THROWS_WITH_AS(mend::check_options(mend::Sgd{.lr = -0.1}),
                       "Sgd: lr = -0.1 must be finite as a float and not negative",
                       mend::OptionError);
  CHECK_THROWS_AS(mend::check_options(mend::Sgd{.lr = std::nan("")}), mend::OptionError);
  CHECK_THROWS_WITH_AS(mend::check_options(mend::Sgd{.weight_decay = -1}),
                       "Sgd: weight_decay = -1 must be finite as a float and not negative",
                       mend::OptionError);
  CHECK_NOTHROW(mend::check_options(mend::Sgd{}));
}
