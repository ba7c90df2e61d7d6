#pragma once

#include <array>
#include <string_view>

#include "mend/optim/bounded_rule.hpp"
#include "mend/optim/check_options.hpp"
#include "mend/optim/decoupled_decay.hpp"
#include "mend/optim/learning_rate.hpp"
#include "mend/optim/rule.hpp"

namespace mend {

//! Plain gradient descent: p' = fma(1 - lr weight_decay, p, -(lr g)), which is weight decay in the
//! gradient (L2) and beside it alike. Moves 12 bytes per float parameter.
struct Sgd {
  LearningRate lr = 1e-2f;
  double weight_decay = 0;

  static constexpr std::array<std::string_view, 0> slots{};
  struct Coefficients {
    double lr;
    DecoupledDecay decay;
  };
  [[nodiscard]] Coefficients at(Step applied) const {
    const double rate = lr(applied);
    return {rate, DecoupledDecay::at(rate, weight_decay)};
  }
  void check() const {
    lr.check("Sgd");
    require_factor(weight_decay, "Sgd", "weight_decay");
  }

  template <class Real>
  MEND_RULE static void apply(Real& p, Slots<Real, 0>& s, Real g, const auto& c) {
    Unrecorded none;
    apply(p, s, g, c, none);
  }
  template <class Real>
  MEND_RULE static void revert(Real& p, Slots<Real, 0>& s, Real g, const auto& c) {
    Unrecorded none;
    revert(p, s, g, c, none);
  }

  // Bound: decoupled_decay.hpp.
  static constexpr std::array<int, 1> kept_bits{2};
  [[nodiscard]] static bool bounded(const Coefficients& c) { return c.decay.bounded(); }
  template <class Real, class Record>
  MEND_RULE static void apply(Real& p, Slots<Real, 0>&, Real g, const auto& c, Record& record) {
    DecoupledDecay::apply(p, c.lr * g, c.decay, record);
  }
  template <class Real, class Record>
  MEND_RULE static void revert(Real& p, Slots<Real, 0>&, Real g, const auto& c, Record& record) {
    DecoupledDecay::revert(p, c.lr * g, c.decay, record);
  }
};
static_assert(BoundedOptimizer<Sgd>);

}  // namespace mend
