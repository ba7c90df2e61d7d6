#include <mend/optim/check_options.hpp>

#include <doctest/doctest.h>

#include <cmath>

namespace {

struct Picky {
  double beta = 0.9;
  void check() const { mend::require_weight(beta, "Picky", "beta"); }
};
struct Careless {
  double beta = 2;
};

}  // namespace

TEST_CASE("a rule's own check is called, and a rule without one is accepted") {
  CHECK_NOTHROW(mend::check_options(Picky{}));
  CHECK_THROWS_WITH_AS(mend::check_options(Picky{.beta = 1.5}),
                       "Picky: beta = 1.5 must lie in [0, 1), as a float too", mend::OptionError);
  CHECK_NOTHROW(mend::check_options(Careless{}));
}

TEST_CASE("weights lie in [0, 1), also once they are rounded to float") {
  for (double good : {0.0, 0.5, 0.999, 0.9999999})
    CHECK_NOTHROW(mend::require_weight(good, "R", "b"));
  for (double bad : {-0.1, 1.0, 0.99999999999, 2.0, std::nan(""), HUGE_VAL})
    CHECK_THROWS_AS(mend::require_weight(bad, "R", "b"), mend::OptionError);
}

TEST_CASE("factors are finite and not negative, what divides is positive as a float too") {
  for (double good : {0.0, 1e-300, 2.0}) CHECK_NOTHROW(mend::require_factor(good, "R", "f"));
  for (double bad : {-1e-300, HUGE_VAL, std::nan("")})
    CHECK_THROWS_AS(mend::require_factor(bad, "R", "f"), mend::OptionError);
  for (double good : {1e-30, 2.0}) CHECK_NOTHROW(mend::require_positive(good, "R", "e"));
  for (double bad : {0.0, -1.0, 1e-60, HUGE_VAL, std::nan("")})
    CHECK_THROWS_AS(mend::require_positive(bad, "R", "e"), mend::OptionError);
  CHECK_THROWS_WITH_AS(mend::require_factor(-1, "R", "f"),
                       "R: f = -1 must be finite as a float and not negative", mend::OptionError);
  CHECK_THROWS_AS(mend::require_factor(1e39, "R", "f"), mend::OptionError);  // as a float: infinite
  CHECK_THROWS_AS(mend::require_positive(1e39, "R", "f"), mend::OptionError);
  CHECK_THROWS_WITH_AS(mend::require_positive(0, "R", "e"),
                       "R: e = 0 must be finite and positive as a float", mend::OptionError);
}

TEST_CASE("what is no field of a rule is refused in its own words") {
  CHECK_THROWS_WITH_AS(mend::refuse_value("the norm after 3 updates", -2, "be positive"),
                       "the norm after 3 updates = -2 must be positive", mend::OptionError);
}

TEST_CASE("a NaN is shown as one") {
  CHECK_THROWS_WITH_AS(
      mend::require_option(std::nan("") >= 0, "R", "eps", std::nan(""), "be positive"),
      "R: eps = nan must be positive", mend::OptionError);
}
