#include <mend/optim/lamb.hpp>

#include <doctest/doctest.h>

#include <mend/kernel/host/norms.hpp>
#include <mend/optim/check_rule.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "optim/reference.hpp"

using mend::Lamb;

TEST_CASE("lamb is sound") {
  CHECK(mend::check_rule<Lamb>());
  CHECK(mend::check_rule(Lamb{.lr = 0.1, .beta1 = 0.5, .beta2 = 0.95, .weight_decay = 0.3}));
}

TEST_CASE_TEMPLATE("lamb follows its formula, tensor by tensor", T, float, double) {
  constexpr std::size_t n = 1000;
  for (double decay : {0.0, 0.05}) {
    const Lamb rule{.lr = 0.01, .weight_decay = decay};
    std::vector<T> p(n), m(n), v(n), g(n);
    std::vector<double> q(n), mq(n), vq(n), r(n);
    for (std::size_t i = 0; i < n; ++i) q[i] = p[i] = test::number<T>(i, 4);
    for (int t = 1; t <= 200; ++t) {
      double pp = 0, rr = 0;
      for (std::size_t i = 0; i < n; ++i) {
        g[i] = test::number<T>(static_cast<std::uint64_t>(t) * n + i, 6);
        const double x = static_cast<double>(g[i]);
        mq[i] = 0.9 * mq[i] + (1 - 0.9) * x;
        vq[i] = 0.999 * vq[i] + (1 - 0.999) * x * x;
        r[i] =
            mq[i] / (1 - std::pow(0.9, t)) / (std::sqrt(vq[i] / (1 - std::pow(0.999, t))) + 1e-6) +
            decay * q[i];
        pp += q[i] * q[i];
        rr += r[i] * r[i];
      }
      for (std::size_t i = 0; i < n; ++i) q[i] -= 0.01 * std::sqrt(pp / rr) * r[i];
      auto c = rule.at(t - 1);
      c = Lamb::with_norms(
          c, mend::kernel::norms<Lamb>(c, p.data(), {m.data(), v.data()}, g.data(), n));
      mend::kernel::apply<Lamb>(c, p.data(), {m.data(), v.data()}, g.data(), n);
    }
    double worst = 0;
    for (std::size_t i = 0; i < n; ++i)
      worst = std::fmax(worst, std::fabs(static_cast<double>(p[i]) - q[i]) / std::fabs(q[i]));
    CHECK(worst < (sizeof(T) == 4 ? 2e-3 : 1e-11));
  }
}

TEST_CASE("trust is 1 for a tensor of zeros, without a direction, and before the norms are known") {
  const auto c = Lamb{.lr = 0.5, .weight_decay = 0.1}.at(3);
  for (std::array<double, 2> norms : {std::array{0.0, 2.0}, {2.0, 0.0}, {2.0, 2.0}, {0.0, 0.0}}) {
    const auto same = Lamb::with_norms(c, norms);
    CHECK(same.update.step == c.update.step);
    CHECK(same.update.decay.kept == c.update.decay.kept);
  }
  const auto scaled = Lamb::with_norms(c, {3, 2});
  CHECK(scaled.update.step == doctest::Approx(1.5 * c.update.step));
  CHECK(scaled.update.decay.kept == doctest::Approx(1 - 0.5 * 1.5 * 0.1));
}

TEST_CASE("a first step reverts to the very bits of slots and zero parameters") {
  CHECK(test::first_step_reverts(Lamb{}));
}

TEST_CASE("lamb refuses what cannot work, by name") {
  CHECK_THROWS_WITH_AS(mend::check_options(Lamb{.beta1 = 1}),
                       "Lamb: beta1 = 1 must lie in [0, 1), as a float too", mend::OptionError);
  CHECK_THROWS_WITH_AS(mend::check_options(Lamb{.weight_decay = -0.1}),
                       "Lamb: weight_decay = -0.1 must be finite as a float and not negative",
                       mend::OptionError);
  CHECK_THROWS_AS(mend::check_options(Lamb{.eps = 0}), mend::OptionError);
  CHECK_THROWS_AS(mend::check_options(Lamb{.lr = -1}), mend::OptionError);
}
