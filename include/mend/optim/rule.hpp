#pragma once

#include <array>
#include <concepts>
#include <string_view>
#include <type_traits>

#include "mend/config.hpp"
#include "mend/core/step.hpp"
#include "mend/kernel/host/instruction_sets.hpp"
#include "mend/kernel/host/scalar.hpp"
#include "mend/kernel/slots.hpp"

namespace mend {

namespace detail {

//! The type that a rule's apply and revert must have, exactly: called with the right arguments,
//! a rule that takes `Real p` by value compiles too, and never moves a parameter.
template <class R, class Real>
using RuleFunction = void (*)(Real&, Slots<Real, R::slots.size()>&, Real,
                              const typename R::Coefficients&);

}  // namespace detail

//! An update rule: what happens to one parameter, written once over an abstract number `Real`, so
//! that it runs as a scalar, as SIMD lanes and in a CUDA kernel with the same bits. A flat
//! aggregate:
//!
//!   static constexpr std::array<std::string_view, N> slots;
//!       the names of what it keeps per parameter
//!   struct Coefficients;
//!       plain numbers, the same for all parameters
//!   Coefficients at(Step applied) const;
//!       applied: how many updates were made so far
//!   template <class Real>
//!   MEND_RULE static void apply(Real& p, Slots<Real, N>& s, Real g, const auto& c);
//!       one update by the gradient g
//!
//! Real has + - * /, fma, sqrt, abs, copysign, min, max, comparisons and select(mask, a, b), each
//! rounded once and fused only where it says fma; a float, a double or an int may stand on either
//! side.
//!
//! Law 1: apply is a function of its arguments: no state elsewhere, no branch on the value of a
//!        Real.
//! Law 2: at is a function of the rule's members and of `applied`; a double coefficient is rounded
//!        once, to Real's element.
//! Law 3: a parameter's update depends on no other parameter. (A rule that needs norms of its
//!        tensor says so: NormRule.)
//! Law 4: slots start as zeros; a zero gradient on a fresh parameter leaves it finite.
//! check_rule<R>() tests the laws.
template <class R>
concept Rule = std::copyable<R> && requires(const R& rule, Step applied) {
  requires std::same_as<decltype(R::slots), const std::array<std::string_view, R::slots.size()>>;
  { rule.at(applied) } -> std::same_as<typename R::Coefficients>;
  static_cast<detail::RuleFunction<R, kernel::Scalar<float>>>(
      &R::template apply<kernel::Scalar<float>>);
  static_cast<detail::RuleFunction<R, kernel::Lanes<double, kernel::BaselineSet>>>(
      &R::template apply<kernel::Lanes<double, kernel::BaselineSet>>);
};

//! A rule with `revert`, of the same type as apply.
//! Law 5: revert after apply, with the same gradient and coefficients, restores parameter and slots
//!        but for rounding: each to within 64 units in the last place of the larger of its two
//!        values. It reads the new state only.
template <class R>
concept InvertibleOptimizer = Rule<R> && requires {
  static_cast<detail::RuleFunction<R, kernel::Scalar<float>>>(
      &R::template revert<kernel::Scalar<float>>);
  static_cast<detail::RuleFunction<R, kernel::Lanes<double, kernel::BaselineSet>>>(
      &R::template revert<kernel::Lanes<double, kernel::BaselineSet>>);
};

}  // namespace mend
