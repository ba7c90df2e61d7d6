#pragma once

#include <array>
#include <string_view>

#include "mend/optim/bounded_rule.hpp"
#include "mend/optim/check_options.hpp"
#include "mend/optim/coupled_decay.hpp"
#include "mend/optim/decoupled_decay.hpp"
#include "mend/optim/learning_rate.hpp"
#include "mend/optim/rule.hpp"

namespace mend {

//! Gradient descent with momentum; weight_decay adds to the gradient (L2).
//!   e = fma(weight_decay, p, g)    m' = fma(beta, m, e)    p' = p - lr m'
//! and with nesterov p' = fma(1 - lr weight_decay, p, -(lr fma(beta, m', g))), which is
//! p - lr (beta m' + e) with the two parts of e taken apart, so that revert has p once. Moves 20
//! bytes per float parameter.
struct Momentum {
  LearningRate lr = 1e-2f;
  double beta = 0.9;
  bool nesterov = false;
  double weight_decay = 0;

  static constexpr std::array<std::string_view, 1> slots{"m"};
  struct Coefficients {
    double lr, beta;
    double inverse;  // 1 / beta; 0 for a beta of 0, where the old m never mattered
    bool nesterov;
    CoupledDecay coupled;
    DecoupledDecay direct;  // with nesterov: what a step leaves of p itself
  };
  [[nodiscard]] Coefficients at(Step applied) const {
    const double rate = lr(applied);
    return {rate,
            beta,
            beta == 0 ? 0 : 1 / beta,
            nesterov,
            CoupledDecay::at(rate, weight_decay),
            DecoupledDecay::at(rate, nesterov ? weight_decay : 0)};
  }
  void check() const {
    lr.check("Momentum");
    require_weight(beta, "Momentum", "beta");
    require_factor(weight_decay, "Momentum", "weight_decay");
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

  // Bounds: of p in decoupled_decay.hpp. m, with six bits and the guard E(m') <= 32 |m' - e|, has
  // lost at most 16 ulp of that remainder; (16 + 1/2) / beta and the roundings of estimate,
  // 1 / beta and beta, together below 2, make at most 32 for beta > 0.5625. A beta next to 1 would
  // leave old values in the binade below the remainder's, where an ulp is half as large.
  static constexpr std::array<int, 2> kept_bits{2, 6};
  [[nodiscard]] static bool bounded(const Coefficients& c) {
    return between(0.5625, c.beta, 0.99999) && c.direct.bounded();
  }
  template <class Real, class Record>
  MEND_RULE static void apply(Real& p, Slots<Real, 1>& s, Real g, const auto& c, Record& record) {
    const Real e = CoupledDecay::gradient(p, g, c.coupled);
    s[0] = fma(c.beta, s[0], e);
    DecoupledDecay::apply(p, update(s[0], g, c), c.direct, record);
    record.keep(1, s[0], s[0] - e);
  }
  template <class Real, class Record>
  MEND_RULE static void revert(Real& p, Slots<Real, 1>& s, Real g, const auto& c, Record& record) {
    DecoupledDecay::revert(p, update(s[0], g, c), c.direct, record);
    // Only now: the old gradient term needs the old parameter.
    const Real rest = s[0] - CoupledDecay::gradient(p, g, c.coupled);
    record.recall(1, s[0], rest, rest * c.inverse);
  }

 private:
  template <class Real>
  MEND_RULE static Real update(const Real& m, const Real& g, const auto& c) {
    return c.lr * (c.nesterov ? fma(c.beta, m, g) : m);
  }
};
static_assert(BoundedOptimizer<Momentum>);

}  // namespace mend
