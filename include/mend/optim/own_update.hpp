#pragma once

#include <functional>
#include <utility>

#include "mend/core/step.hpp"

namespace mend {

//! In place of a rule: the trainer keeps its own optimizer. Called once per step with the step's
//! number, after the gradients are reduced, on every rank or on none; never for a skipped step.
//! What it changes must be registered, its own state by `add_state`. It cannot be undone, so
//! policies that undo or replay updates refuse it.
class OwnUpdate {
 public:
  explicit OwnUpdate(std::function<void(Step)> update) : update_{std::move(update)} {}
  void operator()(Step step) const { update_(step); }

 private:
  std::function<void(Step)> update_;
};

}  // namespace mend
