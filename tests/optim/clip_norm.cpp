#include <mend/optim/clip_norm.hpp>

#include <doctest/doctest.h>

#include <cmath>

TEST_CASE("gradients beyond the norm are scaled down to it, others are left alone") {
  const mend::ClipNorm clip{2.0f};
  CHECK(clip.clip_factor(4) == 0.5f);
  CHECK(clip.clip_factor(2) == 1);
  CHECK(clip.clip_factor(std::nextafter(2.0, 1.0)) == 1);
  CHECK(clip.clip_factor(0) == 1);
  CHECK(clip.clip_factor(3) == static_cast<float>(2.0 / 3));
  CHECK(clip.clip_factor(1e300) == 0);
  CHECK(clip.clip_factor(2 * (1 + 1e-12)) == 1);  // rounds to one
  CHECK(mend::ClipNorm{}.max_norm == 1);
}

TEST_CASE("a bound that cannot work is refused") {
  CHECK_NOTHROW(mend::check_options(mend::ClipNorm{0.5f}));
  CHECK_THROWS_WITH_AS(mend::check_options(mend::ClipNorm{0}),
                       "ClipNorm: max_norm = 0 must be finite and positive", mend::OptionError);
  CHECK_THROWS_AS(mend::check_options(mend::ClipNorm{-1}), mend::OptionError);
  CHECK_THROWS_AS(mend::check_options(mend::ClipNorm{std::nanf("")}), mend::OptionError);
  CHECK_THROWS_AS(mend::check_options(mend::ClipNorm{HUGE_VALF}), mend::OptionError);
}
