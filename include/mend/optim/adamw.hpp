#pragma once

#include <array>
#include <string_view>

#include "mend/optim/bias_correction.hpp"
#include "mend/optim/bounded_rule.hpp"
#include "mend/optim/check_options.hpp"
#include "mend/optim/decoupled_decay.hpp"
#include "mend/optim/learning_rate.hpp"
#include "mend/optim/moments.hpp"
#include "mend/optim/rule.hpp"

namespace mend {

//! Adam with weight decay beside the gradient (Loshchilov and Hutter, 2019):
//!   m' = fma(beta1, m, (1 - beta1) g)                 step  = lr / (1 - beta1^t)
//!   v' = fma(beta2, v, (1 - beta2) g g)               scale = 1 / sqrt(1 - beta2^t)
//!   p' = fma(1 - lr weight_decay, p, -u)              t     = updates applied so far + 1
//!   u  = step (m' / fma(sqrt(v'), scale, eps))
//! Moves 28 bytes per float parameter.
struct AdamW {
  LearningRate lr = 1e-3f;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 1e-2;

  static constexpr std::array<std::string_view, 2> slots{"m", "v"};
  struct Coefficients {
    Moments moments;
    double step;
    DecoupledDecay decay;
  };
  [[nodiscard]] Coefficients at(Step applied) const {
    const auto t = applied.value() + 1;
    const double rate = lr(applied);
    return {Moments::at(beta1, beta2, eps, t), rate / bias_correction(beta1, t),
            DecoupledDecay::at(rate, weight_decay)};
  }
  void check() const {
    lr.check("AdamW");
    Moments::check(beta1, beta2, eps, "AdamW");
    require_factor(weight_decay, "AdamW", "weight_decay");
  }

  template <class Real>
  MEND_RULE static void apply(Real& p, Slots<Real, 2>& s, Real g, const auto& c) {
    Unrecorded none;
    apply(p, s, g, c, none);
  }
  template <class Real>
  MEND_RULE static void revert(Real& p, Slots<Real, 2>& s, Real g, const auto& c) {
    Unrecorded none;
    revert(p, s, g, c, none);
  }

  // Bounds: moments.hpp and decoupled_decay.hpp.
  static constexpr std::array<int, 3> kept_bits{2, Moments::kept_bits_m, Moments::kept_bits_v};
  [[nodiscard]] static bool bounded(const Coefficients& c) {
    return c.moments.bounded() && c.decay.bounded();
  }
  template <class Real, class Record>
  MEND_RULE static void apply(Real& p, Slots<Real, 2>& s, Real g, const auto& c, Record& record) {
    const auto add = Moments::added(g, c.moments);
    Moments::advance(s[0], s[1], add, c.moments);
    const Real u = c.step * Moments::direction(s[0], s[1], c.moments);
    DecoupledDecay::apply(p, u, c.decay, record);
    Moments::keep(s[0], s[1], add, record);
  }
  template <class Real, class Record>
  MEND_RULE static void revert(Real& p, Slots<Real, 2>& s, Real g, const auto& c, Record& record) {
    const Real u = c.step * Moments::direction(s[0], s[1], c.moments);
    DecoupledDecay::revert(p, u, c.decay, record);
    Moments::recall(s[0], s[1], Moments::added(g, c.moments), c.moments, record);
  }
};
static_assert(BoundedOptimizer<AdamW>);

}  // namespace mend
