#pragma once

#include <mend/core/clock.hpp>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>

//! What tests of processes and sockets ask the system.
namespace mend_test {

inline std::size_t entries(const char* folder) {
  std::filesystem::directory_iterator all{folder};
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}
inline std::size_t open_descriptors() { return entries("/proc/self/fd"); }
inline std::size_t running_threads() { return entries("/proc/self/task"); }

//! True as soon as the condition is; false when it was not for the whole time.
template <class Condition>
bool eventually(Condition&& condition, mend::Time within = std::chrono::seconds{10}) {
  mend::SystemClock clock;
  for (mend::Deadline deadline = mend::after(clock.now(), within); clock.now() < deadline;) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds{2});
  }
  return condition();
}

//! A program of tests/<room>/programs.
inline std::string program(const std::string& name) {
  const char* folder = std::getenv("MEND_TEST_PROGRAMS_DIR");
  return std::string{folder != nullptr ? folder : MEND_TEST_PROGRAMS_DIR} + "/" + name;
}

}  // namespace mend_test
