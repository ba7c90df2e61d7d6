#pragma once

#include <chrono>
#include <concepts>
#include <ctime>

#include "mend/config.hpp"

namespace mend {

//! Time on some clock, in nanoseconds since that clock's own zero. Compare within one clock only.
using Time = std::chrono::nanoseconds;
//! The moment at which a wait gives up.
using Deadline = Time;

inline constexpr Deadline never = Time::max();

//! Seam. Law: now() never goes back. Everything that waits asks a Clock, so that a whole cluster
//! can run in virtual time.
template <class C>
concept Clock = requires(const C& clock) {
  { clock.now() } -> std::same_as<Time>;
};

//! The machine's clock. Counts suspended time too (CLOCK_BOOTTIME), as a lease must.
struct SystemClock {
  [[nodiscard]] Time now() const {
    timespec t{};
    clock_gettime(CLOCK_BOOTTIME, &t);
    return std::chrono::seconds{t.tv_sec} + std::chrono::nanoseconds{t.tv_nsec};
  }
};
static_assert(Clock<SystemClock>);

//! `span` from `now`, without overflow.
[[nodiscard]] constexpr Deadline after(Time now, Time span) {
  return span >= never - now ? never : now + span;
}

}  // namespace mend
