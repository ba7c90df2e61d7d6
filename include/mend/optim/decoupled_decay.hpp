#pragma once

#include "mend/config.hpp"
#include "mend/kernel/host/scalar.hpp"
#include "mend/optim/bounded_rule.hpp"
#include "mend/optim/inverse.hpp"

namespace mend {

//! Weight decay beside the update u, for a rule's Coefficients:
//!   p' = fma(kept, p, -u)    kept = 1 - rate weight_decay
//! Without decay the very bits of p - u. As every coefficient, kept is rounded to the parameters'
//! type: in float, a rate times weight_decay below 3e-8 is no decay (PyTorch's AdamW has the same).
struct DecoupledDecay {
  double kept, inverse;  // inverse: 1 / kept; 0 where nothing is kept and the old value is lost

  [[nodiscard]] static DecoupledDecay at(double rate, double weight_decay) {
    const double kept = 1 - kernel::ScalarSet::mul(rate, weight_decay);
    return {kept, kept == 0 ? 0 : 1 / kept};
  }

  // Bound with two bits, guard E(p') <= 2 |p' + u|, after which at most 1 ulp of the sum is lost:
  // the estimate rounds once, to a hair: 1 / kept + 1/2 < 2 for kept > 0.75, hence 1; 2 below a
  // power of two.
  [[nodiscard]] bool bounded() const { return between(0.75, kept, 2); }

  template <class Real, class Record>
  MEND_RULE static void apply(Real& p, const Real& u, const auto& c, Record& record) {
    p = fma(c.kept, p, -u);
    record.keep(0, p, p + u);
  }
  template <class Real, class Record>
  MEND_RULE static void revert(Real& p, const Real& u, const auto& c, Record& record) {
    record.recall(0, p, p + u, undo_fma(p, -u, Real{c.kept}, Real{c.inverse}));
  }
};

}  // namespace mend
