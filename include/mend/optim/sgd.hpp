#pragma once

#include <array>
#include <string_view>

#include "mend/optim/learning_rate.hpp"
#include "mend/optim/rule.hpp"

namespace mend {

//! Plain gradient descent: p' = p - lr g. Moves 12 bytes per float parameter.
struct Sgd {
  LearningRate lr = 1e-2f;

  static constexpr std::array<std::string_view, 0> slots{};
  struct Coefficients {
    double lr;
  };
  [[nodiscard]] Coefficients at(Step applied) const { return {lr(applied)}; }
  void check() const { lr.check("Sgd"); }

  template <class Real>
  MEND_RULE static void apply(Real& p, Slots<Real, 0>&, Real g, const auto& c) {
    p = p - g * c.lr;
  }
  template <class Real>
  MEND_RULE static void revert(Real& p, Slots<Real, 0>&, Real g, const auto& c) {
    p = p + g * c.lr;
  }
};
static_assert(InvertibleOptimizer<Sgd>);

}  // namespace mend
