#include <mend/optim/schedule/step_decay.hpp>

#include <doctest/doctest.h>

#include <mend/optim/learning_rate.hpp>

#include <cmath>

using mend::StepDecay;

TEST_CASE("step decay: PyTorch's StepLR") {
  const StepDecay rate{.lr = 0.2, .every = 30, .gamma = 0.7};
  for (int t : {0, 1, 29, 30, 31, 59, 60, 299, 300, 5000})
    CHECK(rate(t) == doctest::Approx(0.2 * std::pow(0.7, t / 30)).epsilon(1e-14));
  CHECK(rate(29) == 0.2);
  CHECK(rate(30) < 0.2);
  CHECK(StepDecay{.lr = 1, .every = 2, .gamma = 0.5}(mend::Step{7}) == 0.125);
  CHECK(StepDecay{.lr = 1, .every = 1, .gamma = 0}(0) == 1);
  CHECK(StepDecay{.lr = 1, .every = 1, .gamma = 0}(1) == 0);
}

TEST_CASE("step decay as a learning rate, its options checked") {
  CHECK(mend::LearningRate{StepDecay{.lr = 0.5, .every = 3}}(2) == 0.5);
  CHECK_THROWS_WITH_AS((mend::LearningRate{StepDecay{.every = 0}}),
                       "StepDecay: every = 0 must be positive", mend::OptionError);
  CHECK_THROWS_WITH_AS((mend::LearningRate{StepDecay{.lr = -1}}),
                       "StepDecay: lr = -1 must be finite as a float and not negative",
                       mend::OptionError);
  CHECK_THROWS_WITH_AS((mend::LearningRate{StepDecay{.gamma = -1}}),
                       "StepDecay: gamma = -1 must be finite as a float and not negative",
                       mend::OptionError);
}
