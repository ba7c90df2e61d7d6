#pragma once

#include "mend/config.hpp"

namespace mend {

//! x for which `now` = fma(b, x, t), to within a hair more than half a unit in the last place and
//! what the rounding of `now` lost. inverse: 1 / b, rounded. Exact sums (TwoSum) and one corrected
//! product in place of a division: a few instructions.
template <class Real, class B>
MEND_RULE Real undo_fma(const Real& now, const Real& t, const B& b, const B& inverse) {
  const Real d = now - t, back = d - now;
  const Real lost = (now - (d - back)) - (t + back);
  const Real q = d * inverse, x = fma(fma(-b, q, d) + lost, inverse, q);
  return select(x - x == 0, x, q);  // at the end of the range q alone stays in it
}

}  // namespace mend
