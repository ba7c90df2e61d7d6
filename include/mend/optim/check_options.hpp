#pragma once

#include <cmath>
#include <string>
#include <string_view>

#include "mend/core/error.hpp"
#include "mend/core/text.hpp"

namespace mend {

//! Throws OptionError "what = value must ...".
[[noreturn]] inline void refuse_value(std::string_view what, double value, std::string_view must) {
  throw OptionError{std::string{what} + " = " + shortest(value) + " must " + std::string{must}};
}

//! Throws OptionError "rule: field = value must ..." where `good` is false; a NaN is never good.
inline void require_option(bool good, std::string_view rule, std::string_view field, double value,
                           std::string_view must) {
  if (!good) refuse_value(std::string{rule} + ": " + std::string{field}, value, must);
}

//! The weight that a moving average gives to its past: 0 to below 1, as a float too.
inline void require_weight(double beta, std::string_view rule, std::string_view field) {
  require_option(beta >= 0 && static_cast<float>(beta) < 1, rule, field, beta,
                 "lie in [0, 1), as a float too");
}

//! A factor: 0 or more.
inline void require_factor(double factor, std::string_view rule, std::string_view field) {
  require_option(factor >= 0 && std::isfinite(static_cast<float>(factor)), rule, field, factor,
                 "be finite as a float and not negative");
}

//! What keeps a quotient finite: more than 0, as a float too, where a smaller one would be 0.
inline void require_positive(double eps, std::string_view rule, std::string_view field) {
  const auto narrow = static_cast<float>(eps);
  require_option(narrow > 0 && std::isfinite(narrow), rule, field, eps,
                 "be finite and positive as a float");
}

//! Refuses hyper-parameters that cannot work, before the first step: calls `rule.check()`, which
//! throws OptionError, where the rule has one.
void check_options(const auto& rule) {
  if constexpr (requires { rule.check(); }) rule.check();
}

}  // namespace mend
