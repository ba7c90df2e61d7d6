#pragma once

// Runs a rule over n parameters for some steps, and the same update by a plain function of doubles.

#include <mend/kernel/host/apply.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <vector>

#include "kernel/numbers.hpp"

namespace test {

//! The largest difference after `steps` updates between the rule's parameters and those of
//! reference(p, slots, g, t) in double, relative to the distance travelled.
template <class T, class R, class Reference>
double worst_error(const R& rule, int steps, const Reference& reference) {
  constexpr std::size_t n = 1000, slot_count = R::slots.size();
  std::vector<T> p(n), s[slot_count + 1];
  std::array<T*, slot_count> slots;
  for (std::size_t k = 0; k != slot_count; ++k) {
    s[k].resize(n);
    slots[k] = s[k].data();
  }
  std::vector<double> q(n);
  std::vector<std::array<double, slot_count + 1>> memory(n);
  for (std::size_t i = 0; i < n; ++i) q[i] = p[i] = number<T>(i, 4);
  const auto start = q;
  for (int t = 0; t < steps; ++t) {
    std::vector<T> g(n);
    for (std::size_t i = 0; i < n; ++i) g[i] = number<T>(static_cast<std::uint64_t>(t) * n + i, 6);
    mend::kernel::apply<R>(rule.at(t), p.data(), slots, g.data(), n);
    for (std::size_t i = 0; i < n; ++i)
      reference(q[i], memory[i], static_cast<double>(g[i]), t + 1);
  }
  double worst = 0;
  for (std::size_t i = 0; i < n; ++i)
    worst = std::max(worst, std::abs(static_cast<double>(p[i]) - q[i]) /
                                (std::abs(q[i] - start[i]) + std::abs(start[i])));
  return worst;
}

//! Whether a first step on parameters of zero is undone to the bit, for gradients of many sizes.
template <class R>
bool first_step_reverts(const R& rule) {
  constexpr std::size_t n = 1000, arrays = 1 + R::slots.size();
  std::vector<float> s[arrays], g(n);
  std::array<float*, arrays> all;
  for (std::size_t k = 0; k < arrays; ++k) {
    s[k].resize(n);
    all[k] = s[k].data();
  }
  std::array<float*, arrays - 1> slots;
  std::copy(all.begin() + 1, all.end(), slots.begin());
  for (std::size_t i = 0; i < n; ++i) g[i] = number<float>(i, 20);
  const auto c = rule.at(0);
  mend::kernel::apply<R>(c, all[0], slots, g.data(), n);
  if (same_bits(s[0], std::vector<float>(n))) return false;  // nothing to undo
  mend::kernel::revert<R>(c, all[0], slots, g.data(), n);
  return std::all_of(std::begin(s), std::end(s),
                     [](const auto& a) { return same_bits(a, std::vector<float>(n)); });
}

}  // namespace test
