#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace mend {

//! One thread that runs jobs in order beside the trainer's; begins with the first job, ends with
//! the object. Jobs must not throw.
class HelperThread {
 public:
  HelperThread() = default;
  HelperThread(const HelperThread&) = delete;
  HelperThread& operator=(const HelperThread&) = delete;
  ~HelperThread() {
    {
      std::lock_guard lock{mutex_};
      ending_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  void run(std::function<void()> job) {
    if (!thread_.joinable()) thread_ = std::thread{[this] { work(); }};
    {
      std::lock_guard lock{mutex_};
      jobs_.push_back(std::move(job));
    }
    changed_.notify_all();
  }
  [[nodiscard]] bool idle() {
    std::lock_guard lock{mutex_};
    return jobs_.empty() && !busy_;
  }
  //! Blocks until all jobs are done.
  void wait() {
    std::unique_lock lock{mutex_};
    changed_.wait(lock, [this] { return jobs_.empty() && !busy_; });
  }

 private:
  void work() {
    std::unique_lock lock{mutex_};
    for (;;) {
      changed_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      busy_ = true;
      lock.unlock();
      job();
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  std::thread thread_;
  bool busy_ = false, ending_ = false;
};

}  // namespace mend
