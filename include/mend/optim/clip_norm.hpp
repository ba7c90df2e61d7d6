#pragma once

#include <cmath>

#include "mend/core/policy.hpp"
#include "mend/optim/check_options.hpp"

namespace mend {

//! Policy: when the norm of all reduced gradients together exceeds max_norm, the update sees them
//! scaled down to it. The gradients themselves are not written.
struct ClipNorm {
  using kind = mend::kind::clip;

  float max_norm = 1;

  //! min(1, max_norm / norm), rounded once. A norm that is not finite is the caller's case: that
  //! step is skipped.
  [[nodiscard]] float clip_factor(double norm) const {
    const auto most = static_cast<double>(max_norm);
    return norm > most ? static_cast<float>(most / norm) : 1.0f;
  }
  void check() const {
    require_option(max_norm > 0 && std::isfinite(max_norm), "ClipNorm", "max_norm",
                   static_cast<double>(max_norm), "be finite and positive");
  }
};
static_assert(Is<ClipNorm, kind::clip>);

}  // namespace mend
