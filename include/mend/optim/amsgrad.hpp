#pragma once

#include <array>
#include <string_view>

#include "mend/optim/bias_correction.hpp"
#include "mend/optim/check_options.hpp"
#include "mend/optim/coupled_decay.hpp"
#include "mend/optim/learning_rate.hpp"
#include "mend/optim/moments.hpp"
#include "mend/optim/rule.hpp"

namespace mend {

//! Adam whose denominator never falls (Reddi and others, 2018):
//!   most' = max(most, v')    p' = p - step (m' / fma(sqrt(most'), scale, eps))
//! and all else as Adam has it. Not invertible, hence without revert: where v' has become the
//! maximum, nothing in the new state tells the old one. The concepts refuse it for an undo that
//! computes backwards; policies that copy (SnapshotUndo) serve it. Moves 36 bytes per float
//! parameter.
struct AmsGrad {
  LearningRate lr = 1e-3f;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0;

  static constexpr std::array<std::string_view, 3> slots{"m", "v", "most"};
  struct Coefficients {
    Moments moments;
    double step;
    CoupledDecay decay;
  };
  [[nodiscard]] Coefficients at(Step applied) const {
    const auto t = applied.value() + 1;
    const double step = lr(applied) / bias_correction(beta1, t);
    return {Moments::at(beta1, beta2, eps, t), step, CoupledDecay::at(step, weight_decay)};
  }
  void check() const {
    lr.check("AmsGrad");
    Moments::check(beta1, beta2, eps, "AmsGrad");
    require_factor(weight_decay, "AmsGrad", "weight_decay");
  }

  template <class Real>
  MEND_RULE static void apply(Real& p, Slots<Real, 3>& s, Real g, const auto& c) {
    const auto add = Moments::added(CoupledDecay::gradient(p, g, c.decay), c.moments);
    Moments::advance(s[0], s[1], add, c.moments);
    s[2] = max(s[2], s[1]);
    p = p - c.step * Moments::direction(s[0], s[2], c.moments);
  }
};
static_assert(Rule<AmsGrad> && !InvertibleOptimizer<AmsGrad>);

}  // namespace mend
