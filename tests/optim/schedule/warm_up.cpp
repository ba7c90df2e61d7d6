#include <mend/optim/schedule/warm_up.hpp>

#include <doctest/doctest.h>

#include <mend/optim/adam.hpp>
#include <mend/optim/schedule/cosine_decay.hpp>
#include <mend/optim/schedule/step_decay.hpp>

#include <cmath>

using mend::WarmUp;

TEST_CASE("warm-up: PyTorch's LinearLR, then the other schedule, as SequentialLR has it") {
  const mend::CosineDecay cosine{.lr = 0.4, .steps = 50, .last = 0.01};
  const WarmUp rate{.steps = 10, .then = cosine};
  for (int t = 0; t < 10; ++t) {
    const double first = 1.0 / 10, factor = first + (1 - first) * t / 9;
    CHECK(rate(t) == doctest::Approx(0.4 * factor).epsilon(1e-14));
  }
  for (int t = 10; t < 70; ++t) CHECK(rate(t) == cosine(t - 10));
}

TEST_CASE("warm-up of a number, of a function, of nothing, and of a warm-up") {
  CHECK(WarmUp{.steps = 4, .then = 0.5}(0) == 0.125);
  CHECK(WarmUp{.steps = 4, .then = 0.5}(4) == 0.5);
  CHECK(WarmUp{.then = 0.5}(0) == 0.5);
  const auto counting = [](mend::Step s) { return 1.0 + double(s.value()); };
  CHECK(WarmUp{.steps = 2, .then = counting}(0) == 0.5);
  CHECK(WarmUp{.steps = 2, .then = counting}(5) == 4);
  CHECK(WarmUp{.steps = 2, .then = WarmUp{.steps = 2, .then = 1}}(2) == 0.5);
}

TEST_CASE("warm-up as a learning rate, its options checked") {
  const mend::Adam adam{.lr = WarmUp{.steps = 4, .then = mend::StepDecay{.lr = 1, .every = 2}}};
  CHECK_NOTHROW(mend::check_options(adam));
  CHECK(mend::learning_rate_of(adam, 1) == 0.5);
  CHECK(mend::learning_rate_of(adam, 6) == doctest::Approx(0.1));
  CHECK_THROWS_WITH_AS((mend::LearningRate{WarmUp{.steps = -1}}),
                       "WarmUp: steps = -1 must not be negative", mend::OptionError);
  CHECK_THROWS_WITH_AS((mend::LearningRate{WarmUp{.then = -1}}),
                       "WarmUp: lr = -1 must be finite as a float and not negative",
                       mend::OptionError);
  CHECK_THROWS_AS((void)(WarmUp{.then = mend::StepDecay{.every = 0}}), mend::OptionError);
}
