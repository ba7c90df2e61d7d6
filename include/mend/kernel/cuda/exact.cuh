#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "mend/config.hpp"
#include "mend/core/dtype.hpp"
#include "mend/kernel/cuda/apply.cuh"
#include "mend/kernel/cuda/buffer.cuh"
#include "mend/kernel/cuda/copy.cuh"
#include "mend/kernel/cuda/device_set.cuh"
#include "mend/kernel/cuda/error.cuh"
#include "mend/kernel/cuda/launch.cuh"
#include "mend/kernel/cuda/stored.cuh"
#include "mend/kernel/cuda/table.cuh"
#include "mend/kernel/cuda/vector.cuh"
#include "mend/kernel/cuda/warp.cuh"
#include "mend/kernel/host/exact.hpp"
#include "mend/kernel/slots.hpp"

// A record's functions are called by rules, which are host functions too, and only run in kernels.
#if defined(__CUDACC__)
#define MEND_RECORD _Pragma("nv_exec_check_disable") __host__ __device__
#else
#define MEND_RECORD
#endif

namespace mend::cuda {

namespace detail {

using kernel::DeviceSet;

//! How a warp shares out parameters and their codes. A group is what fills one 32-bit word of codes
//! in each lane: `rows` parameters a lane, `width` of them side by side in memory. A warp takes
//! `groups` groups, a block a chunk.
template <class Rule, class T>
struct ExactLayout {
  static constexpr unsigned arrays = 1 + Rule::slots.size();
  static constexpr unsigned element_bits =
      static_cast<unsigned>(kernel::detail::bits_per_element<Rule>());
  static_assert(element_bits <= 32, "ExactUndo: too many slots for a record of their differences");
  static constexpr unsigned rows = 32 / element_bits;
  static constexpr unsigned width = rows * sizeof(T) < 16 ? rows : 16 / sizeof(T);
  static constexpr unsigned group = warp_size * rows, groups = 4, warps = block_size / warp_size;
  static constexpr std::size_t chunk = std::size_t{group} * groups * warps;
  //! Values that the list of one warp holds in its own place: an eighth of a value a parameter.
  static constexpr std::size_t quota = groups * group / 8;

  //! Low bits that are kept of an array, and where they stand in an element's code. Eight bits each
  //! in one number: a kernel cannot read a constant array of the host.
  MEND_RECORD static constexpr unsigned bits(std::size_t k) {
    return static_cast<unsigned>(packed_bits >> 8 * k & 0xff);
  }
  MEND_RECORD static constexpr unsigned shift(std::size_t k) {
    return static_cast<unsigned>(packed_shifts >> 8 * k & 0xff);
  }

 private:
  static constexpr std::uint64_t pack(bool shifts) {
    std::uint64_t packed = 0, sum = 0;
    for (std::size_t k = 0; k != arrays; ++k) {
      const auto b = static_cast<std::uint64_t>(kernel::detail::record_bits<Rule>()[k]);
      packed |= (shifts ? sum : b) << 8 * k;
      sum += b;
    }
    return packed;
  }
  static constexpr std::uint64_t packed_bits = pack(false), packed_shifts = pack(true);
};

//! Where the whole values of a group lie, or that it was not updated; groups are kept raw, with all
//! their old values, where one is a negative zero.
struct GroupPlace {
  static constexpr std::uint64_t none = ~std::uint64_t{0}, raw = std::uint64_t{1} << 63;
};

//! Memory of a record, as kernels see it.
template <class T>
struct ExactView {
  std::uint32_t* codes;   // a word a lane of every group
  std::uint64_t* places;  // one a group: index into values, perhaps with GroupPlace::raw
  T* values;              // first every warp's own, then what all share
  std::uint64_t own;      // how many are the warps' own
  std::uint64_t* taken;   // of the shared ones
  std::uint64_t shared;   // how many of them there are
  int* refused;           // set where they did not suffice
};

//! Whether not 2^exponent(a) <= factor |b|; so too where either is not finite.
template <class T>
__device__ bool outside(T a, T b, T factor) {
  using Bits = decltype(DeviceSet::pattern(a));
  constexpr Bits exponent =
      sizeof(T) == 4 ? Bits{0x7f800000} : static_cast<Bits>(0x7ff0000000000000);
  const T power = DeviceSet::number(DeviceSet::pattern(a) & exponent);
  return !(DeviceSet::sub(power, DeviceSet::mul(factor, DeviceSet::abs(b))) <= 0);
}
//! The number nearest to the estimate whose low bits are those of the code: up to 2^(bits-1) units
//! below, less than that above.
template <class T>
__device__ T decoded(T estimate, std::uint32_t code, unsigned bits) {
  using Bits = decltype(DeviceSet::pattern(estimate));
  const Bits half = Bits{1} << (bits - 1), low = (Bits{1} << bits) - 1;
  const Bits base = DeviceSet::pattern(estimate);
  return DeviceSet::number(base + ((code - base + half) & low) - half);
}

//! In apply: which old values of an element its codes will not give, in the order in which the rule
//! names them.
template <class Rule, class T>
struct DeviceKeeper {
  using Layout = ExactLayout<Rule, T>;
  using Real = kernel::Lanes<T, DeviceSet>;
  T old[Layout::arrays];    // by array
  T named[Layout::arrays];  // in the rule's order
  unsigned calls = 0, whole = 0;

  MEND_RECORD void keep(std::size_t k, const Real& now, const Real& remainder) {
    const T factor = static_cast<T>(1u << (Layout::bits(k) - 1));
    named[calls] = old[k];
    whole |= (outside(now.pack(), remainder.pack(), factor) ? 1u : 0u) << calls;
    ++calls;
  }
};

//! The lanes before this one.
__device__ inline unsigned lanes_before() { return (1u << lane()) - 1; }

//! A list of whole values that the lanes of a warp read together, in the order of writing.
template <class T>
struct WholeValues {
  const T* next;

  //! All lanes call it; those that want one get their value, others keep x.
  __device__ T take(bool wanted, T x) {
    const unsigned lanes = __ballot_sync(whole_warp, wanted ? 1 : 0);
    if (wanted) x = next[__popc(lanes & lanes_before())];
    next += __popc(lanes);
    return x;
  }
};

//! In revert: old values out of their codes, or out of the list.
template <class Rule, class T>
struct DeviceRecaller {
  using Layout = ExactLayout<Rule, T>;
  using Real = kernel::Lanes<T, DeviceSet>;
  std::uint32_t code;
  bool valid;
  WholeValues<T>& list;

  MEND_RECORD void recall(std::size_t k, Real& x, const Real& remainder, const Real& estimate) {
    const T factor = static_cast<T>(1u << (Layout::bits(k) - 1));
    const bool whole = valid && outside(x.pack(), remainder.pack(), factor);
    x = Real::of(
        list.take(whole, decoded(estimate.pack(), code >> Layout::shift(k), Layout::bits(k))));
  }
};

//! What a lane works on: its parameters of one group.
template <class Rule, class T>
struct ExactGroup {
  using Layout = ExactLayout<Rule, T>;
  using Real = kernel::Lanes<T, DeviceSet>;
  static constexpr unsigned arrays = Layout::arrays, rows = Layout::rows, width = Layout::width;

  T state[rows][arrays];
  Real gradient[rows];  // scaled
  unsigned valid = 0;   // rows within the tensor

  //! The first of `width` parameters side by side.
  __device__ static std::size_t place(std::size_t begin, unsigned part) {
    return begin + (part * warp_size + lane()) * width;
  }
  __device__ static T* array(const Parameter<Rule, T>& t, unsigned k) {
    if constexpr (arrays > 1)
      if (k > 0) return t.slots[k - 1];
    return t.value;
  }

  template <DType gradient_type>
  __device__ void load(const Parameter<Rule, T>& t, std::size_t begin, std::size_t end,
                       T gradient_scale) {
    using Gradient = Stored<gradient_type>;
    using Element = typename Gradient::Element;
    const auto* g = static_cast<const Element*>(t.gradient);
    const bool vectors =
        state_aligned(t) && gradient_aligned<Element>(t) && end - begin >= Layout::group;
    for (unsigned part = 0; part < rows / width; ++part) {
      const std::size_t at = place(begin, part);
      Vector<Element, width> gradients;
      if (vectors) {
        for (unsigned k = 0; k < arrays; ++k) {
          const auto v = Vector<T, width>::load(array(t, k) + at);
          for (unsigned i = 0; i < width; ++i) state[part * width + i][k] = v.values[i];
        }
        gradients = Vector<Element, width>::load(g + at);
        valid |= ((1u << width) - 1) << part * width;
      } else {
        for (unsigned i = 0; i < width; ++i) {
          const bool inside = at + i < end;
          for (unsigned k = 0; k < arrays; ++k)
            state[part * width + i][k] = inside ? array(t, k)[at + i] : T{0};
          gradients.values[i] = inside ? g[at + i] : Element{0};
          valid |= (inside ? 1u : 0u) << (part * width + i);
        }
      }
      for (unsigned i = 0; i < width; ++i)
        gradient[part * width + i] = Gradient::load(&gradients.values[i]) * Real{gradient_scale};
    }
  }
  __device__ void store(const Parameter<Rule, T>& t, std::size_t begin, std::size_t end) const {
    const bool vectors = state_aligned(t) && end - begin >= Layout::group;
    for (unsigned part = 0; part < rows / width; ++part) {
      const std::size_t at = place(begin, part);
      for (unsigned k = 0; k < arrays; ++k) {
        Vector<T, width> v;
        for (unsigned i = 0; i < width; ++i) v.values[i] = state[part * width + i][k];
        if (vectors) {
          v.store(array(t, k) + at);
        } else {
          for (unsigned i = 0; i < width; ++i)
            if (at + i < end) array(t, k)[at + i] = v.values[i];
        }
      }
    }
  }

  __device__ static Slots<Real, arrays - 1> slots_of(const T (&row)[arrays]) {
    Slots<Real, arrays - 1> slots;
    if constexpr (arrays > 1)
      for (unsigned k = 1; k < arrays; ++k) slots[k - 1] = Real{row[k]};
    return slots;
  }
  //! A row after a rule, with the one NaN.
  __device__ static void put(T (&row)[arrays], const Real& p,
                             const Slots<Real, arrays - 1>& slots) {
    one_nan(p).store(&row[0]);
    if constexpr (arrays > 1)
      for (unsigned k = 1; k < arrays; ++k) one_nan(slots[k - 1]).store(&row[k]);
  }
};

//! Updates a group and keeps its old values, unless there is no place for those that must be kept
//! whole. own: where the warp's list goes on.
template <class Rule, class T, DType gradient_type>
__device__ void apply_group(const Parameter<Rule, T>& t, std::size_t begin, std::size_t end,
                            const typename Rule::Coefficients& c, T gradient_scale, bool all_raw,
                            const ExactView<T>& record, std::size_t index, std::uint64_t& own,
                            std::uint64_t own_end) {
  using Layout = ExactLayout<Rule, T>;
  using Real = kernel::Lanes<T, DeviceSet>;
  constexpr unsigned arrays = Layout::arrays, rows = Layout::rows;
  ExactGroup<Rule, T> group;
  group.template load<gradient_type>(t, begin, end, gradient_scale);
  T old[rows][arrays];    // by array
  T named[rows][arrays];  // in the order of the list
  unsigned whole[rows];   // bits: which of them must be in the list
  std::uint32_t codes = 0;
  bool raw = all_raw;
  for (unsigned row = 0; row < rows; ++row) {
    for (unsigned k = 0; k < arrays; ++k) {
      const T x = old[row][k] = group.state[row][k];
      if constexpr (requires { Rule::kept_bits; })
        raw = raw || DeviceSet::pattern(x) == DeviceSet::pattern(-T{0});
    }
    auto slots = group.slots_of(old[row]);
    Real p{old[row][0]};
    if constexpr (requires { Rule::kept_bits; }) {
      DeviceKeeper<Rule, T> keeper;
      for (unsigned k = 0; k < arrays; ++k) keeper.old[k] = old[row][k];
      Rule::apply(p, slots, group.gradient[row], c, keeper);
      group.put(group.state[row], p, slots);
      for (unsigned k = 0; k < arrays; ++k) {
        named[row][k] = keeper.named[k];
        const std::uint32_t low = (1u << Layout::bits(k)) - 1;
        codes |= (static_cast<std::uint32_t>(DeviceSet::pattern(old[row][k])) & low)
                 << (row * Layout::element_bits + Layout::shift(k));
      }
      whole[row] = keeper.whole;
    } else {  // what the rule's own inverse gives, and how far off it is; 15: too far
      Rule::template apply<Real>(p, slots, group.gradient[row], c);
      group.put(group.state[row], p, slots);
      T estimate[arrays];
      slots = group.slots_of(group.state[row]);
      p = Real{group.state[row][0]};
      Rule::template revert<Real>(p, slots, group.gradient[row], c);
      group.put(estimate, p, slots);
      whole[row] = 0;
      for (unsigned k = 0; k < arrays; ++k) {
        named[row][k] = old[row][k];
        auto code = DeviceSet::pattern(old[row][k]) - DeviceSet::pattern(estimate[k]) + 7;
        code = code < 15 ? code : 15;
        whole[row] |= (code == 15 ? 1u : 0u) << k;
        codes |= static_cast<std::uint32_t>(code)
                 << (row * Layout::element_bits + Layout::shift(k));
      }
    }
    if ((group.valid >> row & 1) == 0) whole[row] = 0;
  }

  raw = __any_sync(whole_warp, raw ? 1 : 0) != 0;
  unsigned count = raw ? rows * arrays * warp_size : 0;
  if (!raw)
    for (unsigned row = 0; row < rows; ++row)
      for (unsigned k = 0; k < arrays; ++k)
        count += static_cast<unsigned>(
            __popc(__ballot_sync(whole_warp, static_cast<int>(whole[row] >> k & 1))));

  std::uint64_t place = own;
  if (own + count <= own_end) {
    own += count;
  } else {
    using Word = unsigned long long;
    if (lane() == 0)
      place = atomicAdd(reinterpret_cast<Word*>(record.taken), static_cast<Word>(count));
    place = __shfl_sync(whole_warp, place, 0);
    if (place + count > record.shared) {
      if (lane() == 0) *record.refused = 1;
      return;
    }
    place += record.own;
  }
  T* to = record.values + place;
  for (unsigned row = 0; row < rows; ++row)
    for (unsigned k = 0; k < arrays; ++k) {
      if (raw) {
        to[lane()] = old[row][k];
        to += warp_size;
      } else {
        const bool mine = (whole[row] >> k & 1) != 0;
        const unsigned lanes = __ballot_sync(whole_warp, mine ? 1 : 0);
        if (mine) to[__popc(lanes & lanes_before())] = named[row][k];
        to += __popc(lanes);
      }
    }
  record.codes[index * warp_size + lane()] = codes;
  if (lane() == 0) record.places[index] = raw ? place | GroupPlace::raw : place;
  group.store(t, begin, end);
}

//! Takes a group back to the bits that it had.
template <class Rule, class T, DType gradient_type>
__device__ void revert_group(const Parameter<Rule, T>& t, std::size_t begin, std::size_t end,
                             const typename Rule::Coefficients& c, T gradient_scale,
                             const ExactView<T>& record, std::size_t index) {
  using Layout = ExactLayout<Rule, T>;
  using Real = kernel::Lanes<T, DeviceSet>;
  constexpr unsigned arrays = Layout::arrays, rows = Layout::rows;
  const std::uint64_t place = record.places[index];
  ExactGroup<Rule, T> group;
  group.template load<gradient_type>(t, begin, end, gradient_scale);
  WholeValues<T> list{record.values + (place & ~GroupPlace::raw)};
  if ((place & GroupPlace::raw) != 0) {
    for (unsigned row = 0; row < rows; ++row)
      for (unsigned k = 0; k < arrays; ++k) group.state[row][k] = list.take(true, T{0});
  } else {
    std::uint32_t codes = record.codes[index * warp_size + lane()];
    for (unsigned row = 0; row < rows; ++row) {
      const bool valid = (group.valid >> row & 1) != 0;
      auto slots = group.slots_of(group.state[row]);
      Real p{group.state[row][0]};
      if constexpr (requires { Rule::kept_bits; }) {
        DeviceRecaller<Rule, T> recaller{codes, valid, list};
        Rule::revert(p, slots, group.gradient[row], c, recaller);
        p.store(&group.state[row][0]);
        if constexpr (arrays > 1)
          for (unsigned k = 1; k < arrays; ++k) slots[k - 1].store(&group.state[row][k]);
      } else {
        T estimate[arrays];
        Rule::template revert<Real>(p, slots, group.gradient[row], c);
        group.put(estimate, p, slots);
        for (unsigned k = 0; k < arrays; ++k) {
          const std::uint32_t code = codes >> Layout::shift(k) & 15;
          group.state[row][k] = list.take(
              valid && code == 15, DeviceSet::number(DeviceSet::pattern(estimate[k]) + code - 7));
        }
      }
      if constexpr (rows > 1) codes >>= Layout::element_bits;
    }
  }
  group.store(t, begin, end);
}

template <class Rule, bool forward, class T, class View>
__global__ void __launch_bounds__(block_size)
    update_exactly(View table, typename Rule::Coefficients common,
                   const typename Rule::Coefficients* each, T gradient_scale, bool all_raw,
                   bool again, ExactView<T> record) {
  using Layout = ExactLayout<Rule, T>;
  const auto share = table.share_of_block();
  const Parameter<Rule, T>& t = share.entry;
  const typename Rule::Coefficients c = each != nullptr ? each[share.index] : common;
  const std::size_t warp = threadIdx.x / warp_size;
  const std::size_t first = (std::size_t{blockIdx.x} * Layout::warps + warp) * Layout::groups;
  std::uint64_t own = (std::size_t{blockIdx.x} * Layout::warps + warp) * Layout::quota;
  const std::uint64_t own_end = again ? own : own + Layout::quota;
  for (unsigned i = 0; i < Layout::groups; ++i) {
    const std::size_t begin = share.begin + (warp * Layout::groups + i) * Layout::group;
    if (begin >= share.end) return;
    const bool updated = record.places[first + i] != GroupPlace::none;
    if (updated == forward) continue;
    for_gradient<T>(t.gradient_type, [&]<DType type>(Stored<type>) {
      if constexpr (forward)
        apply_group<Rule, T, type>(t, begin, share.end, c, gradient_scale, all_raw, record,
                                   first + i, own, own_end);
      else
        revert_group<Rule, T, type>(t, begin, share.end, c, gradient_scale, record, first + i);
    });
  }
}

}  // namespace detail

//! Updates tensors as apply_async does, to the same bits, and keeps what it takes to restore the
//! very bits from before: the low bits of every old value, and whole those few that low bits and
//! the new state do not determine (kernel/host/exact.hpp; optim/bounded_rule.hpp). Owns its memory:
//! for Adam 12.5 bits a parameter and `spare`, for values beyond an eighth of one a parameter.
template <class Rule, class T = float>
class ExactRecord {
  using Layout = detail::ExactLayout<Rule, T>;
  using Coefficients = typename Rule::Coefficients;

 public:
  //! spare: how many values more. In the first steps many must be kept whole (22.9 bits a parameter
  //! for Adam's second), as must all of a group of 128 parameters with a negative zero.
  //! Blocks: until the lists are on the device. Throws DeviceError.
  ExactRecord(const Parameters<Rule, T>& tensors, std::size_t spare, cudaStream_t stream)
      : table_{{tensors.entries().begin(), tensors.entries().end()}, stream},
        codes_{groups() * warp_size},
        places_{groups()},
        values_{own() + spare},
        taken_{1},
        refused_{1} {
    drop_async(stream);
  }

  //! Updates all tensors that are not updated yet. all_raw: keep all old values whole, as must be
  //! where coefficients are not `bounded`. Gradients must stay as they are until the record is
  //! dropped. A group for whose values no room is left is not updated: see complete.
  //! Blocks: no. Throws DeviceError. Cost for Adam: about one byte more per parameter than the 28
  //! that move anyway.
  void apply_async(const Coefficients& c, T gradient_scale, cudaStream_t stream,
                   bool all_raw = false) {
    start<true>(c, nullptr, gradient_scale, all_raw, stream);
  }
  //! The same with coefficients for every tensor.
  void apply_async(const CoefficientList<Rule>& c, T gradient_scale, cudaStream_t stream,
                   bool all_raw = false) {
    start<true>(Coefficients{}, c.data(), gradient_scale, all_raw, stream);
  }
  //! Whether the last apply_async found room for all. If not, there is more now, and another
  //! apply_async, with the same arguments, updates the rest. Blocks: until the stream has come so
  //! far. Throws DeviceError.
  [[nodiscard]] bool complete(cudaStream_t stream) {
    int refused = 0;
    copy_async<int>(refused_, std::span{&refused, 1}, stream);
    std::uint64_t taken = 0;
    copy_async<std::uint64_t>(taken_, std::span{&taken, 1}, stream);
    check(cudaStreamSynchronize(stream));
    if (refused != 0) grow(taken, stream);
    return refused == 0;
  }

  //! Takes back what was updated, to the same bits; with the same arguments and gradients. Blocks:
  //! no. Throws DeviceError.
  void revert_async(const Coefficients& c, T gradient_scale, cudaStream_t stream) {
    start<false>(c, nullptr, gradient_scale, false, stream);
    drop_async(stream);
  }
  void revert_async(const CoefficientList<Rule>& c, T gradient_scale, cudaStream_t stream) {
    start<false>(Coefficients{}, c.data(), gradient_scale, false, stream);
    drop_async(stream);
  }
  //! Forgets the old values: the update stands. Blocks: no. Throws DeviceError.
  void drop_async(cudaStream_t stream) {
    fill_async<std::uint64_t>(places_, 0xff, stream);  // GroupPlace::none
    fill_async<std::uint64_t>(taken_, 0, stream);
    fill_async<int>(refused_, 0, stream);
    again_ = false;
  }

  //! Bytes that the record holds.
  [[nodiscard]] std::size_t bytes() const {
    return codes_.size() * sizeof(std::uint32_t) + places_.size() * sizeof(std::uint64_t) +
           values_.size() * sizeof(T);
  }

 private:
  [[nodiscard]] std::size_t groups() const {
    return table_.chunks() * Layout::warps * Layout::groups;
  }
  [[nodiscard]] std::size_t own() const { return table_.chunks() * Layout::warps * Layout::quota; }

  template <bool forward>
  void start(const Coefficients& c, const Coefficients* each, T gradient_scale, bool all_raw,
             cudaStream_t stream) {
    using View = typename decltype(table_)::View;
    const detail::ExactView<T> record{codes_.data(), places_.data(),         values_.data(), own(),
                                      taken_.data(), values_.size() - own(), refused_.data()};
    Launch{table_.chunks(), stream}(&detail::update_exactly<Rule, forward, T, View>, table_.view(),
                                    c, each, gradient_scale, all_raw, again_, record);
    if (forward) again_ = true;
  }
  //! Room for what was asked for: what was granted of it stays where it is.
  void grow(std::uint64_t asked, cudaStream_t stream) {
    Buffer<T> more{own() + 2 * static_cast<std::size_t>(asked)};
    copy_async<T>(values_, span<T>{more}.subspan(0, values_.size()), stream);
    fill_async<int>(refused_, 0, stream);
    check(cudaStreamSynchronize(stream));
    values_ = std::move(more);
  }

  Table<Parameter<Rule, T>, Layout::chunk> table_;
  Buffer<std::uint32_t> codes_;
  Buffer<std::uint64_t> places_;
  Buffer<T> values_;
  Buffer<std::uint64_t> taken_;
  Buffer<int> refused_;
  bool again_ = false;
};

}  // namespace mend::cuda

#undef MEND_RECORD
