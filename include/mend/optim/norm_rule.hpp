#pragma once

#include <array>
#include <concepts>
#include <cstddef>

#include "mend/config.hpp"
#include "mend/optim/rule.hpp"

namespace mend {

namespace detail {

template <class R, class Real>
using PrepareFunction = void (*)(const Real&, const Slots<Real, R::slots.size()>&, Real,
                                 const typename R::Coefficients&, Slots<Real, R::norms>&);

}  // namespace detail

//! A rule whose update of a parameter depends on Euclidean norms over its whole tensor (LAMB,
//! LARS). A tensor is read once before its update:
//!
//!   static constexpr std::size_t norms;                              how many
//!   prepare(const Real& p, const Slots& s, Real g, const auto& c, Slots<Real, norms>& terms)
//!                                                 the terms of each norm for one parameter
//!   Coefficients with_norms(Coefficients, const std::array<double, norms>&)     for that tensor
//!
//! Law: prepare writes nothing but terms. The norms are square roots of the sums of the terms'
//! squares, in double and in one order on every machine (kernel::norms).
template <class R>
concept NormRule = Rule<R> &&
    requires(const typename R::Coefficients& c, const std::array<double, R::norms>& norms) {
  { R::with_norms(c, norms) } -> std::same_as<typename R::Coefficients>;
  static_cast<detail::PrepareFunction<R, kernel::Scalar<float>>>(
      &R::template prepare<kernel::Scalar<float>>);
};

}  // namespace mend
