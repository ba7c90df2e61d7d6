#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "mend/core/error.hpp"

namespace mend {

//! Throws OptionError "what = value must ...".
[[noreturn]] inline void refuse_value(std::string_view what, double value, std::string_view must) {
  char number[32];
  std::snprintf(number, sizeof number, "%g", value);
  throw OptionError{std::string{what} + " = " + number + " must " + std::string{must}};
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

//! Refuses hyper-parameters that cannot work, before the first step: calls `rule.check()`, which
//! throws OptionError, where the rule has one.
void check_options(const auto& rule) {
  if constexpr (requires { rule.check(); }) rule.check();
}

}  // namespace mend
