#pragma once

#include <array>
#include <string_view>

#include "mend/optim/bounded_rule.hpp"
#include "mend/optim/check_options.hpp"
#include "mend/optim/decoupled_decay.hpp"
#include "mend/optim/learning_rate.hpp"
#include "mend/optim/rule.hpp"

namespace mend {

//! Lion (Chen and others, 2023): steps of one size, in the direction of a sign. weight_decay is
//! decoupled.
//!   u  = lr sign(fma(beta1, m, (1 - beta1) g)), 0 for a zero
//!   m' = fma(beta2, m, (1 - beta2) g)
//!   p' = fma(1 - lr weight_decay, p, -u)
//! Moves 20 bytes per float parameter.
struct Lion {
  LearningRate lr = 1e-4f;
  double beta1 = 0.9, beta2 = 0.99;
  double weight_decay = 0;

  static constexpr std::array<std::string_view, 1> slots{"m"};
  struct Coefficients {
    double lr, beta1, new1, beta2, new2;
    double inverse2;  // 1 / beta2; 0 for a beta2 of 0, where the old m cannot be known
    DecoupledDecay decay;
  };
  [[nodiscard]] Coefficients at(Step applied) const {
    const double rate = lr(applied);
    return {rate,
            beta1,
            1 - beta1,
            beta2,
            1 - beta2,
            beta2 == 0 ? 0 : 1 / beta2,
            DecoupledDecay::at(rate, weight_decay)};
  }
  void check() const {
    lr.check("Lion");
    require_weight(beta1, "Lion", "beta1");
    require_weight(beta2, "Lion", "beta2");
    require_factor(weight_decay, "Lion", "weight_decay");
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

  // Bounds: of m as in momentum.hpp, of p in decoupled_decay.hpp. m comes first: the sign needs the
  // very bits of the old one.
  static constexpr std::array<int, 2> kept_bits{2, 6};
  [[nodiscard]] static bool bounded(const Coefficients& c) {
    return between(0.5625, c.beta2, 0.99999) && c.decay.bounded();
  }
  template <class Real, class Record>
  MEND_RULE static void apply(Real& p, Slots<Real, 1>& s, Real g, const auto& c, Record& record) {
    const Real u = update(s[0], g, c), add = c.new2 * g;
    s[0] = fma(c.beta2, s[0], add);
    record.keep(1, s[0], s[0] - add);
    DecoupledDecay::apply(p, u, c.decay, record);
  }
  template <class Real, class Record>
  MEND_RULE static void revert(Real& p, Slots<Real, 1>& s, Real g, const auto& c, Record& record) {
    const Real rest = s[0] - c.new2 * g;
    record.recall(1, s[0], rest, rest * c.inverse2);
    DecoupledDecay::revert(p, update(s[0], g, c), c.decay, record);
  }

 private:
  template <class Real>
  MEND_RULE static Real update(const Real& m, const Real& g, const auto& c) {
    const Real direction = fma(c.beta1, m, c.new1 * g);
    return select(abs(direction) > 0, copysign(Real{c.lr}, direction), direction);  // 0 or a NaN
  }
};
static_assert(BoundedOptimizer<Lion>);

}  // namespace mend
