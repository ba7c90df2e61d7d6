#include <mend/optim/loss_scale.hpp>

#include <doctest/doctest.h>

#include <mend/core/error.hpp>

#include <cmath>
#include <cstdint>

using mend::DynamicLossScale;

static_assert(mend::Is<DynamicLossScale, mend::kind::check>);

TEST_CASE("the scale shrinks at a skipped step and grows after many that were not") {
  const DynamicLossScale scaling{.growth_interval = 3};
  std::int64_t good = 0;
  CHECK(scaling.next(64, true, good) == 32);
  CHECK(scaling.next(32, false, good) == 32);
  CHECK(scaling.next(32, false, good) == 32);
  CHECK(scaling.next(32, true, good) == 16);  // counted anew
  CHECK(good == 0);
  CHECK(scaling.next(16, false, good) == 16);
  CHECK(scaling.next(16, false, good) == 16);
  CHECK(scaling.next(16, false, good) == 32);
  CHECK(good == 0);
}

TEST_CASE("a count beyond an interval that was lowered since lets the scale grow at once") {
  const DynamicLossScale scaling{.growth_interval = 3};
  std::int64_t good = 1500;
  CHECK(scaling.next(64, false, good) == 128);
  CHECK(good == 0);
  good = 1500;
  CHECK(scaling.next(64, true, good) == 32);
  CHECK(good == 0);
}

TEST_CASE("the scale stays a positive number") {
  const DynamicLossScale scaling{.growth_interval = 1};
  std::int64_t good = 0;
  CHECK(scaling.next(0x1p127f, false, good) == 0x1p127f);
  CHECK(scaling.next(0x1p-149f, true, good) == 0x1p-149f);
}

TEST_CASE("options that cannot work are refused by name") {
  CHECK_THROWS_WITH_AS(mend::check_options(DynamicLossScale{.growth = 1}),
                       "DynamicLossScale: growth = 1 must be finite and above 1",
                       mend::OptionError);
  CHECK_THROWS_AS(mend::check_options(DynamicLossScale{.growth = HUGE_VAL}), mend::OptionError);
  CHECK_THROWS_AS(mend::check_options(DynamicLossScale{.backoff = 0}), mend::OptionError);
  CHECK_THROWS_AS(mend::check_options(DynamicLossScale{.backoff = 1}), mend::OptionError);
  CHECK_THROWS_AS(mend::check_options(DynamicLossScale{.growth_interval = 0}), mend::OptionError);
}
