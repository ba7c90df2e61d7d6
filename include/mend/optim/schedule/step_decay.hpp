#pragma once

#include <cstdint>

#include "mend/core/step.hpp"
#include "mend/kernel/host/scalar.hpp"
#include "mend/optim/check_options.hpp"

namespace mend {

//! A learning rate that falls by a factor every so many updates: lr gamma^(applied / every), the
//! quotient rounded down. `.lr = mend::StepDecay{.lr = 0.1, .every = 1000}`.
//! The power is by repeated squaring, every product rounded: the same bits on every machine.
struct StepDecay {
  double lr = 0.1;
  std::int64_t every = 1;
  double gamma = 0.1;

  //! Throws OptionError for what cannot work.
  void check() const {
    require_factor(lr, "StepDecay", "lr");
    require_factor(gamma, "StepDecay", "gamma");
    require_option(every > 0, "StepDecay", "every", static_cast<double>(every), "be positive");
  }
  //! Options must have passed check(), as a LearningRate makes them.
  [[nodiscard]] double operator()(Step applied) const {
    double rate = lr, factor = gamma;
    for (std::int64_t left = applied.value() / every; left > 0; left >>= 1) {
      if (left & 1) rate = kernel::ScalarSet::mul(rate, factor);
      factor = kernel::ScalarSet::mul(factor, factor);
    }
    return rate;
  }
};

}  // namespace mend
