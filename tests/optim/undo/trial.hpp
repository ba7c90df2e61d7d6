#pragma once

#include <doctest/doctest.h>

#include <mend/core/step.hpp>
#include <mend/kernel/host/apply.hpp>
#include <mend/kernel/host/norms.hpp>
#include <mend/optim/norm_rule.hpp>
#include <mend/optim/undo/record.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "kernel/numbers.hpp"

namespace test {

//! Three tensors that a rule trains, with an undo policy at hand: every exact policy restores the
//! very bits, whatever the values, the step and the tensors already updated.
template <class Policy, mend::Rule R, class T = float>
class UndoTrial {
 public:
  explicit UndoTrial(R rule) : rule_{std::move(rule)} {
    std::array<mend::UndoTensor, count> what;
    for (std::size_t i = 0; i < count; ++i) {
      what[i] = {sizes[i], sizeof(T) == 8 ? mend::DType::f64 : mend::DType::f32, i == 0};
      for (Array& a : tensors_[i].arrays) a.resize(sizes[i]);
      tensors_[i].current = tensors_[i].slots();
      for (T& p : tensors_[i].arrays[0]) p = noise() / 50;
      tensors_[i].gradient.resize(sizes[i]);
    }
    record_.reserve(what);
  }
  UndoTrial(const UndoTrial&) = delete;
  UndoTrial& operator=(const UndoTrial&) = delete;

  //! The law, at steps 1, 2, 10 and 1000.
  void restores_after_any_prefix() {
    for (int t : {1, 2, 10, 1000}) {
      CAPTURE(t);
      train_to(t);
      for (bool special : {false, true}) {
        if (special) put_special_values();
        for (std::size_t prefix = 0; prefix <= count; ++prefix) {
          draw_gradients(special);
          const State before = state(), after = updated(prefix);
          for (std::size_t i = 0; i < prefix; ++i) update(i);
          CHECK(same(state(), after));  // the policy's update is the plain one
          for (std::size_t i = 0; i < count; ++i) take_back((i + t) % count);
          CHECK(same(state(), before));
          record_.drop();
        }
      }
    }
  }
  //! How many arrays differ in bits after so many cycles of undo and redo with other gradients.
  int changed_after_cycles(int cycles) {
    train_to(11);
    const State before = state();
    for (int i = 0; i < cycles; ++i) {
      draw_gradients(false);
      for (std::size_t k = 0; k < count; ++k) update(k);
      for (std::size_t k = 0; k < count; ++k) take_back(k);
      record_.drop();
    }
    const State after = state();
    int changed = 0;
    for (std::size_t k = 0; k < after.size(); ++k) changed += !same_bits(before[k], after[k]);
    return changed;
  }

 private:
  static constexpr std::size_t count = 3, slot_count = R::slots.size();
  static constexpr std::size_t sizes[count] = {700, 3, mend::undo_chunk + 85};
  using Array = std::vector<T>;
  using State = std::vector<Array>;
  using Slots = std::array<std::byte*, slot_count>;

  struct Tensor {
    std::array<Array, 1 + slot_count> arrays;
    Array gradient;
    Slots current{};  // a policy may exchange them
    bool exchanged = false;

    Slots slots() {
      Slots s{};
      for (std::size_t k = 0; k < slot_count; ++k)
        s[k] = reinterpret_cast<std::byte*>(arrays[k + 1].data());
      return s;
    }
  };

  std::array<T*, slot_count> slots_of(std::size_t i) {
    std::array<T*, slot_count> s{};
    for (std::size_t k = 0; k < slot_count; ++k)
      s[k] = reinterpret_cast<T*>(tensors_[i].current[k]);
    return s;
  }
  typename R::Coefficients coefficients(std::size_t i) {
    auto c = rule_.at(mend::Step{t_ - 1});
    if constexpr (mend::NormRule<R>) {
      std::array<const T*, slot_count> slots{};
      for (std::size_t k = 0; k < slot_count; ++k) slots[k] = slots_of(i)[k];
      c = R::with_norms(c, mend::kernel::norms<R>(c, tensors_[i].arrays[0].data(), slots,
                                                  tensors_[i].gradient.data(), sizes[i]));
    }
    return c;
  }
  mend::UpdateRange<R, T> range(std::size_t i) {
    return {coefficients_[i], tensors_[i].arrays[0].data(),
            slots_of(i),      tensors_[i].gradient.data(),
            sizes[i],         T(0.75)};
  }
  void update(std::size_t i) {
    coefficients_[i] = coefficients(i);
    for_parts(i, [&](std::size_t first, const auto& part) { record_.apply(i, first, part); });
    exchange(i, true);
  }
  void take_back(std::size_t i) {
    exchange(i, false);
    for_parts(i, [&](std::size_t first, const auto& part) { record_.revert(i, first, part); });
  }
  //! The second part of a tensor first, in update and undo alike.
  template <class Body>
  void for_parts(std::size_t i, const Body& body) {
    const auto all = range(i);
    const std::size_t half = std::min(sizes[i], mend::undo_chunk);
    if (half < sizes[i]) body(half, all.part(half, sizes[i] - half));
    body(0, all.part(0, half));
  }
  void exchange(std::size_t i, bool applied) {
    if constexpr (requires { record_.exchange(i, tensors_[i].current); }) {
      if (std::exchange(tensors_[i].exchanged, applied) != applied)
        record_.exchange(i, tensors_[i].current);
    }
  }
  State state() {
    State all;
    for (std::size_t i = 0; i < count; ++i) {
      all.push_back(tensors_[i].arrays[0]);
      for (T* slot : slots_of(i)) all.emplace_back(slot, slot + sizes[i]);
    }
    return all;
  }
  //! What the plain update makes of the first tensors.
  State updated(std::size_t prefix) {
    State all = state();
    for (std::size_t i = 0; i < prefix; ++i) apply(i, all);
    return all;
  }
  void apply(std::size_t i, State& all) {
    std::array<T*, slot_count> slots{};
    for (std::size_t k = 0; k < slot_count; ++k)
      slots[k] = all[i * (1 + slot_count) + 1 + k].data();
    mend::kernel::apply<R>(coefficients(i), all[i * (1 + slot_count)].data(), slots,
                           tensors_[i].gradient.data(), sizes[i], T(0.75));
  }
  void train_to(int t) {
    for (; t_ < t; ++t_) {
      if (t_ < 20 || t_ % 20 == 0) draw_gradients(false);  // the drawing takes longest
      State all = updated(count);
      put(all);
    }
  }
  void put(const State& all) {
    std::size_t k = 0;
    for (std::size_t i = 0; i < count; ++i) {
      tensors_[i].arrays[0] = all[k++];
      for (T* slot : slots_of(i)) {
        std::memcpy(slot, all[k].data(), sizes[i] * sizeof(T));
        ++k;
      }
    }
  }
  void draw_gradients(bool special) {
    using Limits = std::numeric_limits<T>;
    static constexpr T values[] = {T(0),
                                   T(-0.0),
                                   Limits::denorm_min(),
                                   -Limits::min() / 4,
                                   T(1e-19),
                                   T(1e10),
                                   T(-1e19),
                                   T(3e38),
                                   Limits::max(),
                                   Limits::infinity(),
                                   -Limits::infinity(),
                                   Limits::quiet_NaN()};
    for (Tensor& t : tensors_)
      for (std::size_t i = 0; i < t.gradient.size(); ++i) {
        const T scale = std::exp(noise() * 4) / 1000;  // many sizes
        t.gradient[i] = i % 19 == 3 ? T(0) : noise() * scale;
        if (special && draw() % 5 == 0) t.gradient[i] = values[draw() % std::size(values)];
      }
  }
  //! What training rarely makes: zeros of both signs, denormals, huge values, infinities and NaNs.
  void put_special_values() {
    using Limits = std::numeric_limits<T>;
    static constexpr T values[] = {T(-0.0), T(0),  Limits::denorm_min(), -Limits::min() / 2,
                                   T(3e38), T(-1), -Limits::infinity(),  Limits::quiet_NaN()};
    State all = state();
    for (Array& a : all)
      for (T& x : a)
        if (draw() % 9 == 0) x = values[draw() % std::size(values)];
    put(all);
  }
  static bool same(const State& a, const State& b) {
    for (std::size_t k = 0; k < a.size(); ++k)
      if (!same_bits(a[k], b[k])) return false;
    return true;
  }

  std::uint64_t draw() {  // splitmix64
    std::uint64_t z = seed_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
  //! Symmetric, near to normal.
  T noise() {
    T sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<T>(draw() >> 40) / T(1 << 24);
    return sum - 2;
  }

  R rule_;
  typename Policy::template Record<R> record_;
  std::array<Tensor, count> tensors_;
  std::array<typename R::Coefficients, count> coefficients_{};
  int t_ = 1;
  std::uint64_t seed_ = 7;
};

}  // namespace test
