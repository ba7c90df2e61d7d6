#pragma once

#include <cmath>
#include <concepts>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "mend/core/step.hpp"
#include "mend/optim/check_options.hpp"

namespace mend {

//! A number, or a function of the number of updates applied so far (a skipped step does not count)
//! that returns one: `.lr = 1e-3f`, `.lr = [](Step s) { return 1e-3 / double(s.value() + 1); }`.
//! The function must give the same answer on every rank and again after a restart. A schedule
//! (optim/schedule/) is such a function; where its options cannot work, making a LearningRate of it
//! throws OptionError.
class LearningRate {
 public:
  template <class N>
    requires std::is_arithmetic_v<N> LearningRate(N value)
        : value_{static_cast<double>(value)} {}  // NOLINT: implicit by design

    template <class F>
      requires(!std::same_as<std::remove_cvref_t<F>, LearningRate> &&
               std::is_arithmetic_v<std::invoke_result_t<std::remove_cvref_t<F>&, Step>>)
    LearningRate(F&& function)  // NOLINT: implicit by design
    {
      check_options(function);
      function_ = [f = std::forward<F>(function)](Step s) mutable {
        return static_cast<double>(f(s));
      };
    }

    //! Throws OptionError where the function returns a negative number or a NaN.
    [[nodiscard]] double operator()(Step applied) const {
      if (!function_) return value_;
      const double value = function_(applied);
      if (!(value >= 0 && std::isfinite(static_cast<float>(value))))
        refuse_value("the learning rate after " + std::to_string(applied.value()) + " updates",
                     value, "be finite as a float and not negative");
      return value;
    }

    //! Throws OptionError, in the name of the rule, for a number that cannot work.
    void check(std::string_view rule) const {
      require_option(value_ >= 0 && std::isfinite(static_cast<float>(value_)), rule, "lr", value_,
                     "be finite as a float and not negative");
    }

   private:
    double value_ = 0;
    std::function<double(Step)> function_;
};

//! What a session reports as the learning rate: the rule's `lr` after that many updates; 0 for a
//! rule without one.
[[nodiscard]] double learning_rate_of(const auto& rule, Step applied) {
  if constexpr (requires { LearningRate{rule.lr}; }) {
    const LearningRate& rate = rule.lr;
    return rate(applied);
  } else {
    return 0;
  }
}

}  // namespace mend
