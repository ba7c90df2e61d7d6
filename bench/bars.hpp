#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <vector>

//! What every benchmark here needs: time, medians, and the one line that others read.
namespace bench {

inline double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  std::size_t n = values.size();
  return n % 2 != 0 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

//! `bar <name> <value> <limit> ok|short`. at_least: larger is better.
inline void bar(std::string_view name, double value, double limit, bool at_least) {
  bool ok = at_least ? value >= limit : value <= limit;
  fmt::print("bar {} {:.4g} {:.4g} {}\n", name, value, limit, ok ? "ok" : "short");
}

}  // namespace bench
