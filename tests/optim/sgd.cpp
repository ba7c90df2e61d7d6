#include <mend/optim/sgd.hpp>

#include <doctest/doctest.h>

#include <mend/optim/check_rule.hpp>

#include <array>
#include <cmath>

#include "optim/reference.hpp"

TEST_CASE("sgd is sound") { CHECK(mend::check_rule<mend::Sgd>()); }

TEST_CASE_TEMPLATE("sgd follows its formula", T, float, double) {
  const mend::Sgd rule{.lr = [](mend::Step s) { return 0.1 / double(1 + s.value()); }};
  const double error =
      test::worst_error<T>(rule, 200, [](double& p, auto&, double g, int t) { p -= 0.1 / t * g; });
  CHECK(error < (sizeof(T) == 4 ? 1e-5 : 1e-14));
}

TEST_CASE("sgd refuses a learning rate that cannot work") {
  CHECK_THROWS_WITH_AS(mend::check_options(mend::Sgd{.lr = -0.1}),
                       "Sgd: lr = -0.1 must be finite and not negative", mend::OptionError);
  CHECK_THROWS_AS(mend::check_options(mend::Sgd{.lr = std::nan("")}), mend::OptionError);
  CHECK_NOTHROW(mend::check_options(mend::Sgd{}));
}
