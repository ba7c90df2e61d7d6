#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "mend/core/byte_count.hpp"
#include "mend/kernel/cuda/apply.cuh"
#include "mend/kernel/cuda/buffer.cuh"
#include "mend/kernel/cuda/copy.cuh"
#include "mend/kernel/cuda/exact.cuh"
#include "mend/kernel/cuda/on_stream.cuh"
#include "mend/kernel/cuda/reduce.cuh"
#include "mend/kernel/cuda/rule_norms.cuh"
#include "mend/kernel/cuda/span.cuh"
#include "mend/kernel/host/rounding.hpp"
#include "mend/optim/bounded_rule.hpp"
#include "mend/optim/norm_rule.hpp"
#include "mend/optim/rule.hpp"
#include "mend/optim/undo/exact.hpp"
#include "mend/optim/undo/roll_forward.hpp"
#include "mend/optim/undo/snapshot.hpp"
#include "mend/session/device_bucket.hpp"

namespace mend {

namespace detail {

//! An undo policy over the tensors of one table.
template <class Undo, class R, class T>
class DeviceRecord {
  static_assert(!std::is_same_v<Undo, Undo>,
                "tensors on a device take RollForward, ExactUndo or SnapshotUndo");
};

template <class R, class T>
class DeviceRecord<RollForward, R, T> {
 public:
  DeviceRecord(const cuda::Parameters<R, T>& table, cudaStream_t) : table_{table} {}
  void apply(const cuda::CoefficientList<R>& c, bool, T scale, cudaStream_t stream) {
    cuda::apply_async(table_, c, scale, stream);
  }
  void revert(const cuda::CoefficientList<R>&, T, cudaStream_t) {}
  void drop(cudaStream_t) {}
  [[nodiscard]] std::size_t bytes() const { return 0; }

 private:
  const cuda::Parameters<R, T>& table_;
};

template <class R, class T>
class DeviceRecord<ExactUndo, R, T> {
 public:
  DeviceRecord(const cuda::Parameters<R, T>& table, cudaStream_t stream)
      : record_{table, 0, stream} {}
  void apply(const cuda::CoefficientList<R>& c, bool bounded, T scale, cudaStream_t stream) {
    do record_.apply_async(c, scale, stream, !bounded);
    while (!record_.complete(stream));  // it has more room then
  }
  void revert(const cuda::CoefficientList<R>& c, T scale, cudaStream_t stream) {
    record_.revert_async(c, scale, stream);
  }
  void drop(cudaStream_t stream) { record_.drop_async(stream); }
  [[nodiscard]] std::size_t bytes() const { return record_.bytes(); }

 private:
  cuda::ExactRecord<R, T> record_;
};

template <class R, class T>
class DeviceRecord<SnapshotUndo, R, T> {
 public:
  DeviceRecord(const cuda::Parameters<R, T>& table, cudaStream_t) : table_{table} {
    std::size_t values = 0;
    for (const auto& t : table.entries()) values += (1 + R::slots.size()) * t.n;
    copies_ = cuda::Buffer<T>{values};
  }
  void apply(const cuda::CoefficientList<R>& c, bool, T scale, cudaStream_t stream) {
    each_array([&](cuda::span<T> state, cuda::span<T> copy) {
      cuda::copy_async(cuda::span<const T>{state}, copy, stream);
    });
    cuda::apply_async(table_, c, scale, stream);
  }
  void revert(const cuda::CoefficientList<R>&, T, cudaStream_t stream) {
    each_array([&](cuda::span<T> state, cuda::span<T> copy) {
      cuda::copy_async(cuda::span<const T>{copy}, state, stream);
    });
  }
  void drop(cudaStream_t) {}
  [[nodiscard]] std::size_t bytes() const { return copies_.size() * sizeof(T); }

 private:
  template <class Body>
  void each_array(const Body& body) {
    T* at = copies_.data();
    for (const auto& t : table_.entries()) {
      body(cuda::span<T>{t.value, t.n}, cuda::span<T>{at, t.n});
      at += t.n;
      if constexpr (!R::slots.empty())
        for (std::size_t k = 0; k < R::slots.size(); ++k, at += t.n)
          body(cuda::span<T>{t.slots[k], t.n}, cuda::span<T>{at, t.n});
    }
  }

  const cuda::Parameters<R, T>& table_;
  cuda::Buffer<T> copies_;
};

//! The coefficients of every tensor: the common ones, with its norms where the rule needs them.
template <class R, class T>
class DeviceCoefficients {
 public:
  DeviceCoefficients(const cuda::Parameters<R, T>&, cudaStream_t) {}
  void add_norms(std::vector<typename R::Coefficients>&, T, cudaStream_t) {}
};
template <NormRule R, class T>
class DeviceCoefficients<R, T> {
 public:
  DeviceCoefficients(const cuda::Parameters<R, T>& table, cudaStream_t stream)
      : norms_{table, stream} {}
  void add_norms(std::vector<typename R::Coefficients>& each, T scale, cudaStream_t stream) {
    norms_.compute_async(each.front(), scale, stream);
    const auto norms = norms_.read(stream);
    kernel::StandardRounding rounding;  // whatever the trainer has set
    for (std::size_t i = 0; i < each.size(); ++i) each[i] = R::with_norms(each[i], norms[i]);
  }

 private:
  cuda::RuleNorms<R, T> norms_;
};

//! Those tensors of a bucket that have one type and one group: one launch updates them.
template <class R, class Undo, class T>
class DevicePart {
  using Coefficients = typename R::Coefficients;
  using Tensor = DeviceTensor<R::slots.size()>;

 public:
  DevicePart(const std::vector<Tensor>& tensors, cudaStream_t stream)
      : stream_{stream},
        table_{cuda::parameters<R, T>(rows(tensors), stream)},
        norms_{table_, stream},
        coefficients_{tensors.size()},
        record_{table_, stream} {}
  DevicePart(const DevicePart&) = delete;
  DevicePart& operator=(const DevicePart&) = delete;

  void apply(const Coefficients& common, double scale) {
    std::vector<Coefficients> each(coefficients_.size(), common);
    scale_ = static_cast<T>(scale);
    norms_.add_norms(each, scale_, stream_);
    coefficients_.upload_async(each, stream_);
    applied_ = true;
    record_.apply(coefficients_, std::all_of(each.begin(), each.end(), bounded), scale_, stream_);
  }
  void revert() {
    if (std::exchange(applied_, false)) record_.revert(coefficients_, scale_, stream_);
  }
  void drop() {
    if (std::exchange(applied_, false)) record_.drop(stream_);
  }
  [[nodiscard]] std::size_t bytes() const { return record_.bytes(); }

 private:
  static bool bounded(const Coefficients& c) {
    if constexpr (BoundedOptimizer<R>)
      return R::bounded(c);
    else
      return true;  // its revert is tried at once
  }
  static std::vector<cuda::Parameter<R, T>> rows(const std::vector<Tensor>& tensors) {
    std::vector<cuda::Parameter<R, T>> all;
    for (const Tensor& t : tensors) {
      auto& row = all.emplace_back();
      row.value = reinterpret_cast<T*>(t.value);
      if constexpr (!R::slots.empty())
        for (std::size_t k = 0; k < R::slots.size(); ++k)
          row.slots[k] = reinterpret_cast<T*>(t.slots[k]);
      row.gradient = t.gradient;
      row.gradient_type = t.gradient_dtype;
      row.n = t.count;
    }
    return all;
  }

  cudaStream_t stream_;
  cuda::Parameters<R, T> table_;
  DeviceCoefficients<R, T> norms_;
  cuda::CoefficientList<R> coefficients_;
  DeviceRecord<Undo, R, T> record_;
  T scale_ = 1;
  bool applied_ = false;
};

}  // namespace detail

//! On CUDA: every call works on the policy's stream; apply waits where a rule needs norms or
//! ExactUndo asks whether its record was large enough. Throws DeviceError.
template <class R, class Undo>
class DeviceBucket<OnStream, R, Undo> {
  using Tensor = DeviceTensor<R::slots.size()>;

 public:
  DeviceBucket(const OnStream& device, std::vector<Tensor> tensors)
      : stream_{device.stream()}, tensors_{std::move(tensors)} {
    std::size_t groups = 0;
    for (const Tensor& t : tensors_) groups = std::max(groups, t.group + 1);
    floats_.resize(groups);
    doubles_.resize(groups);
    for (std::size_t group = 0; group < groups; ++group) {
      floats_[group] = part<float>(group, DType::f32);
      doubles_[group] = part<double>(group, DType::f64);
    }
  }

  void apply(const std::vector<typename R::Coefficients>& of_group, double scale) {
    for (std::size_t group = 0; group < floats_.size(); ++group) {
      if (floats_[group]) floats_[group]->apply(of_group[group], scale);
      if (doubles_[group]) doubles_[group]->apply(of_group[group], scale);
    }
    refresh();
  }
  void revert() {
    each_part([](auto& part) { part.revert(); });
    refresh();
  }
  void drop() {
    each_part([](auto& part) { part.drop(); });
  }
  void refresh() {
    for (const Tensor& t : tensors_)
      for (const auto& copy : t.copies)
        cuda::from_float_async(copy.dtype, reinterpret_cast<const float*>(t.value), copy.data,
                               t.count, stream_);
  }
  [[nodiscard]] ByteCount memory() const {
    std::size_t bytes = 0;
    for (const auto& part : floats_)
      if (part) bytes += part->bytes();
    for (const auto& part : doubles_)
      if (part) bytes += part->bytes();
    return ByteCount{bytes};
  }

 private:
  template <class T>
  using Part = std::unique_ptr<detail::DevicePart<R, Undo, T>>;

  template <class T>
  Part<T> part(std::size_t group, DType type) const {
    std::vector<Tensor> of;
    for (const Tensor& t : tensors_)
      if (t.group == group && t.dtype == type) of.push_back(t);
    if (of.empty()) return nullptr;
    return std::make_unique<detail::DevicePart<R, Undo, T>>(of, stream_);
  }
  template <class Body>
  void each_part(const Body& body) {
    for (auto& part : floats_)
      if (part) body(*part);
    for (auto& part : doubles_)
      if (part) body(*part);
  }

  cudaStream_t stream_;
  std::vector<Tensor> tensors_;
  std::vector<Part<float>> floats_;
  std::vector<Part<double>> doubles_;
};

template <>
class DeviceArena<OnStream> {
 public:
  DeviceArena() = default;
  //! Throws DeviceError.
  DeviceArena(const OnStream& device, std::size_t bytes) : memory_{bytes} {
    if (bytes != 0) cuda::check(cudaMemsetAsync(memory_.data(), 0, bytes, device.stream()));
    device.wait();  // a load may write to it at once
  }
  [[nodiscard]] std::byte* data() const { return memory_.data(); }

 private:
  cuda::Buffer<std::byte> memory_;
};

}  // namespace mend
