#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "mend/core/error.hpp"

namespace mend::kernel {

//! Threads that share out loops; the calling thread is one of them. They start in the constructor
//! and end in the destructor. Law: which ranges a loop is cut into depends on n and grain alone,
//! never on the number of threads.
class Workers {
 public:
  //! threads: in all, the caller included. Throws OptionError for less than 1, StateError with
  //! errno where the system has no thread left.
  explicit Workers(int threads) {
    if (threads < 1)
      throw OptionError{"Workers: " + std::to_string(threads) + " threads; at least 1 works"};
    try {
      for (int i = 1; i < threads; ++i) threads_.emplace_back([this] { serve(); });
    } catch (const std::system_error& e) {
      stop();
      throw StateError{"Workers: cannot start thread " + std::to_string(threads_.size() + 1),
                       {.code = e.code().value()}};
    }
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  ~Workers() { stop(); }

  [[nodiscard]] int size() const { return static_cast<int>(threads_.size()) + 1; }

  //! Calls body(begin, end) once for each range [k grain, min(n, (k + 1) grain)), on several
  //! threads at a time, and returns when all are done. grain >= 1. Calls from several threads take
  //! turns; a call from inside a body runs its ranges there, one after the other. The exception of
  //! the earliest range that failed reaches the caller; ranges not begun by then are left out.
  template <class Body>
  void parallel_for(std::size_t n, std::size_t grain, Body&& body) {
    Loop loop{n, grain, n / grain + (n % grain != 0),
              [](const void* context, std::size_t begin, std::size_t end) {
                (*static_cast<std::remove_reference_t<Body>*>(const_cast<void*>(context)))(begin,
                                                                                           end);
              },
              std::addressof(body)};
    if (loop.ranges <= 1 || threads_.empty() || inside_ == this)
      loop.work();
    else
      share(loop);
    if (loop.error) std::rethrow_exception(loop.error);
  }

 private:
  struct Loop {
    std::size_t n, grain, ranges;
    void (*call)(const void*, std::size_t, std::size_t);
    const void* context;
    std::atomic<std::size_t> next{0};
    std::mutex mutex{};
    std::size_t failed = 0;
    std::exception_ptr error{};

    void work() {
      for (std::size_t k; (k = next.fetch_add(1)) < ranges;) {
        try {
          call(context, k * grain, std::min(n, (k + 1) * grain));
        } catch (...) {
          next = ranges;
          std::lock_guard lock{mutex};
          if (!error || k < failed) {
            failed = k;
            error = std::current_exception();
          }
        }
      }
    }
  };

  void share(Loop& loop) {
    std::lock_guard turn{turn_};
    const Workers* outer = std::exchange(inside_, this);
    {
      std::lock_guard lock{mutex_};
      loop_ = &loop;
      ++round_;
    }
    begun_.notify_all();
    loop.work();
    inside_ = outer;
    std::unique_lock lock{mutex_};
    loop_ = nullptr;  // a thread that wakes only now finds nothing to do
    ended_.wait(lock, [this] { return busy_ == 0; });
  }

  void serve() {
    inside_ = this;
    std::unique_lock lock{mutex_};
    for (std::uint64_t seen = 0;;) {
      begun_.wait(lock, [&] { return stop_ || round_ != seen; });
      if (stop_) return;
      seen = round_;
      Loop* loop = loop_;
      if (loop == nullptr) continue;
      ++busy_;
      lock.unlock();
      loop->work();
      lock.lock();
      if (--busy_ == 0) ended_.notify_one();
    }
  }

  void stop() {
    {
      std::lock_guard lock{mutex_};
      stop_ = true;
    }
    begun_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  static inline thread_local const Workers* inside_ = nullptr;  // whose body this thread is running

  std::mutex turn_, mutex_;
  std::condition_variable begun_, ended_;
  Loop* loop_ = nullptr;
  std::uint64_t round_ = 0;
  int busy_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace mend::kernel
