#pragma once

#include <array>
#include <string_view>

#include "mend/optim/bias_correction.hpp"
#include "mend/optim/bounded_rule.hpp"
#include "mend/optim/check_options.hpp"
#include "mend/optim/coupled_decay.hpp"
#include "mend/optim/learning_rate.hpp"
#include "mend/optim/moments.hpp"
#include "mend/optim/rule.hpp"

namespace mend {

//! Adam (Kingma and Ba, 2015), with corrected averages m of the gradient and v of its square;
//! weight_decay adds to the gradient (L2):
//!   e  = fma(weight_decay, p, g)                      t     = updates applied so far + 1
//!   m' = fma(beta1, m, (1 - beta1) e)                 step  = lr / (1 - beta1^t)
//!   v' = fma(beta2, v, (1 - beta2) e e)               scale = 1 / sqrt(1 - beta2^t)
//!   p' = p - step (m' / fma(sqrt(v'), scale, eps))
//! Every term is rounded before it is added, so that a first step and a zero parameter revert
//! exactly. Moves 28 bytes per float parameter.
struct Adam {
  LearningRate lr = 1e-3f;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0;

  static constexpr std::array<std::string_view, 2> slots{"m", "v"};
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
    lr.check("Adam");
    Moments::check(beta1, beta2, eps, "Adam");
    require_factor(weight_decay, "Adam", "weight_decay");
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

  // Bounds: of m and v in moments.hpp; p, with the guard E(p') <= 2 |p' + u| (E: its power of two),
  // has lost at most 1 ulp of that sum, whose rounding adds 1/2: 1; 2 below a power of two. The
  // parameter comes first, since e needs the old one.
  static constexpr std::array<int, 3> kept_bits{2, Moments::kept_bits_m, Moments::kept_bits_v};
  [[nodiscard]] static bool bounded(const Coefficients& c) { return c.moments.bounded(); }
  template <class Real, class Record>
  MEND_RULE static void apply(Real& p, Slots<Real, 2>& s, Real g, const auto& c, Record& record) {
    const auto add = Moments::added(CoupledDecay::gradient(p, g, c.decay), c.moments);
    Moments::advance(s[0], s[1], add, c.moments);
    const Real u = c.step * Moments::direction(s[0], s[1], c.moments);
    p = p - u;
    record.keep(0, p, p + u);
    Moments::keep(s[0], s[1], add, record);
  }
  template <class Real, class Record>
  MEND_RULE static void revert(Real& p, Slots<Real, 2>& s, Real g, const auto& c, Record& record) {
    const Real old = p + c.step * Moments::direction(s[0], s[1], c.moments);
    record.recall(0, p, old, old);
    const auto add = Moments::added(CoupledDecay::gradient(p, g, c.decay), c.moments);
    Moments::recall(s[0], s[1], add, c.moments, record);
  }
};
static_assert(BoundedOptimizer<Adam>);

}  // namespace mend
