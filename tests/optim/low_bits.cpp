#include <mend/optim/low_bits.hpp>

#include <doctest/doctest.h>

#include <mend/optim/momentum.hpp>
#include <mend/optim/sgd.hpp>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

using Record = mend::LowBits<mend::Sgd, float>;  // two bits of one array
using Real = mend::kernel::Scalar<float>;

namespace {

float moved(float x, int units) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) + static_cast<std::uint32_t>(units));
}
float value(const Real& x) {
  float out;
  x.store(&out);
  return out;
}
//! What a record of `old` makes of an estimate, where the guard holds.
float recalled(float old, float estimate) {
  Record record;
  record.old = {old};
  record.keep(0, Real{old}, Real{old});
  Real x{old};
  record.recall(0, x, Real{old}, Real{estimate});
  return value(x);
}

}  // namespace

TEST_CASE("two bits restore an old value from two units below to one above the estimate") {
  for (float old : {3.0f, -3.0f, 1.0f, 1e-44f, std::numeric_limits<float>::max()})
    for (int units = -5; units <= 5; ++units) {
      const float estimate = moved(old, -units);
      CHECK((recalled(old, estimate) == old) == (units >= -2 && units <= 1));
    }
}

TEST_CASE("the guard: the new value's power of two against twice the remainder") {
  const float inf = HUGE_VALF, nan = std::nanf("");
  const auto whole = [](float now, float remainder) {
    Record record;
    record.keep(0, Real{now}, Real{remainder});
    return record.whole[0];
  };
  CHECK(!whole(1.99f, 0.5f));
  CHECK(whole(2.0f, 0.999f));
  CHECK(whole(-2.0f, 0.999f));
  CHECK(!whole(-2.0f, -1.0f));
  CHECK(!whole(1e-40f, 0.0f));
  CHECK(whole(inf, 1.0f));
  CHECK(whole(inf, inf));
  CHECK(whole(nan, 1.0f));
  CHECK(whole(1.0f, nan));
  Record record;
  ++record.guard[0];
  record.keep(0, Real{2.0f}, Real{0.5f});
  CHECK(!record.whole[0]);
}

TEST_CASE("outside the guard an old value is kept whole, and with a negative zero all are") {
  Record record;
  record.old = {7};
  record.keep(0, Real{100}, Real{1});
  Real x{100};
  record.recall(0, x, Real{1}, Real{1});
  CHECK(value(x) == 7);
  CHECK(record.restored({7})[0] == 7);
  CHECK(record.sound);

  mend::LowBits<mend::Momentum, float> two;
  two.old = {5, -0.0f};
  for (std::size_t k = 0; k < 2; ++k) two.keep(k, Real{1}, Real{1});
  for (std::size_t k = 0; k < 2; ++k) two.recall(k, x, Real{1}, Real{1});
  const auto back = two.restored({1, 1});
  CHECK(back[0] == 5);
  CHECK(std::signbit(back[1]));
}

TEST_CASE("a rule that tells a record two things is found") {
  Real x{1};
  mend::LowBits<mend::Momentum, float> other_order, other_remainder, one_missing;
  for (auto* record : {&other_order, &other_remainder, &one_missing}) record->old = {1, 1};
  other_order.keep(0, x, x);
  other_order.keep(1, x, x);
  other_order.recall(1, x, x, x);
  CHECK(!other_order.sound);
  other_remainder.keep(0, Real{1}, Real{1});
  other_remainder.recall(0, x, Real{0.25f}, Real{1});
  CHECK(!other_remainder.sound);
  one_missing.keep(0, Real{1}, Real{1});
  (void)one_missing.restored({1, 1});
  CHECK(!one_missing.sound);
}
