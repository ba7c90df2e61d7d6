#pragma once

#include "mend/core/policy.hpp"

namespace mend {

//! Policy: a step whose reduced gradients hold an infinity or a NaN commits without an update, on
//! all ranks alike; it does not count as applied, and `Committed::skipped` says so.
struct SkipNonFinite {
  using kind = mend::kind::check;
};
static_assert(Is<SkipNonFinite, kind::check>);

}  // namespace mend
