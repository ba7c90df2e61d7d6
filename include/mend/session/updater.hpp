#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mend/core/arena.hpp"
#include "mend/core/train_state.hpp"
#include "mend/kernel/host/apply.hpp"
#include "mend/kernel/host/reduce.hpp"
#include "mend/kernel/host/rounding.hpp"
#include "mend/kernel/host/workers.hpp"
#include "mend/optim/check_options.hpp"
#include "mend/optim/learning_rate.hpp"
#include "mend/optim/rule.hpp"
#include "mend/optim/undo/record.hpp"
#include "mend/session/bucket_plan.hpp"

namespace mend {

//! Runs a rule over buckets: owns the optimizer's slots, knows each tensor's group and
//! coefficients.
template <Rule R>
class Updater {
 public:
  static constexpr std::size_t slot_count = R::slots.size();

  //! Adds the slots to the state. Throws StateError, OptionError.
  Updater(TrainState& state, R rule, int threads)
      : state_{state}, rule_{std::move(rule)}, workers_{threads} {
    check_options(rule_);
    (void)kernel::best_simd();  // a MEND_SIMD that makes no sense is found here
    std::size_t count = state.entries().size();
    std::size_t bytes = 0;
    for (const TrainState::Entry& e : state.entries())
      if (trained(e)) bytes += aligned(e.bytes());
    slots_ = Arena{ByteCount{slot_count * bytes}};
    std::byte* at = slots_.data();
    tensors_.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      if (!trained(state.entries()[i])) continue;
      tensors_[i].group = group_of(state.entries()[i].group);
    }
    for (std::size_t s = 0; s < slot_count; ++s)
      for (std::size_t i = 0; i < count; ++i) {
        if (!trained(state.entries()[i])) continue;
        tensors_[i].slots[s] = at;
        at += aligned(state.entries()[i].bytes());
        TrainState::Entry of = state.entries()[i];  // add_slot may move the entries
        state.add_slot(of, R::slots[s], tensors_[i].slots[s]);
      }
    if constexpr (requires { rule_.names(); })
      for (const std::string& name : rule_.names())
        if (std::ranges::find(groups_, name) == groups_.end())
          throw OptionError{"PerGroup: no tensor was added with group '" + name + "'"};
    if constexpr (!requires { rule_.names(); })
      for (const std::string& name : groups_)
        if (name != Traits{}.group)
          throw OptionError{"the parameter group '" + name +
                            "' has no options of its own: give the "
                            "session a PerGroup, or leave the group out"};
  }

  //! Fixes the coefficients of one update. applied: how many were made before.
  void begin(Step applied) {
    kernel::StandardRounding rounding;  // the coefficients do not depend on the trainer's mode
    coefficients_.clear();
    for (const std::string& group : groups_) {
      if constexpr (requires { rule_.for_group(group); })
        coefficients_.push_back(rule_.for_group(group).at(applied));
      else
        coefficients_.push_back(rule_.at(applied));
    }
  }
  //! Updates a bucket's tensors from their gradients times scale.
  void apply(const BucketPlan::Bucket& bucket, double scale) {
    for (std::size_t index : bucket.entries) {
      const TrainState::Entry& e = state_.entries()[index];
      const Tensor& t = tensors_[index];
      if (e.dtype == DType::f64)
        run<double>(e, t, scale);
      else if (e.gradient_dtype == DType::f32)
        run<float>(e, t, scale);
      else
        run_narrow(e, t, scale);
      refresh(e);
    }
  }
  //! Rounds the low-precision copies of a tensor anew.
  static void refresh(const TrainState::Entry& e) {
    for (const TrainState::Copy& c : e.copies)
      kernel::from_float(c.dtype, reinterpret_cast<const float*>(e.value), c.data, e.count);
  }
  //! Everything that apply changes in a bucket, for undo policies.
  [[nodiscard]] std::vector<StateSpan> touched(const BucketPlan::Bucket& bucket) const {
    std::vector<StateSpan> spans;
    for (std::size_t index : bucket.entries) {
      const TrainState::Entry& e = state_.entries()[index];
      spans.emplace_back(e.value, e.bytes());
      for (std::byte* slot : tensors_[index].slots) spans.emplace_back(slot, e.bytes());
    }
    return spans;
  }
  [[nodiscard]] double learning_rate(Step applied) const {
    if constexpr (requires { rule_.for_group("default"); })
      return learning_rate_of(rule_.for_group("default"), applied);
    else
      return learning_rate_of(rule_, applied);
  }

 private:
  static constexpr std::size_t grain = std::size_t{1}
                                       << 18;  // elements that one thread takes at a time

  struct Tensor {
    std::size_t group = 0;
    std::array<std::byte*, slot_count> slots{};
  };

  static std::size_t aligned(std::size_t n) {
    return (n + Arena::alignment - 1) / Arena::alignment * Arena::alignment;
  }
  static bool trained(const TrainState::Entry& e) {
    if (e.kind != TrainState::Kind::tensor || !e.tied_to.empty() || e.count == 0) return false;
    if (e.dtype != DType::f32 && e.dtype != DType::f64)
      throw StateError{"tensor '" + e.name + "' is trained in " + std::string{name_of(e.dtype)} +
                       "; register a float master and add_copy the low-precision one"};
    return true;
  }
  std::size_t group_of(const std::string& name) {
    auto at = std::ranges::find(groups_, name);
    if (at == groups_.end()) at = groups_.insert(groups_.end(), name);
    return static_cast<std::size_t>(at - groups_.begin());
  }

  template <class T>
  void run(const TrainState::Entry& e, const Tensor& t, double scale) {
    auto* g = reinterpret_cast<const T*>(e.gradient);
    workers_.parallel_for(e.count, grain, [&](std::size_t first, std::size_t last) {
      std::array<T*, slot_count> slots{};
      for (std::size_t s = 0; s < slot_count; ++s)
        slots[s] = reinterpret_cast<T*>(t.slots[s]) + first;
      kernel::apply<R>(coefficients_[t.group], reinterpret_cast<T*>(e.value) + first, slots,
                       g + first, last - first, static_cast<T>(scale));
    });
  }
  //! A float master with a bf16 or f16 gradient: widened block by block.
  void run_narrow(const TrainState::Entry& e, const Tensor& t, double scale) {
    workers_.parallel_for(e.count, grain, [&](std::size_t first, std::size_t last) {
      constexpr std::size_t block = 2048;
      std::array<float, block> wide;
      for (; first < last; first += block) {
        std::size_t n = std::min(block, last - first);
        kernel::to_float(e.gradient_dtype, e.gradient + first * size_of(e.gradient_dtype),
                         wide.data(), n);
        std::array<float*, slot_count> slots{};
        for (std::size_t s = 0; s < slot_count; ++s)
          slots[s] = reinterpret_cast<float*>(t.slots[s]) + first;
        kernel::apply<R>(coefficients_[t.group], reinterpret_cast<float*>(e.value) + first, slots,
                         wide.data(), n, static_cast<float>(scale));
      }
    });
  }

  TrainState& state_;
  R rule_;
  kernel::Workers workers_;
  Arena slots_;
  std::vector<Tensor> tensors_;
  std::vector<std::string> groups_;
  std::vector<typename R::Coefficients> coefficients_;
};

}  // namespace mend
