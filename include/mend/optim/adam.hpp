#pragma once

#include <array>
#include <cmath>
#include <string_view>

#include "mend/optim/bias_correction.hpp"
#include "mend/optim/bounded_rule.hpp"
#include "mend/optim/inverse.hpp"
#include "mend/optim/learning_rate.hpp"
#include "mend/optim/rule.hpp"

namespace mend {

//! Adam (Kingma and Ba, 2015), with corrected averages m of the gradient and v of its square:
//!   m' = fma(beta1, m, (1 - beta1) g)                 step  = lr / (1 - beta1^t)
//!   v' = fma(beta2, v, (1 - beta2) g g)               scale = 1 / sqrt(1 - beta2^t)
//!   p' = p - step (m' / fma(sqrt(v'), scale, eps))    t     = updates applied so far + 1
//! Every term is rounded before it is added, so that a first step and a zero parameter revert
//! exactly. Moves 28 bytes per float parameter.
struct Adam {
  LearningRate lr = 1e-3f;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;

  static constexpr std::array<std::string_view, 2> slots{"m", "v"};
  struct Coefficients {
    double beta1, new1, beta2, new2;  // new: 1 - beta, the weight of this step's gradient
    double step, scale, eps;
    double inverse1,
        inverse2;  // of the betas; 0 for a beta of 0, where the old value never mattered
  };
  [[nodiscard]] Coefficients at(Step applied) const {
    const auto t = applied.value() + 1;
    return {.beta1 = beta1,
            .new1 = 1 - beta1,
            .beta2 = beta2,
            .new2 = 1 - beta2,
            .step = lr(applied) / bias_correction(beta1, t),
            .scale = 1 / std::sqrt(bias_correction(beta2, t)),
            .eps = eps,
            .inverse1 = beta1 == 0 ? 0 : 1 / beta1,
            .inverse2 = beta2 == 0 ? 0 : 1 / beta2};
  }
  void check() const {
    lr.check("Adam");
    require_weight(beta1, "Adam", "beta1");
    require_weight(beta2, "Adam", "beta2");
    // As a float too: there a smaller one would be 0, and 0 / 0 a NaN.
    require_option(static_cast<float>(eps) > 0 && std::isfinite(eps), "Adam", "eps", eps,
                   "be finite and positive as a float");
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

  // Bounds, in units of the last place (ulp), with guards E(now) <= 8, 2, 2 |remainder| for m, v, p
  // (E: its power of two), after which an apply has lost at most 4, 1, 1 ulp(remainder):
  //   m: (4 + 1/2) / beta1 and 2 roundings of the estimate: at most 8 below, 7 above for beta1 >
  //      0.75 (at 0.9: 7.0)
  //   v: the estimate rounds once, to a hair: 1 / beta2 + 1/2 < 2, hence 1; 2 below a power of two
  //   p: 1 + 1/2 < 2, hence 1; 2 below a power of two
  static constexpr std::array<int, 3> kept_bits{2, 4, 2};
  [[nodiscard]] static bool bounded(const Coefficients& c) {
    return c.beta1 > 0.78125 && c.beta2 > 0.75;
  }
  template <class Real, class Record>
  MEND_RULE static void apply(Real& p, Slots<Real, 2>& s, Real g, const auto& c, Record& record) {
    Real &m = s[0], &v = s[1];
    const Real dm = c.new1 * g, dv = c.new2 * g * g;
    m = fma(c.beta1, m, dm);
    v = fma(c.beta2, v, dv);
    record.keep(1, m, m - dm);
    record.keep(2, v, v - dv);
    const Real u = update(m, v, c);
    p = p - u;
    record.keep(0, p, p + u);
  }
  template <class Real, class Record>
  MEND_RULE static void revert(Real& p, Slots<Real, 2>& s, Real g, const auto& c, Record& record) {
    Real &m = s[0], &v = s[1];
    const Real dm = c.new1 * g, dv = c.new2 * g * g, u = update(m, v, c);
    const Real rest = m - dm;
    record.recall(1, m, rest, rest * c.inverse1);
    record.recall(2, v, v - dv, undo_fma(v, dv, Real{c.beta2}, Real{c.inverse2}));
    const Real old = p + u;
    record.recall(0, p, old, old);
  }

 private:
  template <class Real>
  MEND_RULE static Real update(const Real& m, const Real& v, const auto& c) {
    return c.step * (m / fma(sqrt(v), c.scale, c.eps));
  }
};
static_assert(BoundedOptimizer<Adam>);

}  // namespace mend
