#pragma once

#include "mend/core/policy.hpp"

namespace mend {

//! How many threads share the update of one rank, the caller included. Same bits for any number.
struct HostThreads {
  using kind = kind::device;
  int count = 1;
};

}  // namespace mend
