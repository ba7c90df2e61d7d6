#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include "mend/core/dtype.hpp"
#include "mend/kernel/cuda/apply.cuh"
#include "mend/kernel/cuda/launch.cuh"
#include "mend/kernel/cuda/norms.cuh"
#include "mend/kernel/cuda/stored.cuh"
#include "mend/kernel/cuda/table.cuh"
#include "mend/kernel/host/scalar.hpp"
#include "mend/kernel/slots.hpp"

namespace mend::cuda {

namespace detail {

//! The squares of a rule's terms for elements [begin, end) of a tensor, zeros behind them.
template <class Rule, DType gradient_type, class T>
__device__ void square_terms(const Parameter<Rule, T>& t, const typename Rule::Coefficients& c,
                             T gradient_scale, std::size_t begin, std::size_t end,
                             double (&into)[Rule::norms][Adding<Rule::norms>::at_once]) {
  using Real = kernel::Lanes<T, kernel::DeviceSet>;
  using Gradient = Stored<gradient_type>;
  using A = Adding<Rule::norms>;
  constexpr std::size_t slot_count = Parameter<Rule, T>::slot_count;
  const auto* g = static_cast<const typename Gradient::Element*>(t.gradient);
  for (unsigned at = threadIdx.x - A::adders; at < A::at_once; at += A::readers) {
    T terms[Rule::norms] = {};
    if (at < end - begin) {
      const std::size_t i = begin + at;
      Slots<Real, slot_count> slots;
      if constexpr (slot_count > 0)
        for (std::size_t k = 0; k != slot_count; ++k) slots[k] = Real::load(t.slots[k] + i);
      Slots<Real, Rule::norms> of_rule;
      Rule::template prepare<Real>(Real::load(t.value + i), slots,
                                   Gradient::load(g + i) * Real{gradient_scale}, c, of_rule);
      for (std::size_t k = 0; k < Rule::norms; ++k) of_rule[k].store(&terms[k]);
    }
    for (std::size_t k = 0; k < Rule::norms; ++k) into[k][at] = squared(terms[k]);
  }
}

template <class Rule, class T, class View>
__global__ void __launch_bounds__(Adding<Rule::norms>::threads)
    sum_terms(View table, typename Rule::Coefficients c, T gradient_scale, double* sums) {
  constexpr unsigned norms = Rule::norms;
  __shared__ typename Adding<norms>::Squares squares;
  const auto share = table.share_of_block();
  const auto read = [&](std::size_t at, std::size_t stop, unsigned half) {
    for_gradient<T>(share.entry.gradient_type, [&]<DType type>(Stored<type>) {
      square_terms<Rule, type>(share.entry, c, gradient_scale, at, stop, squares[half]);
    });
  };
  const double sum = sum_block<norms>(share.begin, share.end, squares, read);
  if (threadIdx.x % running_sums == 0 && threadIdx.x / running_sums < norms)
    sums[std::size_t{blockIdx.x} * norms + threadIdx.x / running_sums] = sum;
}

}  // namespace detail

//! The norms that a NormRule needs before its update, to the bits of kernel::norms. Owns the sums;
//! the tensors are the caller's and stay where they are.
template <class Rule, class T = float>
class RuleNorms {
 public:
  //! Blocks: until the list is on the device. Throws DeviceError.
  RuleNorms(const Parameters<Rule, T>& tensors, cudaStream_t stream)
      : table_{{tensors.entries().begin(), tensors.entries().end()}, stream},
        sums_{table_, stream} {}

  //! Of the tensors as the stream finds them; arguments as for apply_async. Blocks: no. Throws
  //! DeviceError. Cost: one read of values, slots and gradient.
  void compute_async(const typename Rule::Coefficients& c, T gradient_scale, cudaStream_t stream) {
    using View = typename decltype(table_)::View;
    Launch{table_.chunks(), stream, detail::Adding<Rule::norms>::threads}(
        &detail::sum_terms<Rule, T, View>, table_.view(), c, gradient_scale, sums_.blocks.data());
    sums_.add_up_async(stream);
  }
  //! What the last compute_async found, for Rule::with_norms: an entry a tensor. Blocks: until it
  //! has. Throws DeviceError.
  [[nodiscard]] std::vector<std::array<double, Rule::norms>> read(cudaStream_t stream) const {
    const std::vector<double> totals = sums_.read(stream);
    std::vector<std::array<double, Rule::norms>> norms(totals.size() / Rule::norms);
    for (std::size_t i = 0; i < totals.size(); ++i)
      norms[i / Rule::norms][i % Rule::norms] = kernel::ScalarSet::sqrt(totals[i]);
    return norms;
  }

 private:
  Table<Parameter<Rule, T>, detail::squares_block> table_;
  detail::BlockSums<Rule::norms> sums_;
};

}  // namespace mend::cuda
