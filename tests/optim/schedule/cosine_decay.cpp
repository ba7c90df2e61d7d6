#include <mend/optim/schedule/cosine_decay.hpp>

#include <doctest/doctest.h>

#include <mend/optim/learning_rate.hpp>

#include <bit>
#include <cmath>
#include <cstdint>

using mend::CosineDecay;

TEST_CASE("cosine decay: PyTorch's CosineAnnealingLR, up to its minimum") {
  const double pi = std::acos(-1.0);
  for (int steps : {1, 2, 3, 10, 1000, 99991}) {
    const CosineDecay rate{.lr = 1, .steps = steps, .last = 0},
        low{.lr = 0.3, .steps = steps, .last = 0.1};
    double worst = 0;
    for (int t = 0; t <= steps; ++t) {
      const double expected = (1 + std::cos(pi * t / steps)) / 2;
      worst = std::fmax(worst, std::fabs(rate(t) - expected));
      worst = std::fmax(worst, std::fabs(low(t) - (0.1 + 0.2 * expected)));
    }
    CHECK(worst < 5e-16);
  }
  const CosineDecay rate{.lr = 0.3, .steps = 7, .last = 0.1};
  CHECK(rate(0) == doctest::Approx(0.3).epsilon(1e-15));
  CHECK(rate(7) == 0.1);
  CHECK(rate(1'000'000'000'000) == 0.1);
}

TEST_CASE("cosine decay has the same bits everywhere") {
  std::uint64_t hash = 0;
  const CosineDecay rate{.lr = 1, .steps = 100003};
  for (int t = 0; t < 100003; ++t)
    hash = hash * 0x9e3779b97f4a7c15 + std::bit_cast<std::uint64_t>(rate(t));
  CHECK(hash == 12125936017245698027u);
}

TEST_CASE("cosine decay as a learning rate, its options checked") {
  CHECK(mend::LearningRate{CosineDecay{.lr = 1, .steps = 2}}(1) == doctest::Approx(0.5));
  CHECK_THROWS_WITH_AS((mend::LearningRate{CosineDecay{.steps = -1}}),
                       "CosineDecay: steps = -1 must be positive", mend::OptionError);
  CHECK_THROWS_WITH_AS((mend::LearningRate{CosineDecay{.lr = -1}}),
                       "CosineDecay: lr = -1 must be finite as a float and not negative",
                       mend::OptionError);
  CHECK_THROWS_WITH_AS((mend::LearningRate{CosineDecay{.last = -1}}),
                       "CosineDecay: last = -1 must be finite as a float and not negative",
                       mend::OptionError);
}
