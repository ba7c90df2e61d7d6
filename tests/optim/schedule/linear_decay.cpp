#include <mend/optim/schedule/linear_decay.hpp>

#include <doctest/doctest.h>

#include <mend/optim/learning_rate.hpp>

#include <algorithm>
#include <cmath>

using mend::LinearDecay;

TEST_CASE("linear decay: PyTorch's LinearLR") {
  const LinearDecay rate{.lr = 0.2, .steps = 70, .last = 0.05};
  for (int t = 0; t < 100; ++t) {
    const double factor = 1 + (0.05 / 0.2 - 1) * std::min(t, 70) / 70;
    CHECK(rate(t) == doctest::Approx(0.2 * factor).epsilon(1e-14));
  }
  CHECK(rate(0) == 0.2);
  CHECK(rate(70) == 0.05);
  CHECK(rate(1'000'000'000'000) == 0.05);
  CHECK(LinearDecay{.lr = 0, .steps = 4, .last = 1}(1) == 0.25);  // upwards too
}

TEST_CASE("linear decay as a learning rate, its options checked") {
  CHECK(mend::LearningRate{LinearDecay{.lr = 1, .steps = 2}}(1) == 0.5);
  CHECK_THROWS_WITH_AS((mend::LearningRate{LinearDecay{.steps = 0}}),
                       "LinearDecay: steps = 0 must be positive", mend::OptionError);
  CHECK_THROWS_WITH_AS((mend::LearningRate{LinearDecay{.lr = std::nan("")}}),
                       "LinearDecay: lr = nan must be finite as a float and not negative",
                       mend::OptionError);
  CHECK_THROWS_WITH_AS((mend::LearningRate{LinearDecay{.last = -1}}),
                       "LinearDecay: last = -1 must be finite as a float and not negative",
                       mend::OptionError);
}
