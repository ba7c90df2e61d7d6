#pragma once

#include <array>
#include <cmath>
#include <string_view>

#include "mend/optim/bias_correction.hpp"
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
  };
  [[nodiscard]] Coefficients at(Step applied) const {
    const auto t = applied.value() + 1;
    return {.beta1 = beta1,
            .new1 = 1 - beta1,
            .beta2 = beta2,
            .new2 = 1 - beta2,
            .step = lr(applied) / bias_correction(beta1, t),
            .scale = 1 / std::sqrt(bias_correction(beta2, t)),
            .eps = eps};
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
    Real &m = s[0], &v = s[1];
    m = fma(c.beta1, m, c.new1 * g);
    v = fma(c.beta2, v, c.new2 * g * g);
    p = p - update(m, v, c);
  }
  template <class Real>
  MEND_RULE static void revert(Real& p, Slots<Real, 2>& s, Real g, const auto& c) {
    Real &m = s[0], &v = s[1];
    p = p + update(m, v, c);
    // With a beta of 0 the old value never mattered.
    if (c.beta1 != 0) m = (m - c.new1 * g) / c.beta1;
    if (c.beta2 != 0) v = (v - c.new2 * g * g) / c.beta2;
  }

 private:
  template <class Real>
  MEND_RULE static Real update(const Real& m, const Real& v, const auto& c) {
    return c.step * (m / fma(sqrt(v), c.scale, c.eps));
  }
};
static_assert(InvertibleOptimizer<Adam>);

}  // namespace mend
