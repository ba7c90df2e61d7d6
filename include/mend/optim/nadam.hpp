#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "mend/kernel/host/scalar.hpp"
#include "mend/optim/bias_correction.hpp"
#include "mend/optim/bounded_rule.hpp"
#include "mend/optim/check_options.hpp"
#include "mend/optim/coupled_decay.hpp"
#include "mend/optim/learning_rate.hpp"
#include "mend/optim/moments.hpp"
#include "mend/optim/rule.hpp"

namespace mend {

//! Adam that looks ahead (Dozat, 2016), in the form of PyTorch's NAdam; weight_decay adds to the
//! gradient (L2):
//!   e    = fma(weight_decay, p, g)             t = updates applied so far + 1
//!   m'   = fma(beta1, m, (1 - beta1) e)
//!   v'   = fma(beta2, v, (1 - beta2) e e)      scale = 1 / sqrt(1 - beta2^t)
//!   mu_t = beta1 (1 - 0.96^(t momentum_decay) / 2)
//!   a    = lr (1 - mu_t) / (1 - mu_1 ... mu_t)
//!   b    = lr mu_t+1 / (1 - mu_1 ... mu_t+1)
//!   d    = fma(sqrt(v'), scale, eps)
//!   u    = fma(b, m', a g) / d
//!   p'   = p - u, with decay fma(1 - a weight_decay / d, p, -u)
//! Moves 28 bytes per float parameter.
//!
//! The product of all mu so far is beta1^t times factors that tend to 1. It is multiplied anew at
//! every step, in order and every product rounded, until it is too small to change 1 - product or a
//! factor is 1: some hundred factors, at most 3000 whatever the options, at step 10^6 as at 10^3.
struct NAdam {
  LearningRate lr = 2e-3f;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double momentum_decay = 4e-3;
  double weight_decay = 0;

  static constexpr std::array<std::string_view, 2> slots{"m", "v"};
  struct Coefficients {
    Moments moments;
    double now, ahead;  // a and b: the steps along this gradient and along the average
    CoupledDecay decay;
  };
  [[nodiscard]] Coefficients at(Step applied) const {
    const auto t = applied.value() + 1;
    const double rate = lr(applied), ratio = power_of_096(momentum_decay);
    const double mu = mu_at(ratio, t), next = mu_at(ratio, t + 1);
    const double now = mul(rate, 1 - mu) / (1 - mu_product(ratio, t));
    const double ahead = mul(rate, next) / (1 - mu_product(ratio, t + 1));
    return {Moments::at(beta1, beta2, eps, t), now, ahead, CoupledDecay::at(now, weight_decay)};
  }
  void check() const {
    lr.check("NAdam");
    Moments::check(beta1, beta2, eps, "NAdam");
    require_factor(momentum_decay, "NAdam", "momentum_decay");
    require_factor(weight_decay, "NAdam", "weight_decay");
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

  // Bounds: moments.hpp and coupled_decay.hpp. p comes first: e needs it.
  static constexpr std::array<int, 3> kept_bits{2, Moments::kept_bits_m, Moments::kept_bits_v};
  [[nodiscard]] static bool bounded(const Coefficients& c) { return c.moments.bounded(); }
  template <class Real, class Record>
  MEND_RULE static void apply(Real& p, Slots<Real, 2>& s, Real g, const auto& c, Record& record) {
    const auto add = Moments::added(CoupledDecay::gradient(p, g, c.decay), c.moments);
    Moments::advance(s[0], s[1], add, c.moments);
    const Real d = Moments::denominator(s[1], c.moments);
    CoupledDecay::apply(p, fma(c.ahead, s[0], c.now * g) / d, d, c.decay, record);
    Moments::keep(s[0], s[1], add, record);
  }
  template <class Real, class Record>
  MEND_RULE static void revert(Real& p, Slots<Real, 2>& s, Real g, const auto& c, Record& record) {
    const Real d = Moments::denominator(s[1], c.moments);
    CoupledDecay::revert(p, fma(c.ahead, s[0], c.now * g) / d, d, c.decay, record);
    const auto add = Moments::added(CoupledDecay::gradient(p, g, c.decay), c.moments);
    Moments::recall(s[0], s[1], add, c.moments, record);
  }

 private:
  static double mul(double a, double b) { return kernel::ScalarSet::mul(a, b); }

  //! 0.96^exponent: e^x by its series for an x near 0, squared as often as x was halved.
  static double power_of_096(double exponent) {
    double x = mul(exponent, -0.040821994520255166);  // ln 0.96
    if (x < -745) return 0;
    int halvings = 0;
    for (; x < -0.0625; ++halvings) x /= 2;
    double power = 1;
    for (int k = 11; k > 0; --k) power = 1 + mul(x / k, power);
    for (; halvings > 0; --halvings) power = mul(power, power);
    return power;
  }

  // ratio: 0.96^momentum_decay
  [[nodiscard]] double mu_at(double ratio, std::int64_t t) const {
    return mul(beta1, 1 - mul(0.5, 1 - bias_correction(ratio, t)));
  }
  [[nodiscard]] double mu_product(double ratio, std::int64_t t) const {
    double product = 1 - bias_correction(beta1, t), power = 1, factor = 0;
    for (std::int64_t i = 1; i <= t && product > 0x1p-60 && factor < 1; ++i) {
      power = mul(power, ratio);
      factor = 1 - mul(0.5, power);
      product = mul(product, factor);
    }
    return product;
  }
};
static_assert(BoundedOptimizer<NAdam>);

}  // namespace mend
