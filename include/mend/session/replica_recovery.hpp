#pragma once

#include "mend/core/policy.hpp"

namespace mend {

//! A dead rank's state comes from the ranks that are alive: every rank holds the same parameters
//! and slots, so a replacement is fed by several of them at once. Survivors never lose a committed
//! step. Memory at rest: none beyond the copies that PerRank asks for. Same bits.
struct ReplicaRecovery {
  using kind = kind::recovery;
};

}  // namespace mend
