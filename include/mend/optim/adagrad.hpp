#pragma once

#include <array>
#include <string_view>

#include "mend/optim/bounded_rule.hpp"
#include "mend/optim/check_options.hpp"
#include "mend/optim/coupled_decay.hpp"
#include "mend/optim/learning_rate.hpp"
#include "mend/optim/rule.hpp"

namespace mend {

//! Adagrad (Duchi and others, 2011); weight_decay adds to the gradient (L2):
//!   e  = fma(weight_decay, p, g)
//!   v' = v + e e
//!   p' = p - lr (g / d), with decay fma(1 - lr weight_decay / d, p, -(lr (g / d)))
//!   d  = sqrt(v') + eps
//! The square is rounded before it is added, so that a first step reverts exactly. Moves 20 bytes
//! per float parameter.
struct Adagrad {
  LearningRate lr = 1e-2f;
  double eps = 1e-10;
  double weight_decay = 0;

  static constexpr std::array<std::string_view, 1> slots{"v"};
  struct Coefficients {
    double lr, eps;
    CoupledDecay decay;
  };
  [[nodiscard]] Coefficients at(Step applied) const {
    const double rate = lr(applied);
    return {rate, eps, CoupledDecay::at(rate, weight_decay)};
  }
  void check() const {
    lr.check("Adagrad");
    require_positive(eps, "Adagrad", "eps");
    require_factor(weight_decay, "Adagrad", "weight_decay");
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

  // Bounds: of p in coupled_decay.hpp; of v, with the guard E(v') <= 2 |v' - e e|: at most 1 ulp of
  // that remainder is lost, whose rounding adds 1/2: 1; 2 below a power of two. p comes first: e
  // needs it.
  static constexpr std::array<int, 2> kept_bits{2, 2};
  [[nodiscard]] static bool bounded(const Coefficients&) { return true; }
  template <class Real, class Record>
  MEND_RULE static void apply(Real& p, Slots<Real, 1>& s, Real g, const auto& c, Record& record) {
    const Real e = CoupledDecay::gradient(p, g, c.decay), square = e * e;
    s[0] = s[0] + square;
    const Real d = sqrt(s[0]) + c.eps;
    CoupledDecay::apply(p, c.lr * (g / d), d, c.decay, record);
    record.keep(1, s[0], s[0] - square);
  }
  template <class Real, class Record>
  MEND_RULE static void revert(Real& p, Slots<Real, 1>& s, Real g, const auto& c, Record& record) {
    const Real d = sqrt(s[0]) + c.eps;
    CoupledDecay::revert(p, c.lr * (g / d), d, c.decay, record);
    const Real e = CoupledDecay::gradient(p, g, c.decay), old = s[0] - e * e;
    record.recall(1, s[0], old, old);
  }
};
static_assert(BoundedOptimizer<Adagrad>);

}  // namespace mend
