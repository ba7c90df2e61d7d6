#pragma once

#include <limits>

#include "mend/config.hpp"
#include "mend/kernel/host/scalar.hpp"
#include "mend/optim/inverse.hpp"

namespace mend {

//! Weight decay as a part of the gradient (L2), for a rule's Coefficients.
struct CoupledDecay {
  double weight_decay;
  double step;  // the factor of the gradient in the update, times weight_decay

  [[nodiscard]] static CoupledDecay at(double rate, double weight_decay) {
    return {weight_decay, kernel::ScalarSet::mul(rate, weight_decay)};
  }

  //! fma(weight_decay, p, g); g itself without decay.
  template <class Real>
  MEND_RULE static Real gradient(const Real& p, const Real& g, const auto& c) {
    return c.weight_decay != 0 ? fma(c.weight_decay, p, g) : g;
  }

  //! For a rule whose update is a quotient with that gradient in it. `u`: the quotient with g in
  //! its place, so that revert knows it before it knows p.
  //!   p' = p - u    with decay: p' = fma(1 - step / denominator, p, -u)
  // Bound with two bits as in decoupled_decay.hpp, in elements that keep more than 0.75 of p; the
  // remainder of others is a NaN, so that their values are kept whole.
  template <class Real, class Record>
  MEND_RULE static void apply(Real& p, const Real& u, const Real& denominator, const auto& c,
                              Record& record) {
    if (c.weight_decay == 0) {
      p = p - u;
      record.keep(0, p, p + u);
    } else {
      const Real kept = 1 - c.step / denominator;
      p = fma(kept, p, -u);
      record.keep(0, p, remainder(p, u, kept));
    }
  }
  template <class Real, class Record>
  MEND_RULE static void revert(Real& p, const Real& u, const Real& denominator, const auto& c,
                               Record& record) {
    if (c.weight_decay == 0) {
      const Real old = p + u;
      record.recall(0, p, old, old);
    } else {
      const Real kept = 1 - c.step / denominator;
      record.recall(0, p, remainder(p, u, kept), undo_fma(p, -u, kept, 1 / kept));
    }
  }

 private:
  static constexpr double nan = std::numeric_limits<double>::quiet_NaN();

  template <class Real>
  MEND_RULE static Real remainder(const Real& p, const Real& u, const Real& kept) {
    return select(kept > 0.75, p + u, nan);
  }
};

}  // namespace mend
