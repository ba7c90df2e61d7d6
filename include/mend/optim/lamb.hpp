#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "mend/kernel/host/scalar.hpp"
#include "mend/optim/adamw.hpp"
#include "mend/optim/bias_correction.hpp"
#include "mend/optim/bounded_rule.hpp"
#include "mend/optim/check_options.hpp"
#include "mend/optim/decoupled_decay.hpp"
#include "mend/optim/learning_rate.hpp"
#include "mend/optim/moments.hpp"
#include "mend/optim/norm_rule.hpp"
#include "mend/optim/rule.hpp"

namespace mend {

//! LAMB (You and others, 2020): AdamW whose learning rate, per tensor, is proportional to the norm
//! of the parameters:
//!   r     = (m' / fma(sqrt(v'), scale, eps)) / (1 - beta1^t), m', v' and scale as in AdamW
//!   trust = |p| / |fma(weight_decay, p, r)|, 1 where one of them is 0
//!   p'    = fma(1 - s weight_decay, p, -(s r)), s = lr trust, the two factors of the quotient in r
//!           rounded as one
//! Without norms trust is 1. Reads 16 bytes per float parameter for the norms and moves 28.
struct Lamb {
  LearningRate lr = 1e-3f;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-6;
  double weight_decay = 1e-2;

  static constexpr std::array<std::string_view, 2> slots{"m", "v"};
  struct Coefficients {
    AdamW::Coefficients update;
    double lr, correction, weight_decay;  // correction: 1 / (1 - beta1^t)
  };
  [[nodiscard]] Coefficients at(Step applied) const {
    const auto t = applied.value() + 1;
    const Coefficients c{{Moments::at(beta1, beta2, eps, t), 0, {}},
                         lr(applied),
                         1 / bias_correction(beta1, t),
                         weight_decay};
    return with_trust(c, 1);
  }
  void check() const {
    lr.check("Lamb");
    Moments::check(beta1, beta2, eps, "Lamb");
    require_factor(weight_decay, "Lamb", "weight_decay");
  }

  static constexpr std::size_t norms = 2;
  template <class Real>
  MEND_RULE static void prepare(const Real& p, const Slots<Real, 2>& s, Real g, const auto& c,
                                Slots<Real, 2>& terms) {
    const auto& moments = c.update.moments;
    Real m = s[0], v = s[1];
    Moments::advance(m, v, Moments::added(g, moments), moments);
    // Assigned whole: std::array's operator[] is no device function.
    terms = {p, fma(c.weight_decay, p, c.correction * Moments::direction(m, v, moments))};
  }
  [[nodiscard]] static Coefficients with_norms(const Coefficients& c,
                                               const std::array<double, 2>& of) {
    return with_trust(c, of[0] > 0 && of[1] > 0 ? of[0] / of[1] : 1);
  }

  template <class Real>
  MEND_RULE static void apply(Real& p, Slots<Real, 2>& s, Real g, const auto& c) {
    AdamW::apply(p, s, g, c.update);
  }
  template <class Real>
  MEND_RULE static void revert(Real& p, Slots<Real, 2>& s, Real g, const auto& c) {
    AdamW::revert(p, s, g, c.update);
  }

  // Bounds: as AdamW.
  static constexpr std::array<int, 3> kept_bits = AdamW::kept_bits;
  [[nodiscard]] static bool bounded(const Coefficients& c) { return AdamW::bounded(c.update); }
  template <class Real, class Record>
  MEND_RULE static void apply(Real& p, Slots<Real, 2>& s, Real g, const auto& c, Record& record) {
    AdamW::apply(p, s, g, c.update, record);
  }
  template <class Real, class Record>
  MEND_RULE static void revert(Real& p, Slots<Real, 2>& s, Real g, const auto& c, Record& record) {
    AdamW::revert(p, s, g, c.update, record);
  }

 private:
  static Coefficients with_trust(Coefficients c, double trust) {
    const double s = kernel::ScalarSet::mul(c.lr, trust);
    c.update.step = kernel::ScalarSet::mul(s, c.correction);
    c.update.decay = DecoupledDecay::at(s, c.weight_decay);
    return c;
  }
};
static_assert(BoundedOptimizer<Lamb> && NormRule<Lamb>);

}  // namespace mend
