#include <mend/optim/lars.hpp>

#include <doctest/doctest.h>

#include <mend/kernel/host/norms.hpp>
#include <mend/optim/check_rule.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "optim/reference.hpp"

using mend::Lars;

TEST_CASE("lars is sound") {
  CHECK(mend::check_rule<Lars>());
  CHECK(mend::check_rule(Lars{.lr = 0.1, .beta = 0.6, .weight_decay = 0.1}));
}

TEST_CASE_TEMPLATE("lars follows its formula, tensor by tensor", T, float, double) {
  constexpr std::size_t n = 1000;
  for (double decay : {0.0, 0.05}) {
    const Lars rule{.lr = 2, .weight_decay = decay, .trust_coefficient = 0.01};
    std::vector<T> p(n), m(n), g(n);
    std::vector<double> q(n), mq(n);
    for (std::size_t i = 0; i < n; ++i) q[i] = p[i] = test::number<T>(i, 4);
    for (int t = 1; t <= 200; ++t) {
      double pp = 0, gg = 0;
      for (std::size_t i = 0; i < n; ++i) {
        g[i] = test::number<T>(static_cast<std::uint64_t>(t) * n + i, 6);
        pp += q[i] * q[i];
        gg += static_cast<double>(g[i]) * static_cast<double>(g[i]);
      }
      const double trust = 0.01 * std::sqrt(pp) / (std::sqrt(gg) + decay * std::sqrt(pp));
      for (std::size_t i = 0; i < n; ++i) {
        mq[i] = 0.9 * mq[i] + trust * (static_cast<double>(g[i]) + decay * q[i]);
        q[i] -= 2 * mq[i];
      }
      auto c = rule.at(t - 1);
      c = Lars::with_norms(c, mend::kernel::norms<Lars>(c, p.data(), {m.data()}, g.data(), n));
      mend::kernel::apply<Lars>(c, p.data(), {m.data()}, g.data(), n);
    }
    double worst = 0;
    for (std::size_t i = 0; i < n; ++i)
      worst = std::fmax(worst, std::fabs(static_cast<double>(p[i]) - q[i]) / std::fabs(q[i]));
    CHECK(worst < (sizeof(T) == 4 ? 2e-3 : 1e-11));
  }
}

TEST_CASE("trust is 1 for a tensor of zeros, without a gradient, and before the norms are known") {
  const auto c = Lars{.weight_decay = 0.5}.at(0);
  CHECK(c.trust == 1);
  CHECK(c.update.coupled.weight_decay == 0.5);
  for (std::array<double, 2> norms : {std::array{0.0, 2.0}, {2.0, 0.0}}) {
    const auto same = Lars::with_norms(c, norms);
    CHECK(same.trust == 1);
    CHECK(same.update.coupled.weight_decay == 0.5);
  }
  const auto scaled = Lars::with_norms(c, {4, 2});
  CHECK(scaled.trust == 0.001);
  CHECK(scaled.update.coupled.weight_decay == 0.0005);
}

TEST_CASE("a first step reverts to the very bits of slots and zero parameters") {
  CHECK(test::first_step_reverts(Lars{}));
}

TEST_CASE("lars refuses what cannot work, by name") {
  CHECK_THROWS_WITH_AS(mend::check_options(Lars{.beta = 1}),
                       "Lars: beta = 1 must lie in [0, 1), as a float too", mend::OptionError);
  CHECK_THROWS_WITH_AS(mend::check_options(Lars{.weight_decay = -0.1}),
                       "Lars: weight_decay = -0.1 must be finite as a float and not negative",
                       mend::OptionError);
  CHECK_THROWS_WITH_AS(mend::check_options(Lars{.trust_coefficient = -0.1}),
                       "Lars: trust_coefficient = -0.1 must be finite as a float and not negative",
                       mend::OptionError);
  CHECK_THROWS_AS(mend::check_options(Lars{.lr = -1}), mend::OptionError);
}
