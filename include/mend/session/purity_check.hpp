#pragma once

#include "mend/core/policy.hpp"

namespace mend {

//! A debug check: for the first `steps` steps the lambda is called twice, and its gradients,
//! buffers, scalars and states must come out the same. A lambda that fails keeps state that mend
//! does not know, and would not repeat a step with the same bits. For train(); next() cannot call a
//! loop twice. Costs one extra call per checked step.
struct PurityCheck {
  using kind = kind::check;
  int steps = 1;
};

}  // namespace mend
