#pragma once

#include <cstdint>

#include "mend/core/step.hpp"
#include "mend/kernel/host/scalar.hpp"
#include "mend/optim/check_options.hpp"

namespace mend {

//! A learning rate that follows half a wave of a cosine from one value to another: last + (lr -
//! last) (1 + cos(pi applied / steps)) / 2, and stays there (Loshchilov and Hutter, 2017, without
//! restarts). `.lr = mend::CosineDecay{.lr = 1e-3, .steps = 10000}`.
//! std::cos differs between C libraries. The cosine here is a polynomial of its own, every
//! operation rounded by itself, right to within 3e-16: the same bits on every machine.
struct CosineDecay {
  double lr = 1e-3;
  std::int64_t steps = 1;
  double last = 0;

  //! Throws OptionError for what cannot work.
  void check() const {
    require_factor(lr, "CosineDecay", "lr");
    require_factor(last, "CosineDecay", "last");
    require_option(steps > 0, "CosineDecay", "steps", static_cast<double>(steps), "be positive");
  }
  //! Options must have passed check(), as a LearningRate makes them.
  [[nodiscard]] double operator()(Step applied) const {
    if (applied.value() >= steps) return last;
    const double done = static_cast<double>(applied.value()) / static_cast<double>(steps);
    // (1 + cos(2 a)) / 2 is the square of cos(a), a = done pi / 2; beyond pi / 4 of a sine.
    const double root = done <= 0.5 ? cosine(mul(done, half_pi)) : sine(mul(1 - done, half_pi));
    return last + mul(lr - last, mul(root, root));
  }

 private:
  static constexpr double half_pi = 1.5707963267948966;

  static double mul(double a, double b) { return kernel::ScalarSet::mul(a, b); }
  // Taylor's series, from the last term to the first, for |x| <= pi / 4.
  static double cosine(double x) {
    const double square = mul(x, x);
    double sum = 1;
    for (int k = 18; k > 0; k -= 2) sum = 1 - mul(square / (k * (k - 1)), sum);
    return sum;
  }
  static double sine(double x) {
    const double square = mul(x, x);
    double sum = 1;
    for (int k = 18; k > 0; k -= 2) sum = 1 - mul(square / (k * (k + 1)), sum);
    return mul(x, sum);
  }
};

}  // namespace mend
