#include <mend/kernel/host/rounding.hpp>

#include <doctest/doctest.h>

#include <cfenv>
#include <cstdint>
#include <limits>

namespace {

double divided(double a, double b) {  // now: not by the compiler, and not moved
  volatile double x = a, y = b, quotient = x / y;
  return quotient;
}

#if defined(__x86_64__)
std::uint32_t control() {
  std::uint32_t r;
  asm volatile("stmxcsr %0" : "=m"(r));
  return r & ~0x3fu;  // without the flags
}
void set_control(std::uint32_t r) { asm volatile("ldmxcsr %0" : : "m"(r)); }
#endif

}  // namespace

TEST_CASE("arithmetic rounds to nearest inside, and as before outside") {
  const double nearest = divided(1, 3);
  std::fesetround(FE_UPWARD);
  const double upward = divided(1, 3);
  double inside = 0;
  {
    mend::kernel::StandardRounding rounding;
    inside = divided(1, 3);
  }
  const double after = divided(1, 3);
  std::fesetround(FE_TONEAREST);
  CHECK(upward != nearest);
  CHECK(inside == nearest);
  CHECK(after == upward);
}

#if defined(__x86_64__)
TEST_CASE("denormals live inside, although the trainer flushes them") {
  constexpr double smallest = std::numeric_limits<double>::min();
  const std::uint32_t old = control();
  set_control(old | 0x8040);  // flush to zero, denormals are zero
  const double flushed = divided(smallest, 2);
  double inside = 0;
  {
    mend::kernel::StandardRounding outer;
    mend::kernel::StandardRounding inner;
    inside = divided(smallest, 2);
  }
  const std::uint32_t after = control();
  set_control(old);
  CHECK(flushed == 0);
  CHECK(inside == smallest / 2);
  CHECK(after == (old | 0x8040));
}
#endif
