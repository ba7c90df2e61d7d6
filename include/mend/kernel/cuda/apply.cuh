#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "mend/core/dtype.hpp"
#include "mend/core/error.hpp"
#include "mend/kernel/cuda/launch.cuh"
#include "mend/kernel/cuda/staged.cuh"
#include "mend/kernel/cuda/stored.cuh"
#include "mend/kernel/cuda/table.cuh"
#include "mend/kernel/cuda/vector.cuh"
#include "mend/kernel/slots.hpp"

namespace mend::cuda {

//! A tensor that a rule updates: n values of T (float or double), as many of every slot, and their
//! gradient, of T or, for floats, of bf16 or f16 too. Device memory, aligned for its types, without
//! overlap; best aligned to 16 bytes.
template <class Rule, class T = float>
struct Parameter {
  static constexpr std::size_t slot_count = Rule::slots.size();

  T* value;
  Slots<T*, slot_count> slots;
  const void* gradient;
  DType gradient_type;
  std::size_t n;
};

inline constexpr std::size_t update_chunk_size = 16384;

//! All tensors that a launch updates with one rule.
template <class Rule, class T = float>
using Parameters = Table<Parameter<Rule, T>, update_chunk_size>;

//! The coefficients of every tensor of a table, for rules or groups that tell them apart.
template <class Rule>
using CoefficientList = Staged<typename Rule::Coefficients>;

namespace detail {

//! `width` parameters from `at` on, through vectors of that many.
template <class Rule, bool forward, unsigned width, class T, DType gradient_type>
__device__ void update_elements(const Parameter<Rule, T>& t, std::size_t at,
                                const typename Rule::Coefficients& c, T gradient_scale) {
  using Real = kernel::Lanes<T, kernel::DeviceSet>;
  using Gradient = Stored<gradient_type>;
  constexpr std::size_t slot_count = Parameter<Rule, T>::slot_count;
  const auto g = Vector<typename Gradient::Element, width>::load(
      static_cast<const typename Gradient::Element*>(t.gradient) + at);
  auto p = Vector<T, width>::load(t.value + at);
  [[maybe_unused]] Vector<T, width> s[slot_count + 1];
  if constexpr (slot_count > 0)
    for (std::size_t k = 0; k != slot_count; ++k) s[k] = Vector<T, width>::load(t.slots[k] + at);
  for (unsigned i = 0; i < width; ++i) {
    Real value{p.values[i]};
    Slots<Real, slot_count> slots;
    if constexpr (slot_count > 0)
      for (std::size_t k = 0; k != slot_count; ++k) slots[k] = Real{s[k].values[i]};
    const Real scaled = Gradient::load(&g.values[i]) * Real{gradient_scale};
    if constexpr (forward)
      Rule::template apply<Real>(value, slots, scaled, c);
    else
      Rule::template revert<Real>(value, slots, scaled, c);
    one_nan(value).store(&p.values[i]);
    if constexpr (slot_count > 0)
      for (std::size_t k = 0; k != slot_count; ++k) one_nan(slots[k]).store(&s[k].values[i]);
  }
  p.store(t.value + at);
  if constexpr (slot_count > 0)
    for (std::size_t k = 0; k != slot_count; ++k) s[k].store(t.slots[k] + at);
}

//! Whether 16 bytes of values and slots can move at once.
template <class Rule, class T>
__device__ bool state_aligned(const Parameter<Rule, T>& t) {
  bool all = aligned(t.value);
  if constexpr (Parameter<Rule, T>::slot_count > 0)
    for (std::size_t k = 0; k != Parameter<Rule, T>::slot_count; ++k)
      all = all && aligned(t.slots[k]);
  return all;
}
//! And as many elements of the gradient.
template <class Element, class Rule, class T>
__device__ bool gradient_aligned(const Parameter<Rule, T>& t) {
  return aligned(t.gradient, 16 / sizeof(T) * sizeof(Element));
}

//! One block's share: [begin, end) of a tensor. begin is a multiple of the chunk size.
template <class Rule, bool forward, class T, DType gradient_type>
__device__ void update_chunk(const Parameter<Rule, T>& t, std::size_t begin, std::size_t end,
                             const typename Rule::Coefficients& c, T gradient_scale) {
  constexpr unsigned width = 16 / sizeof(T);
  using Element = typename Stored<gradient_type>::Element;
  std::size_t at = begin;
  if (state_aligned(t) && gradient_aligned<Element>(t)) {
    const std::size_t whole = begin + (end - begin) / width * width;
    for (at += width * threadIdx.x; at < whole; at += width * blockDim.x)
      update_elements<Rule, forward, width, T, gradient_type>(t, at, c, gradient_scale);
    at = whole;
  }
  for (at += threadIdx.x; at < end; at += blockDim.x)
    update_elements<Rule, forward, 1, T, gradient_type>(t, at, c, gradient_scale);
}

template <class Rule, bool forward, class T>
__global__ void __launch_bounds__(block_size)
    update(typename Parameters<Rule, T>::View table, typename Rule::Coefficients common,
           const typename Rule::Coefficients* each, T gradient_scale) {
  const auto share = table.share_of_block();
  const typename Rule::Coefficients c = each != nullptr ? each[share.index] : common;
  for_gradient<T>(share.entry.gradient_type, [&]<DType type>(Stored<type>) {
    update_chunk<Rule, forward, T, type>(share.entry, share.begin, share.end, c, gradient_scale);
  });
}

}  // namespace detail

//! The table of some tensors. Blocks: until it is on the device. Throws DeviceError, and
//! OptionError for a gradient that does not go with T.
template <class Rule, class T = float>
[[nodiscard]] Parameters<Rule, T> parameters(std::vector<Parameter<Rule, T>> tensors,
                                             cudaStream_t stream) {
  for (const Parameter<Rule, T>& t : tensors)
    if (t.gradient_type != dtype_of<T> &&
        (sizeof(T) != 4 || (t.gradient_type != DType::bf16 && t.gradient_type != DType::f16)))
      throw OptionError{"a parameter of " + std::string{name_of(dtype_of<T>)} +
                        " cannot take a gradient of " + std::string{name_of(t.gradient_type)}};
  return Parameters<Rule, T>{std::move(tensors), stream};
}

//! One update of every tensor in a table, in place: to the bits of kernel::apply on the host.
//! gradient_scale: the rule sees the gradient times this, rounded once.
//! Blocks: no. Throws DeviceError. Cost: one launch; memory traffic, 28 bytes per float parameter
//! for a rule with two slots.
template <class Rule, class T>
void apply_async(const Table<Parameter<Rule, T>, update_chunk_size>& tensors,
                 const std::type_identity_t<typename Rule::Coefficients>& c,
                 std::type_identity_t<T> gradient_scale, cudaStream_t stream) {
  Launch{tensors.chunks(), stream}(&detail::update<Rule, true, T>, tensors.view(), c, nullptr,
                                   gradient_scale);
}
//! The same with coefficients for every tensor, which were uploaded on this stream.
template <class Rule, class T>
void apply_async(const Table<Parameter<Rule, T>, update_chunk_size>& tensors,
                 const std::type_identity_t<CoefficientList<Rule>>& c,
                 std::type_identity_t<T> gradient_scale, cudaStream_t stream) {
  Launch{tensors.chunks(), stream}(&detail::update<Rule, true, T>, tensors.view(),
                                   typename Rule::Coefficients{}, c.data(), gradient_scale);
}

//! The rule's own inverse of that update, with the same arguments: to the bits of kernel::revert.
template <class Rule, class T>
void revert_async(const Table<Parameter<Rule, T>, update_chunk_size>& tensors,
                  const std::type_identity_t<typename Rule::Coefficients>& c,
                  std::type_identity_t<T> gradient_scale, cudaStream_t stream) {
  Launch{tensors.chunks(), stream}(&detail::update<Rule, false, T>, tensors.view(), c, nullptr,
                                   gradient_scale);
}
template <class Rule, class T>
void revert_async(const Table<Parameter<Rule, T>, update_chunk_size>& tensors,
                  const std::type_identity_t<CoefficientList<Rule>>& c,
                  std::type_identity_t<T> gradient_scale, cudaStream_t stream) {
  Launch{tensors.chunks(), stream}(&detail::update<Rule, false, T>, tensors.view(),
                                   typename Rule::Coefficients{}, c.data(), gradient_scale);
}

}  // namespace mend::cuda
