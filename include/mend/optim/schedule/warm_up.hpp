#pragma once

#include <cstdint>

#include "mend/core/step.hpp"
#include "mend/kernel/host/scalar.hpp"
#include "mend/optim/check_options.hpp"
#include "mend/optim/learning_rate.hpp"

namespace mend {

//! A learning rate that first rises in equal parts, and then is another, counted from there:
//!   before `steps` updates   then(0) (applied + 1) / steps, so that no update has a rate of 0
//!   from there on            then(applied - steps)
//! `.lr = mend::WarmUp{.steps = 1000, .then = mend::CosineDecay{.lr = 1e-3, .steps = 9000}}`;
//! `then` is a number, a schedule or a function. Every operation is rounded by itself: as many
//! machines as agree on `then` agree on this.
struct WarmUp {
  std::int64_t steps = 0;
  LearningRate then = 1e-3;

  //! Throws OptionError for what cannot work.
  void check() const {
    require_option(steps >= 0, "WarmUp", "steps", static_cast<double>(steps), "not be negative");
    then.check("WarmUp");
  }
  [[nodiscard]] double operator()(Step applied) const {
    const std::int64_t after = applied.value() - steps;
    if (after >= 0) return then(after);
    return kernel::ScalarSet::mul(then(0), static_cast<double>(applied.value() + 1)) /
           static_cast<double>(steps);
  }
};

}  // namespace mend
