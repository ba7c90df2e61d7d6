#pragma once

#include <array>
#include <string_view>

#include "mend/optim/bounded_rule.hpp"
#include "mend/optim/check_options.hpp"
#include "mend/optim/coupled_decay.hpp"
#include "mend/optim/inverse.hpp"
#include "mend/optim/learning_rate.hpp"
#include "mend/optim/rule.hpp"

namespace mend {

//! RMSprop (Hinton, 2012), without momentum and not centered; weight_decay adds to the gradient
//! (L2):
//!   e  = fma(weight_decay, p, g)
//!   v' = fma(alpha, v, (1 - alpha) e e)
//!   p' = p - lr (g / d), with decay fma(1 - lr weight_decay / d, p, -(lr (g / d)))
//!   d  = sqrt(v') + eps
//! Moves 20 bytes per float parameter.
struct RmsProp {
  LearningRate lr = 1e-2f;
  double alpha = 0.99, eps = 1e-8;
  double weight_decay = 0;

  static constexpr std::array<std::string_view, 1> slots{"v"};
  struct Coefficients {
    double lr, alpha, added, eps;  // added: 1 - alpha
    double inverse;                // 1 / alpha; 0 for an alpha of 0, where the old v never mattered
    CoupledDecay decay;
  };
  [[nodiscard]] Coefficients at(Step applied) const {
    const double rate = lr(applied);
    return {rate,
            alpha,
            1 - alpha,
            eps,
            alpha == 0 ? 0 : 1 / alpha,
            CoupledDecay::at(rate, weight_decay)};
  }
  void check() const {
    lr.check("RmsProp");
    require_weight(alpha, "RmsProp", "alpha");
    require_positive(eps, "RmsProp", "eps");
    require_factor(weight_decay, "RmsProp", "weight_decay");
  }

  template <class Real>
  MEND_RULE static void apply(Real& p, Slots<Real, 1>& s, Real g, const auto& c) {
    Unrecorded none;
    apply(p, s, g, c, none);
  }
  template <class Real>
  MEND_RULE static void revert(Real& p, Slots<Real, 1>& s, Real g, const auto& c) {
    Unrecorded none;
    revert(p, s, g, c, none);
  }

  // Bounds: of v as in moments.hpp, of p in coupled_decay.hpp. p comes first: e needs it.
  static constexpr std::array<int, 2> kept_bits{2, 2};
  [[nodiscard]] static bool bounded(const Coefficients& c) { return between(0.75, c.alpha, 2); }
  template <class Real, class Record>
  MEND_RULE static void apply(Real& p, Slots<Real, 1>& s, Real g, const auto& c, Record& record) {
    const Real add = added(p, g, c);
    s[0] = fma(c.alpha, s[0], add);
    const Real d = sqrt(s[0]) + c.eps;
    CoupledDecay::apply(p, c.lr * (g / d), d, c.decay, record);
    record.keep(1, s[0], s[0] - add);
  }
  template <class Real, class Record>
  MEND_RULE static void revert(Real& p, Slots<Real, 1>& s, Real g, const auto& c, Record& record) {
    const Real d = sqrt(s[0]) + c.eps;
    CoupledDecay::revert(p, c.lr * (g / d), d, c.decay, record);
    const Real add = added(p, g, c);
    record.recall(1, s[0], s[0] - add, undo_fma(s[0], add, Real{c.alpha}, Real{c.inverse}));
  }

 private:
  template <class Real>
  MEND_RULE static Real added(const Real& p, const Real& g, const auto& c) {
    const Real e = CoupledDecay::gradient(p, g, c.decay);
    return c.added * e * e;
  }
};
static_assert(BoundedOptimizer<RmsProp>);

}  // namespace mend
