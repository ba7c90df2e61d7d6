#pragma once

#include <cstdint>

#include "mend/kernel/host/scalar.hpp"

namespace mend {

//! 1 - beta^t, the sum of the weights of a moving average that started at zero. By repeated
//! squaring, every product rounded: std::pow differs between C libraries. t >= 1.
[[nodiscard]] inline double bias_correction(double beta, std::int64_t t) {
  double power = 1;
  for (; t > 0; t >>= 1) {
    if (t & 1) power = kernel::ScalarSet::mul(power, beta);
    beta = kernel::ScalarSet::mul(beta, beta);
  }
  return 1 - power;
}

}  // namespace mend
