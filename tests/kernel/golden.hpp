#pragma once

// What same_bits.txt holds a line of for every rule and element type, wherever the arithmetic runs:
// hashes over 1000 steps whose gradients hold every kind of special value.

#include <mend/core/dtype.hpp>
#include <mend/core/step.hpp>
#include <mend/optim/adagrad.hpp>
#include <mend/optim/adam.hpp>
#include <mend/optim/adamw.hpp>
#include <mend/optim/amsgrad.hpp>
#include <mend/optim/lamb.hpp>
#include <mend/optim/lars.hpp>
#include <mend/optim/lion.hpp>
#include <mend/optim/momentum.hpp>
#include <mend/optim/nadam.hpp>
#include <mend/optim/norm_rule.hpp>
#include <mend/optim/rmsprop.hpp>
#include <mend/optim/rule.hpp>
#include <mend/optim/sgd.hpp>

#include <array>
#include <bit>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace golden {

inline std::uint64_t mix(std::uint64_t z) {
  z += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

template <class T>
std::uint64_t hash(std::uint64_t h, const std::vector<T>& values) {
  for (const T& x : values) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &x, sizeof x);
    h = mix(h ^ bits);
  }
  return h;
}

// A value of either sign with an exponent within `range` of 2^0; by integers alone.
template <class T>
T number(std::uint64_t seed, int range) {
  const std::uint64_t r = mix(seed);
  const int exponent = static_cast<int>(r % static_cast<unsigned>(2 * range)) - range;
  if constexpr (sizeof(T) == 4)
    return std::bit_cast<float>(
        static_cast<std::uint32_t>((127 + exponent) << 23 | (r >> 32 & 0x807fffff)));
  else
    return std::bit_cast<double>(static_cast<std::uint64_t>(1023 + exponent) << 52 |
                                 (mix(r) & 0x800fffffffffffff));
}

constexpr std::size_t n = 259;  // whole registers of every width, and a rest
constexpr std::int64_t steps = 1000;

template <class T>
std::vector<T> gradient(std::uint64_t step, bool tame) {
  using Limits = std::numeric_limits<T>;
  const T special[] = {T(0),
                       -T(0),
                       Limits::denorm_min(),
                       -Limits::denorm_min(),
                       Limits::min() / 2,
                       -Limits::min(),
                       T(1e-30),
                       T(-1e-19),
                       T(1e10),
                       T(-1e18),
                       Limits::max(),
                       -Limits::max(),
                       Limits::infinity(),
                       -Limits::infinity(),
                       Limits::quiet_NaN(),
                       -Limits::quiet_NaN()};
  std::vector<T> g(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t r = mix(step << 32 | i);
    // Huge ones only in the second half, infinities and NaNs in the last eighth: what they leave
    // in a state stays there.
    const std::size_t kinds = tame || i < n / 2 ? 8 : i < n - n / 8 ? 12 : 16;
    g[i] = r % 4 != 0 ? number<T>(r, 14) : special[(r >> 8) % kinds];
  }
  return g;
}

// A rule as a user writes it, with products that a compiler would like to fuse.
struct Own {
  double lr = 0.01;
  static constexpr std::array<std::string_view, 1> slots{"m"};
  struct Coefficients {
    double lr, beta;
  };
  Coefficients at(mend::Step) const { return {lr, 0.875}; }
  template <class Real>
  MEND_RULE static void apply(Real& p, mend::Slots<Real, 1>& s, Real g, const auto& c) {
    s[0] = s[0] * c.beta + g * (1 - c.beta);
    p = p - s[0] * c.lr;
  }
  template <class Real>
  MEND_RULE static void revert(Real& p, mend::Slots<Real, 1>& s, Real g, const auto& c) {
    p = p + s[0] * c.lr;
    s[0] = (s[0] - g * (1 - c.beta)) / c.beta;
  }
};

// A rule's arrays: the parameters, then the slots.
template <class T, class R>
struct State {
  static constexpr std::size_t slot_count = R::slots.size();
  std::array<std::vector<T>, 1 + slot_count> arrays;

  std::array<T*, slot_count> slots() {
    std::array<T*, slot_count> all;
    for (std::size_t k = 0; k != slot_count; ++k) all[k] = arrays[k + 1].data();
    return all;
  }
  [[nodiscard]] std::uint64_t hashed(std::uint64_t h) const {
    for (const auto& array : arrays) h = hash(h, array);
    return h;
  }
  [[nodiscard]] bool same(const State& other) const {
    for (std::size_t k = 0; k < arrays.size(); ++k)
      if (std::memcmp(arrays[k].data(), other.arrays[k].data(), n * sizeof(T)) != 0) return false;
    return true;
  }
};

// The line of a rule, run by a backend:
//   apply(c, state, g, scale), revert(c, state, g, scale)
//   norms(c, state, g, scale)
//   undo(c, state, applied, g, scale)    applies with an exact record, and takes that back; false
//                               where the update gave another result than `applied`
//   narrow(type, floats)        as bf16 or f16
// An exact undo that does not restore the bits makes the line say so.
template <class T, class R, class Backend>
std::string line(const char* name, const R& rule, Backend&& backend) {
  // A norm spreads what is not finite over the whole tensor: at the end only.
  static const std::vector<std::vector<T>> gradients = [] {
    std::vector<std::vector<T>> all;
    for (std::uint64_t step = 0; step < steps; ++step)
      all.push_back(gradient<T>(step, mend::NormRule<R> && step < 900));
    return all;
  }();
  State<T, R> now;
  now.arrays.fill(std::vector<T>(n));
  for (std::size_t i = 0; i < n; ++i) now.arrays[0][i] = i % 97 == 0 ? -T(0) : number<T>(~i, 8);

  std::uint64_t applied = 0, reverted = 0, undone = 0, norms = 0, copies = 0;
  for (std::int64_t step = 0; step < steps; ++step) {
    const std::vector<T>& g = gradients[static_cast<std::size_t>(step)];
    const T scale = step % 3 == 0 ? T(0.37) : T(1);
    auto c = rule.at(mend::Step{step});
    const State<T, R> before = now;
    if constexpr (mend::NormRule<R>) {
      const std::array<double, R::norms> of = backend.norms(c, now, g, scale);
      norms = hash(norms, std::vector<double>(of.begin(), of.end()));
      c = R::with_norms(c, of);
    }
    backend.apply(c, now, g, scale);
    applied = now.hashed(applied);
    if constexpr (mend::InvertibleOptimizer<R>) {
      State<T, R> back = now;
      backend.revert(c, back, g, scale);
      reverted = back.hashed(reverted);
      bool fits = true;
      if constexpr (requires { R::bounded(c); }) fits = R::bounded(c);
      if (fits) {
        back = before;
        const bool same = backend.undo(c, back, now, g, scale);
        undone = back.hashed(undone);
        if (!same || !back.same(before))
          return std::string{name} + ": the exact undo differs at step " + std::to_string(step);
      }
    }
    if constexpr (sizeof(T) == 4)
      for (mend::DType type : {mend::DType::bf16, mend::DType::f16})
        copies = hash(copies, backend.narrow(type, now.arrays[0]));
  }
  char text[200];
  std::snprintf(text, sizeof text, "%-12s f%zu apply %016" PRIx64, name, 8 * sizeof(T), applied);
  std::string all = text;
  auto print = [&](const char* what, std::uint64_t h) {
    if (h == 0) return;
    std::snprintf(text, sizeof text, " %s %016" PRIx64, what, h);
    all += text;
  };
  print("revert", reverted);
  print("undo", undone);
  print("norms", norms);
  print("copies", copies);
  return all;
}

// Calls body(name, rule) for every rule, some with other options too.
template <class Body>
void each_rule(const Body& body) {
  body("own", Own{});
  body("sgd", mend::Sgd{.lr = 0.1});
  body("sgd_wd", mend::Sgd{.lr = 0.1, .weight_decay = 0.01});
  body("momentum", mend::Momentum{.lr = 0.01});
  body("nesterov_wd", mend::Momentum{.lr = 0.01, .nesterov = true, .weight_decay = 0.01});
  body("adam", mend::Adam{.lr = [](mend::Step s) { return 0.01 / double(1 + s.value()); }});
  body("adam_wd", mend::Adam{.lr = 0.01, .weight_decay = 0.01});
  body("adamw", mend::AdamW{.lr = 0.01});
  body("amsgrad", mend::AmsGrad{.lr = 0.01});
  body("nadam", mend::NAdam{.lr = 0.01, .weight_decay = 0.01});
  body("adagrad", mend::Adagrad{.lr = 0.1, .weight_decay = 0.01});
  body("rmsprop", mend::RmsProp{.lr = 0.01, .weight_decay = 0.01});
  body("lion", mend::Lion{.lr = 0.01, .weight_decay = 0.01});
  body("lamb", mend::Lamb{.lr = 0.01});
  body("lars", mend::Lars{.lr = 0.1, .weight_decay = 0.01});
}

}  // namespace golden
