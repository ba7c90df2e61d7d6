#include <mend/core/clock.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <thread>

using mend::Time;
using namespace std::chrono_literals;

namespace {

struct VirtualClock {
  [[nodiscard]] Time now() const { return time; }
  Time time{};
};
struct ChangesItself {  // near miss: reading the time must not need a mutable clock
  Time now() { return {}; }
};
struct InSeconds {  // near miss: another unit
  [[nodiscard]] std::chrono::seconds now() const { return {}; }
};
static_assert(mend::Clock<VirtualClock>);
static_assert(!mend::Clock<ChangesItself>);
static_assert(!mend::Clock<InSeconds>);
static_assert(!mend::Clock<std::chrono::steady_clock>);

static_assert(mend::after(Time{5}, Time{7}) == Time{12});
static_assert(mend::after(Time{5}, mend::never) == mend::never);
static_assert(mend::after(mend::never, Time{1}) == mend::never);
static_assert(mend::after(mend::never - Time{1}, Time{1}) == mend::never);
static_assert(mend::after(Time{0}, mend::never - Time{1}) == mend::never - Time{1});

}  // namespace

TEST_CASE("the system's clock goes on and never back") {
  mend::SystemClock clock;
  Time first = clock.now(), before = first;
  for (int i = 0; i < 10'000; ++i) {
    Time now = clock.now();
    CHECK_MESSAGE(now >= before, i);
    before = now;
  }
  std::this_thread::sleep_for(2ms);
  CHECK(clock.now() - first >= 2ms);
}
