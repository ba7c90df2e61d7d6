#include <mend/optim/bias_correction.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>

TEST_CASE("1 - beta^t") {
  CHECK(mend::bias_correction(0.9, 1) == 1 - 0.9);
  CHECK(mend::bias_correction(0, 1) == 1);
  CHECK(mend::bias_correction(0, 100) == 1);
  CHECK(mend::bias_correction(0.5, 3) == 0.875);
  for (double beta : {0.1, 0.9, 0.999, 0.99999})
    for (std::int64_t t : {1, 2, 3, 10, 1000, 65537, 1000000}) {
      // A power by repeated squaring is off by up to t roundings.
      const long double power =
          std::pow(static_cast<long double>(beta), static_cast<long double>(t));
      const auto error = static_cast<double>(mend::bias_correction(beta, t) - (1 - power));
      CHECK(std::fabs(error) <= 2e-16 * (1 + static_cast<double>(t) * static_cast<double>(power)));
    }
  CHECK(mend::bias_correction(0.999, std::numeric_limits<std::int64_t>::max()) == 1);
}
