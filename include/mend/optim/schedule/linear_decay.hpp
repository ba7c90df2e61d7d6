#pragma once

#include <cstdint>

#include "mend/core/step.hpp"
#include "mend/kernel/host/scalar.hpp"
#include "mend/optim/check_options.hpp"

namespace mend {

//! A learning rate that goes from one value to another in equal parts: lr + (last - lr) applied /
//! steps, and stays there. `.lr = mend::LinearDecay{.lr = 1e-3, .steps = 10000}`.
//! Every operation is rounded by itself: the same bits on every machine.
struct LinearDecay {
  double lr = 1e-3;
  std::int64_t steps = 1;
  double last = 0;

  //! Throws OptionError for what cannot work.
  void check() const {
    require_factor(lr, "LinearDecay", "lr");
    require_factor(last, "LinearDecay", "last");
    require_option(steps > 0, "LinearDecay", "steps", static_cast<double>(steps), "be positive");
  }
  //! Options must have passed check(), as a LearningRate makes them.
  [[nodiscard]] double operator()(Step applied) const {
    if (applied.value() >= steps) return last;
    const double done = static_cast<double>(applied.value()) / static_cast<double>(steps);
    return lr + kernel::ScalarSet::mul(last - lr, done);
  }
};

}  // namespace mend
