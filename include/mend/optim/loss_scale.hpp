#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "mend/core/policy.hpp"
#include "mend/optim/check_options.hpp"

namespace mend {

//! Policy, for gradients in f16: the trainer multiplies its loss by a float that it has registered,
//! `state.add_scalar("loss_scale", scale)`, and mend divides the gradients by it in the update. A
//! step whose gradients hold an infinity or a NaN commits without an update, on all ranks alike,
//! and the scale shrinks; after `growth_interval` updates in a row it grows. Names and defaults as
//! in torch.amp. A part of the state: restored and stored with it.
struct DynamicLossScale {
  using kind = mend::kind::check;

  std::string scalar = "loss_scale";
  double growth = 2, backoff = 0.5;
  std::int64_t growth_interval = 2000;

  //! The scale of the next step. good: updates in a row since it last changed, this one included;
  //! written.
  [[nodiscard]] float next(float scale, bool skipped, std::int64_t& good) const {
    good = skipped ? 0 : good + 1;
    double to = static_cast<double>(scale);
    if (skipped) to *= backoff;
    if (good >= growth_interval) {  // it may have been lowered
      to *= growth;
      good = 0;
    }
    const auto narrow = static_cast<float>(to);
    return std::isfinite(narrow) && narrow > 0 ? narrow : scale;
  }
  void check() const {
    require_option(growth > 1 && std::isfinite(growth), "DynamicLossScale", "growth", growth,
                   "be finite and above 1");
    require_option(backoff > 0 && backoff < 1, "DynamicLossScale", "backoff", backoff,
                   "lie between 0 and 1");
    require_option(growth_interval > 0, "DynamicLossScale", "growth_interval",
                   static_cast<double>(growth_interval), "be positive");
  }
};
static_assert(Is<DynamicLossScale, kind::check>);

}  // namespace mend
