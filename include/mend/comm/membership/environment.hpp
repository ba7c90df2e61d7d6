#pragma once

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mend/core/clock.hpp"
#include "mend/core/error.hpp"
#include "mend/core/link.hpp"

namespace mend::comm {

//! What a launcher tells a worker through its environment: MEND_LAUNCHER, MEND_RANK, ...
struct WorkerEnvironment {
  std::string launcher{};  //!< host:port
  int rank = 0;
  int size = 1;
  Incarnation incarnation = 1;
  bool replacement = false;
  std::string token{};
  //! Without a sign of life for this long, worker and launcher give each other up.
  Time lease = std::chrono::seconds{5};
  //! Longest silence of a peer, longest lambda.
  Time timeout = std::chrono::seconds{300};

  //! nullopt without MEND_LAUNCHER: this program runs alone. Throws OptionError naming the variable
  //! that is missing or makes no sense.
  static std::optional<WorkerEnvironment> read() {
    const char* launcher = std::getenv("MEND_LAUNCHER");
    if (launcher == nullptr || *launcher == '\0') return {};
    WorkerEnvironment e;
    e.launcher = launcher;
    e.rank = static_cast<int>(number("MEND_RANK", 0, 1 << 20));
    e.size = static_cast<int>(number("MEND_SIZE", e.rank + 1, 1 << 20));
    e.incarnation = static_cast<Incarnation>(number("MEND_INCARNATION", 1, INT64_MAX));
    e.replacement = number("MEND_REPLACEMENT", 0, 1) != 0;
    e.token = text("MEND_TOKEN");
    e.lease = std::chrono::milliseconds{number("MEND_LEASE_MS", 1, std::int64_t{1} << 40)};
    e.timeout = std::chrono::milliseconds{number("MEND_TIMEOUT_MS", 1, std::int64_t{1} << 40)};
    return e;
  }

  //! Names and values for the worker's environment; read() returns the same.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> variables() const {
    auto ms = [](Time t) {
      return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(t).count());
    };
    return {{"MEND_LAUNCHER", launcher},
            {"MEND_RANK", std::to_string(rank)},
            {"MEND_SIZE", std::to_string(size)},
            {"MEND_INCARNATION", std::to_string(incarnation)},
            {"MEND_REPLACEMENT", replacement ? "1" : "0"},
            {"MEND_TOKEN", token},
            {"MEND_LEASE_MS", ms(lease)},
            {"MEND_TIMEOUT_MS", ms(timeout)}};
  }

 private:
  static std::string_view text(const char* name) {
    const char* value = std::getenv(name);
    if (value == nullptr)
      throw OptionError{std::string{"MEND_LAUNCHER is set, but not "} + name +
                        "; start this program with mendrun, or unset MEND_LAUNCHER to run alone"};
    return value;
  }
  static std::int64_t number(const char* name, std::int64_t least, std::int64_t most) {
    std::string_view t = text(name);
    std::int64_t value = 0;
    auto [end, error] = std::from_chars(t.data(), t.data() + t.size(), value);
    if (error != std::errc{} || end != t.data() + t.size() || value < least || value > most)
      throw OptionError{std::string{name} + "=" + std::string{t} + " is not a number from " +
                        std::to_string(least) + " to " + std::to_string(most)};
    return value;
  }
};

}  // namespace mend::comm
