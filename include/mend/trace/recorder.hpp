#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mend/core/byte_count.hpp"
#include "mend/trace/event.hpp"

namespace mend::trace {

//! Keeps the latest events within a byte budget, and counts. Any thread may record and read.
//! Times come with the events, so that virtual time works. Never blocks on more than a short lock;
//! disabled, recording costs one load of an atomic.
class Recorder {
 public:
  explicit Recorder(ByteCount budget = ByteCount{std::uint64_t{4} << 20}, bool enabled = true)
      : budget_{budget.value()}, enabled_{enabled} {}
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  void enable(bool on) { enabled_.store(on, std::memory_order_relaxed); }
  //! Ask before composing an event that takes work.
  [[nodiscard]] bool enabled() const { return enabled_.load(std::memory_order_relaxed); }

  //! The oldest events make room; one larger than the whole budget is dropped itself.
  void record(Event event) {
    if (!enabled()) return;
    std::uint64_t size = size_of(event);
    std::lock_guard lock{mutex_};
    if (!make_room(size)) return;
    events_.push_back(std::move(event));
    events_size_ += size;
  }

  //! Adds to a counter, which begins at 0. Names share the budget; a name that no longer fits is
  //! not counted, but dropped.
  void count(std::string_view name, std::int64_t by = 1) {
    if (!enabled()) return;
    std::lock_guard lock{mutex_};
    auto it = counters_.find(name);
    if (it == counters_.end()) {
      std::uint64_t size = sizeof(decltype(counters_)::value_type) + node_overhead + name.size();
      if (!make_room(size)) return;
      counters_size_ += size;
      it = counters_.emplace(name, 0).first;
    }
    it->second += by;
  }

  //! Oldest first.
  [[nodiscard]] std::vector<Event> events() const {
    std::lock_guard lock{mutex_};
    return {events_.begin(), events_.end()};
  }
  [[nodiscard]] std::int64_t counter(std::string_view name) const {
    std::lock_guard lock{mutex_};
    auto it = counters_.find(name);
    return it == counters_.end() ? 0 : it->second;
  }
  [[nodiscard]] std::map<std::string, std::int64_t, std::less<>> counters() const {
    std::lock_guard lock{mutex_};
    return counters_;
  }
  //! Events and counters that the budget had no room for.
  [[nodiscard]] std::uint64_t dropped() const {
    std::lock_guard lock{mutex_};
    return dropped_;
  }
  //! Memory in use; never above the budget.
  [[nodiscard]] ByteCount used() const {
    std::lock_guard lock{mutex_};
    return ByteCount{counters_size_ + events_size_};
  }

 private:
  static constexpr std::uint64_t node_overhead = 48;  // links and colour of a tree node

  static std::uint64_t size_of(const Event& event) {
    return sizeof(Event) + event.name.capacity() + event.text.capacity();
  }
  //! Drops old events until `size` bytes are free. False, and one drop counted, where even all of
  //! them would not make enough room.
  bool make_room(std::uint64_t size) {
    if (counters_size_ + size > budget_) {
      ++dropped_;
      return false;
    }
    while (counters_size_ + events_size_ + size > budget_) {
      events_size_ -= size_of(events_.front());
      events_.pop_front();
      ++dropped_;
    }
    return true;
  }

  const std::uint64_t budget_;
  std::atomic<bool> enabled_;
  mutable std::mutex mutex_;
  std::deque<Event> events_;
  std::map<std::string, std::int64_t, std::less<>> counters_;
  std::uint64_t events_size_ = 0, counters_size_ = 0;
  std::uint64_t dropped_ = 0;
};

}  // namespace mend::trace
