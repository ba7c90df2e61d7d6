#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

#include "mend/config.hpp"
#include "mend/optim/bias_correction.hpp"
#include "mend/optim/bounded_rule.hpp"
#include "mend/optim/check_options.hpp"
#include "mend/optim/inverse.hpp"

namespace mend {

//! What Adam and its relatives have in common, for their Coefficients: decaying averages m of the
//! gradient and v of its square.
//!   m' = fma(beta1, m, (1 - beta1) g)
//!   v' = fma(beta2, v, (1 - beta2) g g)             scale = 1 / sqrt(1 - beta2^t)
//!   direction = m' / fma(sqrt(v'), scale, eps)      t     = updates applied so far + 1
//! Every term is rounded before it is added, so that a first step reverts exactly.
struct Moments {
  double beta1, new1, beta2, new2;  // new: 1 - beta, the weight of this step's gradient
  double inverse1, inverse2;  // of the betas; 0 for a beta of 0, where the old value never mattered
  double scale, eps;

  [[nodiscard]] static Moments at(double beta1, double beta2, double eps, std::int64_t t) {
    return {.beta1 = beta1,
            .new1 = 1 - beta1,
            .beta2 = beta2,
            .new2 = 1 - beta2,
            .inverse1 = beta1 == 0 ? 0 : 1 / beta1,
            .inverse2 = beta2 == 0 ? 0 : 1 / beta2,
            .scale = 1 / std::sqrt(bias_correction(beta2, t)),
            .eps = eps};
  }
  static void check(double beta1, double beta2, double eps, std::string_view rule) {
    require_weight(beta1, rule, "beta1");
    require_weight(beta2, rule, "beta2");
    require_positive(eps, rule, "eps");
  }

  // Bounds, in units of the last place (ulp), with four bits for m and two for v: guards E(now) <=
  // 8 and 2 |remainder| (E: its power of two), after which an apply has lost at most 4 and 1
  // ulp(remainder).
  //   m: (4 + 1/2) / beta1 and the roundings of estimate, 1 / beta1 and beta1, together below 2: at
  //      most 8 below, 7 above for beta1 > 0.78125 (at 0.9: 7.0). A beta1 next to 1 would leave old
  //      values in the binade below the remainder's, where an ulp is half as large.
  //   v: the estimate rounds once, to a hair: 1 / beta2 + 1/2 < 2, hence 1; 2 below a power of two
  static constexpr int kept_bits_m = 4, kept_bits_v = 2;
  [[nodiscard]] bool bounded() const {
    return between(0.78125, beta1, 0.99999) && between(0.75, beta2, 2);
  }

  //! What a gradient adds to the averages.
  template <class Real>
  struct Added {
    Real m, v;
  };
  template <class Real>
  MEND_RULE static Added<Real> added(const Real& g, const auto& c) {
    return {c.new1 * g, c.new2 * g * g};
  }
  template <class Real>
  MEND_RULE static void advance(Real& m, Real& v, const Added<Real>& add, const auto& c) {
    m = fma(c.beta1, m, add.m);
    v = fma(c.beta2, v, add.v);
  }
  template <class Real>
  MEND_RULE static Real denominator(const Real& v, const auto& c) {
    return fma(sqrt(v), c.scale, c.eps);
  }
  template <class Real>
  MEND_RULE static Real direction(const Real& m, const Real& v, const auto& c) {
    return m / denominator(v, c);
  }

  //! m and v are arrays 1 and 2 of the record.
  template <class Real, class Record>
  MEND_RULE static void keep(const Real& m, const Real& v, const Added<Real>& add, Record& record) {
    record.keep(1, m, m - add.m);
    record.keep(2, v, v - add.v);
  }
  template <class Real, class Record>
  MEND_RULE static void recall(Real& m, Real& v, const Added<Real>& add, const auto& c,
                               Record& record) {
    const Real rest = m - add.m;
    record.recall(1, m, rest, rest * c.inverse1);
    record.recall(2, v, v - add.v, undo_fma(v, add.v, Real{c.beta2}, Real{c.inverse2}));
  }
};

}  // namespace mend
