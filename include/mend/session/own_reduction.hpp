#pragma once

#include <functional>

#include "mend/core/policy.hpp"

namespace mend {

//! The trainer reduces its gradients itself: the lambda returns once they are equal on all ranks.
//! abort: called from another thread when a member is lost; until rebuild, a reduction that is
//! blocked or begins must throw (any std::exception), and the step is then repeated. rebuild:
//! called before the first step and after every change of the membership, with this rank's place,
//! on all ranks.
struct OwnReduction {
  using kind = kind::reduction;
  std::function<void()> abort;
  std::function<void(int rank, int size)> rebuild;
};

}  // namespace mend
