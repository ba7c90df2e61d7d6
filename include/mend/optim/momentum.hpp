#pragma once

#include <array>
#include <cmath>
#include <string_view>

#include "mend/kernel/host/scalar.hpp"
#include "mend/optim/learning_rate.hpp"
#include "mend/optim/rule.hpp"

namespace mend {

//! Gradient descent with momentum; weight_decay adds to the gradient (L2).
//!   e = fma(weight_decay, p, g)    m' = fma(beta, m, e)    p' = p - lr m'
//! and with nesterov p' = p - lr fma(beta, m', e). Moves 20 bytes per float parameter.
struct Momentum {
  LearningRate lr = 1e-2f;
  double beta = 0.9;
  bool nesterov = false;
  double weight_decay = 0;

  static constexpr std::array<std::string_view, 1> slots{"m"};
  struct Coefficients {
    double lr, beta, weight_decay;
    double kept;  // 1 - lr weight_decay: what a step leaves of p itself
    bool nesterov;
  };
  [[nodiscard]] Coefficients at(Step applied) const {
    const double rate = lr(applied);
    return {rate, beta, weight_decay, 1 - kernel::ScalarSet::mul(rate, weight_decay), nesterov};
  }
  void check() const {
    lr.check("Momentum");
    require_weight(beta, "Momentum", "beta");
    require_option(weight_decay >= 0 && std::isfinite(weight_decay), "Momentum", "weight_decay",
                   weight_decay, "be finite and not negative");
  }

  template <class Real>
  MEND_RULE static void apply(Real& p, Slots<Real, 1>& s, Real g, const auto& c) {
    Real& m = s[0];
    const Real e = decayed(p, g, c);
    m = fma(c.beta, m, e);
    p = p - c.lr * (c.nesterov ? fma(c.beta, m, e) : m);
  }
  template <class Real>
  MEND_RULE static void revert(Real& p, Slots<Real, 1>& s, Real g, const auto& c) {
    Real& m = s[0];
    // The parameter first: the old gradient term needs it. With nesterov it stands on both sides.
    p = c.nesterov ? (p + c.lr * fma(c.beta, m, g)) / c.kept : p + c.lr * m;
    if (c.beta != 0) m = (m - decayed(p, g, c)) / c.beta;  // with 0 the old value never mattered
  }

 private:
  template <class Real>
  MEND_RULE static Real decayed(const Real& p, const Real& g, const auto& c) {
    return c.weight_decay != 0 ? fma(c.weight_decay, p, g) : g;
  }
};
static_assert(InvertibleOptimizer<Momentum>);

}  // namespace mend
