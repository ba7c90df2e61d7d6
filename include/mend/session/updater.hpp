#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "mend/core/arena.hpp"
#include "mend/core/train_state.hpp"
#include "mend/kernel/host/half.hpp"
#include "mend/kernel/host/norms.hpp"
#include "mend/kernel/host/reduce.hpp"
#include "mend/kernel/host/rounding.hpp"
#include "mend/kernel/host/workers.hpp"
#include "mend/optim/check_options.hpp"
#include "mend/optim/learning_rate.hpp"
#include "mend/optim/norm_rule.hpp"
#include "mend/optim/rule.hpp"
#include "mend/optim/undo/record.hpp"
#include "mend/optim/undo/roll_forward.hpp"
#include "mend/session/bucket_plan.hpp"
#include "mend/session/device_bucket.hpp"

namespace mend {

//! Runs a rule over buckets by way of an undo policy: owns the optimizer's slots and what the
//! policy keeps, knows each tensor's group and coefficients. Tensors stored in bf16 or f16, and
//! gradients in them, are widened a chunk at a time; slots are floats then. Buckets
//! in a device's memory are left to Device: a DeviceBucket each.
template <Rule R, class Undo = RollForward, class Device = HostMemory>
class Updater {
 public:
  static constexpr std::size_t slot_count = R::slots.size();
  using Record = typename Undo::template Record<R>;
  static_assert(UndoRecord<Record, R>, "Session: the undo policy's Record lacks something");

  //! Adds the slots to the state. Throws StateError, OptionError.
  Updater(TrainState& state, R rule, int threads, Device device = {})
      : state_{state}, rule_{std::move(rule)}, device_{std::move(device)}, workers_{threads} {
    check_options(rule_);
    (void)kernel::best_simd();  // a MEND_SIMD that makes no sense is found here
    make_slots();
    refuse_unknown_groups();
    std::vector<UndoTensor> tensors(tensors_.size());
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      if (const TrainState::Entry& e = state.entries()[i]; trained(e) && e.memory == nullptr)
        tensors[i] = {e.count, e.dtype == DType::f64 ? DType::f64 : DType::f32, stored_narrow(e)};
    record_.reserve(tensors);
  }

  //! Makes what devices need for the buckets. Throws their errors: their memory may be full.
  void prepare(const BucketPlan& plan) {
    for (std::size_t b = 0; b < plan.size(); ++b)
      if (plan[b].on_device) (void)on_device(plan[b]);
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
  //! Updates a bucket's tensors from their gradients times scale. Throws StateError where the undo
  //! policy has no memory left; revert(bucket) then takes back what was done.
  void apply(const BucketPlan::Bucket& bucket, double scale) {
    kernel::StandardRounding rounding;  // of the scale, too
    if (bucket.on_device) return on_device(bucket).apply(coefficients_, scale);
    for (std::size_t i : bucket.entries) {
      Tensor& t = tensors_[i];
      t.scale = scale;
      t.coefficients.assign(1, coefficients_[t.group]);
      if constexpr (NormRule<R>) take_norms(i);
      each_range<Way::apply>(
          i, [&](std::size_t first, const auto& range) { record_.apply(i, first, range); });
      exchange(i, true);
      refresh(state_.entries()[i]);
    }
  }
  //! A bucket whose apply ended, or threw, becomes what it was before.
  void revert(const BucketPlan::Bucket& bucket) {
    kernel::StandardRounding rounding;
    if (bucket.on_device) return on_device(bucket).revert();
    for (std::size_t i : bucket.entries) {
      exchange(i, false);
      if (!tensors_[i].coefficients.empty())
        each_range<Way::revert>(
            i, [&](std::size_t first, const auto& range) { record_.revert(i, first, range); });
      refresh(state_.entries()[i]);
    }
  }
  //! After the commit, or after going back.
  void drop() {
    for (Tensor& t : tensors_) {
      t.coefficients.clear();
      t.exchanged = false;
    }
    record_.drop();
    for (auto& [first, bucket] : device_buckets_) bucket.drop();
  }
  //! Rounds the low-precision copies of a bucket anew.
  void refresh(const BucketPlan::Bucket& bucket) {
    if (bucket.on_device) return on_device(bucket).refresh();
    for (std::size_t i : bucket.entries) refresh(state_.entries()[i]);
  }
  //! Those of a tensor in host memory.
  static void refresh(const TrainState::Entry& e) {
    for (const TrainState::Copy& c : e.copies)
      kernel::from_float(c.dtype, reinterpret_cast<const float*>(e.value), c.data, e.count);
  }
  [[nodiscard]] double learning_rate(Step applied) const {
    if constexpr (requires { rule_.for_group("default"); })
      return learning_rate_of(rule_.for_group("default"), applied);
    else
      return learning_rate_of(rule_, applied);
  }
  [[nodiscard]] ByteCount undo_memory() const {
    std::size_t bytes = record_.memory().value();
    for (const auto& [first, bucket] : device_buckets_) bytes += bucket.memory().value();
    return ByteCount{bytes};
  }

 private:
  //! Elements that one thread takes at a time.
  static constexpr std::size_t grain = std::size_t{1} << 18;
  static_assert(grain % undo_chunk == 0);

  struct Tensor {
    std::size_t group = 0;
    std::array<std::byte*, slot_count> slots{};
    std::vector<typename R::Coefficients> coefficients;  // one, between apply and drop
    double scale = 1;                                    // of its gradient, likewise
    bool exchanged = false;
  };

  static bool trained(const TrainState::Entry& e) {
    return e.kind == TrainState::Kind::tensor && e.tied_to.empty() && e.count != 0;
  }
  static bool stored_narrow(const TrainState::Entry& e) { return size_of(e.dtype) == 2; }
  static std::size_t slot_bytes(const TrainState::Entry& e) {
    return e.count * (e.dtype == DType::f64 ? sizeof(double) : sizeof(float));
  }

  void make_slots() {
    const std::size_t count = state_.entries().size();
    std::size_t bytes = 0, device_bytes = 0;
    for (const TrainState::Entry& e : state_.entries())
      if (trained(e)) (e.memory == nullptr ? bytes : device_bytes) += Arena::aligned(slot_bytes(e));
    slots_ = Arena{ByteCount{slot_count * bytes}};
    device_slots_ = DeviceArena<Device>{device_, slot_count * device_bytes};
    std::byte *at = slots_.data(), *device_at = device_slots_.data();
    tensors_.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      const TrainState::Entry& e = state_.entries()[i];
      if (!trained(e)) continue;
      if (e.memory != nullptr && stored_narrow(e))
        throw StateError{"tensor '" + e.name + "' on a device is trained in " +
                         std::string{name_of(e.dtype)} +
                         "; register a float master and add_copy the low-precision one"};
      tensors_[i].group = group_of(e.group);
    }
    for (std::size_t s = 0; s != slot_count; ++s)
      for (std::size_t i = 0; i < count; ++i) {
        if (!trained(state_.entries()[i])) continue;
        Tensor& t = tensors_[i];
        std::byte*& next = state_.entries()[i].memory == nullptr ? at : device_at;
        t.slots[s] = next;
        next += Arena::aligned(slot_bytes(state_.entries()[i]));
        TrainState::Entry of = state_.entries()[i];  // add_slot may move the entries
        slot_entries_[s].resize(count);
        slot_entries_[s][i] = state_.entries().size();
        state_.add_slot(of, R::slots[s], t.slots[s]);
      }
  }
  void refuse_unknown_groups() const {
    if constexpr (requires { rule_.names(); }) {
      for (const std::string& name : rule_.names())
        if (std::ranges::find(groups_, name) == groups_.end())
          throw OptionError{"PerGroup: no tensor was added with group '" + name + "'"};
      for (const std::string& name : groups_)
        if (name != Traits{}.group && std::ranges::find(rule_.names(), name) == rule_.names().end())
          throw OptionError{"a tensor was added with group '" + name +
                            "', which PerGroup does not name; name it there, or leave it out for "
                            "the options of all others"};
    } else {
      for (const std::string& name : groups_)
        if (name != Traits{}.group)
          throw OptionError{"the parameter group '" + name +
                            "' has no options of its own: give the "
                            "session a PerGroup, or leave the group out"};
    }
  }
  std::size_t group_of(const std::string& name) {
    auto at = std::ranges::find(groups_, name);
    if (at == groups_.end()) at = groups_.insert(groups_.end(), name);
    return static_cast<std::size_t>(at - groups_.begin());
  }

  //! Its tables are made the first time.
  DeviceBucket<Device, R, Undo>& on_device(const BucketPlan::Bucket& bucket) {
    auto at = device_buckets_.find(bucket.entries.front());
    if (at != device_buckets_.end()) return at->second;
    std::vector<DeviceTensor<slot_count>> tensors;
    for (std::size_t i : bucket.entries) {
      const TrainState::Entry& e = state_.entries()[i];
      tensors.push_back({e.dtype,
                         e.gradient_dtype,
                         e.count,
                         tensors_[i].group,
                         e.value,
                         tensors_[i].slots,
                         e.gradient,
                         {}});
      for (const TrainState::Copy& c : e.copies) tensors.back().copies.push_back({c.data, c.dtype});
    }
    return device_buckets_.try_emplace(bucket.entries.front(), device_, std::move(tensors))
        .first->second;
  }

  //! Where a policy keeps two of every slot: the others become current.
  void exchange(std::size_t i, bool applied) {
    if constexpr (requires { record_.exchange(i, tensors_[i].slots); }) {
      Tensor& t = tensors_[i];
      if (t.exchanged == applied) return;
      t.exchanged = applied;
      record_.exchange(i, t.slots);
      for (std::size_t s = 0; s != slot_count; ++s)
        state_.move_slot(slot_entries_[s][i], t.slots[s]);
    }
  }

  enum class Way { apply, revert };

  //! Calls body(first, UpdateRange) for the ranges of a tensor, by several threads.
  template <Way way, class Body>
  void each_range(std::size_t i, const Body& body) {
    const TrainState::Entry& e = state_.entries()[i];
    const Tensor& t = tensors_[i];
    if (e.dtype == DType::f64)
      workers_.parallel_for(e.count, grain, [&](std::size_t first, std::size_t last) {
        body(first, range_of(t, reinterpret_cast<double*>(e.value) + first,
                             reinterpret_cast<const double*>(e.gradient) + first, first, last));
      });
    else
      workers_.parallel_for(e.count, grain, [&](std::size_t first, std::size_t last) {
        float_ranges<way>(e, t, first, last, body);
      });
  }
  template <Way way, class Body>
  void float_ranges(const TrainState::Entry& e, const Tensor& t, std::size_t first,
                    std::size_t last, const Body& body) {
    const bool narrow_value = stored_narrow(e), narrow_gradient = size_of(e.gradient_dtype) == 2;
    if (!narrow_value && !narrow_gradient)
      return body(first, range_of(t, reinterpret_cast<float*>(e.value) + first,
                                  reinterpret_cast<const float*>(e.gradient) + first, first, last));
    std::array<float, undo_chunk> values, gradients;
    for (; first < last; first += undo_chunk) {
      const std::size_t n = std::min(undo_chunk, last - first);
      std::byte* value = e.value + first * size_of(e.dtype);
      if (narrow_value) widen(e.dtype, value, values.data(), n);
      const std::byte* gradient = e.gradient + first * size_of(e.gradient_dtype);
      if (narrow_gradient) kernel::to_float(e.gradient_dtype, gradient, gradients.data(), n);
      body(first,
           range_of(t, narrow_value ? values.data() : reinterpret_cast<float*>(value),
                    narrow_gradient ? gradients.data() : reinterpret_cast<const float*>(gradient),
                    first, first + n));
      if (!narrow_value) continue;
      if (way == Way::apply)
        kernel::from_float(e.dtype, values.data(), value, n);
      else
        narrow_exactly(e.dtype, values.data(), value, n);
    }
  }
  template <class T>
  UpdateRange<R, T> range_of(const Tensor& t, T* p, const T* g, std::size_t first,
                             std::size_t last) const {
    UpdateRange<R, T> range{t.coefficients[0], p, {}, g, last - first, static_cast<T>(t.scale)};
    for (std::size_t s = 0; s != slot_count; ++s)
      range.slots[s] = reinterpret_cast<T*>(t.slots[s]) + first;
    return range;
  }

  // To floats and back without a change of any bit, NaNs too, so that what was not updated stays.
  static void widen(DType type, const std::byte* from, float* to, std::size_t n) {
    const auto* bits = reinterpret_cast<const std::uint16_t*>(from);
    for (std::size_t i = 0; i < n; ++i)
      to[i] = type == DType::bf16 ? kernel::bf16_to_float(bits[i]) : kernel::f16_to_float(bits[i]);
  }
  static void narrow_exactly(DType type, const float* from, std::byte* to, std::size_t n) {
    auto* bits = reinterpret_cast<std::uint16_t*>(to);
    for (std::size_t i = 0; i < n; ++i)
      bits[i] =
          type == DType::bf16 ? kernel::bf16_of_exact(from[i]) : kernel::f16_of_exact(from[i]);
  }

  //! A tensor's coefficients with its norms, for a rule that needs them.
  void take_norms(std::size_t i) {
    const TrainState::Entry& e = state_.entries()[i];
    if (e.dtype == DType::f64)
      take_norms(i, reinterpret_cast<const double*>(e.value),
                 reinterpret_cast<const double*>(e.gradient));
    else
      take_norms(i, as_floats(e.dtype, e.value, e.count, wide_values_),
                 as_floats(e.gradient_dtype, e.gradient, e.count, wide_gradients_));
  }
  template <class T>
  void take_norms(std::size_t i, const T* p, const T* g) {
    Tensor& t = tensors_[i];
    std::array<const T*, slot_count> slots{};
    for (std::size_t s = 0; s != slot_count; ++s) slots[s] = reinterpret_cast<const T*>(t.slots[s]);
    auto& c = t.coefficients[0];
    const std::size_t n = state_.entries()[i].count;
    c = R::with_norms(c, kernel::norms<R>(c, p, slots, g, n, static_cast<T>(t.scale), &workers_));
  }
  static const float* as_floats(DType type, const std::byte* data, std::size_t n,
                                std::vector<float>& wide) {
    if (type == DType::f32) return reinterpret_cast<const float*>(data);
    wide.resize(std::max(wide.size(), n));
    kernel::to_float(type, data, wide.data(), n);
    return wide.data();
  }

  TrainState& state_;
  R rule_;
  [[no_unique_address]] Device device_;
  kernel::Workers workers_;
  Arena slots_;
  [[no_unique_address]] DeviceArena<Device> device_slots_;
  Record record_;
  std::map<std::size_t, DeviceBucket<Device, R, Undo>> device_buckets_;  // by their first entry
  std::vector<Tensor> tensors_;
  std::array<std::vector<std::size_t>, slot_count> slot_entries_;  // per slot and tensor
  std::vector<std::string> groups_;
  std::vector<typename R::Coefficients> coefficients_;  // per group
  std::vector<float> wide_values_, wide_gradients_;     // of a narrow tensor, for its norms
};

}  // namespace mend
