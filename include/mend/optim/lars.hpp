#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "mend/kernel/host/scalar.hpp"
#include "mend/optim/bounded_rule.hpp"
#include "mend/optim/check_options.hpp"
#include "mend/optim/learning_rate.hpp"
#include "mend/optim/momentum.hpp"
#include "mend/optim/norm_rule.hpp"
#include "mend/optim/rule.hpp"

namespace mend {

//! LARS (You and others, 2017): momentum whose gradient, per tensor, is scaled to the norm of the
//! parameters:
//!   trust = trust_coefficient |p| / (|g| + weight_decay |p|), 1 where one of |p| and |g| is 0
//!   e     = fma(trust weight_decay, p, trust g)    m' = fma(beta, m, e)    p' = p - lr m'
//! Without norms trust is 1. Reads 8 bytes per float parameter for the norms and moves 20.
struct Lars {
  LearningRate lr = 1;
  double beta = 0.9;
  double weight_decay = 0;
  double trust_coefficient = 1e-3;

  static constexpr std::array<std::string_view, 1> slots{"m"};
  struct Coefficients {
    Momentum::Coefficients update;
    double trust, weight_decay, trust_coefficient;
  };
  [[nodiscard]] Coefficients at(Step applied) const {
    return {Momentum{.lr = lr, .beta = beta, .weight_decay = weight_decay}.at(applied), 1,
            weight_decay, trust_coefficient};
  }
  void check() const {
    lr.check("Lars");
    require_weight(beta, "Lars", "beta");
    require_factor(weight_decay, "Lars", "weight_decay");
    require_factor(trust_coefficient, "Lars", "trust_coefficient");
  }

  static constexpr std::size_t norms = 2;
  template <class Real>
  MEND_RULE static void prepare(const Real& p, const Slots<Real, 1>&, Real g, const auto&,
                                Slots<Real, 2>& terms) {
    terms[0] = p;
    terms[1] = g;
  }
  [[nodiscard]] static Coefficients with_norms(Coefficients c, const std::array<double, 2>& of) {
    const auto mul = [](double a, double b) { return kernel::ScalarSet::mul(a, b); };
    const auto [p, g] = of;
    if (p > 0 && g > 0) {
      c.trust = mul(c.trust_coefficient, p) / (g + mul(c.weight_decay, p));
      c.update.coupled.weight_decay = mul(c.trust, c.weight_decay);
    }
    return c;
  }

  template <class Real>
  MEND_RULE static void apply(Real& p, Slots<Real, 1>& s, Real g, const auto& c) {
    Momentum::apply(p, s, c.trust * g, c.update);
  }
  template <class Real>
  MEND_RULE static void revert(Real& p, Slots<Real, 1>& s, Real g, const auto& c) {
    Momentum::revert(p, s, c.trust * g, c.update);
  }

  // Bounds: as Momentum.
  static constexpr std::array<int, 2> kept_bits = Momentum::kept_bits;
  [[nodiscard]] static bool bounded(const Coefficients& c) { return Momentum::bounded(c.update); }
  template <class Real, class Record>
  MEND_RULE static void apply(Real& p, Slots<Real, 1>& s, Real g, const auto& c, Record& record) {
    Momentum::apply(p, s, c.trust * g, c.update, record);
  }
  template <class Real, class Record>
  MEND_RULE static void revert(Real& p, Slots<Real, 1>& s, Real g, const auto& c, Record& record) {
    Momentum::revert(p, s, c.trust * g, c.update, record);
  }
};
static_assert(BoundedOptimizer<Lars> && NormRule<Lars>);

}  // namespace mend
