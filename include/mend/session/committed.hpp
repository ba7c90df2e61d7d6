#pragma once

#include "mend/core/step.hpp"

namespace mend {

//! What is known of a step once it is committed; equal on all ranks.
struct Committed {
  Step step{};
  float loss = 0;  //!< mean over the ranks, summed in rank order; 0 when the lambda gave none
  float gradient_norm = 0;  //!< global norm before clipping; 0 without ClipNorm
  float learning_rate = 0;  //!< as used by the update; of the default group; 0 with OwnUpdate
  bool repeated = false;    //!< a failure cut the step short and the lambda was called again for it
  bool skipped = false;     //!< the gradients were not finite: no update was made
};

}  // namespace mend
