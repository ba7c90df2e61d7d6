#pragma once

#include <cstddef>

#include "mend/config.hpp"

namespace mend {

//! What a rule keeps per parameter beside its value, in the order of the rule's `slots` names. N
//! may be 0. Zero before the first update.
template <class Real, std::size_t N>
struct Slots {
  Real values[N];
  MEND_RULE Real& operator[](std::size_t i) { return values[i]; }
  MEND_RULE const Real& operator[](std::size_t i) const { return values[i]; }
};

template <class Real>
struct Slots<Real, 0> {};

}  // namespace mend
