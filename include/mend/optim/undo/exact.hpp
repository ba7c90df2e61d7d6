#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <vector>

#include "mend/core/arena.hpp"
#include "mend/core/byte_count.hpp"
#include "mend/core/error.hpp"
#include "mend/core/policy.hpp"
#include "mend/kernel/host/exact.hpp"
#include "mend/optim/bounded_rule.hpp"
#include "mend/optim/undo/page_stack.hpp"
#include "mend/optim/undo/record.hpp"

namespace mend {

//! Policy: an update is taken back to the very bits, from a record of about one byte per parameter
//! (Adam: 8.9 bits in the long run) that is written in the same pass over memory. For rules that
//! can be inverted; those that state bounds (BoundedOptimizer: all of mend's) are fastest, for
//! others the rule's revert is tried at once and what it misses is kept. Kept whole, in 32 bits per
//! value: what bounds do not cover (large changes of a slot, as in the first steps; infinities,
//! NaNs, negative zeros), and whole chunks where the coefficients lie outside the rule's bounds or
//! the value is stored in bf16 or f16. The record grows as it must and shrinks again; where memory
//! runs out the step throws StateError with every chunk whole.
struct ExactUndo {
  using kind = mend::kind::undo;
  static constexpr bool reverts = true, exact = true;

  template <Rule R>
  class Record {
    static_assert(InvertibleOptimizer<R>,
                  "ExactUndo needs a rule with revert (mend::InvertibleOptimizer); SnapshotUndo "
                  "and PingPong serve every rule");

   public:
    //! Throws StateError where the memory does not exist.
    void reserve(std::span<const UndoTensor> tensors) {
      updated_.reserve(tensors);
      chunks_.assign(updated_.size(), {});
      tensors_.clear();
      std::size_t bytes = 0;
      for (const UndoTensor& t : tensors) {
        tensors_.push_back({bytes, t.rounded});
        if (!t.rounded) bytes += kernel::exact_codes_bytes<R>(t.count);
      }
      codes_ = Arena{ByteCount{bytes}};
    }

    template <class T>
    void apply(std::size_t i, std::size_t first, const UpdateRange<R, T>& range) {
      const bool whole = tensors_[i].rounded || !bounded(range.coefficients);
      std::unique_ptr<Scratch> scratch = whole ? nullptr : take_scratch();
      int copied = 0;  // chunks that are kept whole before codes are tried again
      detail::for_each_chunk(range.n, [&](std::size_t at, std::size_t size) {
        const std::size_t index = updated_.index(i, first + at);
        Chunk& chunk = chunks_[index];
        if (whole || copied > 0) {
          keep_whole(chunk, range.part(at, size));
          --copied;
        } else {
          keep_codes(chunk, range.part(at, size), codes_of(i, first + at), *scratch);
          if (chunk.values > arrays * size / 2) copied = 7;  // as in the first step: mostly values
        }
        updated_.note(index);
      });
      if (scratch) give_back(std::move(scratch));
    }

    template <class T>
    void revert(std::size_t i, std::size_t first, const UpdateRange<R, T>& range) {
      detail::for_each_chunk(range.n, [&](std::size_t at, std::size_t size) {
        const std::size_t index = updated_.index(i, first + at);
        if (!updated_.take(index)) return;
        const Chunk& chunk = chunks_[index];
        auto r = range.part(at, size);
        T* values = reinterpret_cast<T*>(chunk.data);
        if (chunk.whole) {
          std::memcpy(r.p, values, size * sizeof(T));
          for (T* slot : r.slots) std::memcpy(slot, values += size, size * sizeof(T));
          return;
        }
        kernel::revert_exact<R>(
            r.coefficients, r.p, r.slots, r.g, r.n, r.gradient_scale,
            kernel::ExactRecord<T>{codes_of(i, first + at), values, values + chunk.values},
            {chunk.values, chunk.groups});
      });
    }

    void drop() {
      updated_.drop();
      pages_.clear();
    }
    [[nodiscard]] ByteCount memory() const {
      return ByteCount{codes_.size() + pages_.size() + chunks_.size() * (sizeof(Chunk) + 1) +
                       scratches_.size() * sizeof(Scratch)};
    }
    //! What a step needed of it, up to now: codes and what was kept whole. For benchmarks.
    [[nodiscard]] ByteCount used() const {
      return ByteCount{codes_.size() + pages_.used() + chunks_.size() * (sizeof(Chunk) + 1)};
    }

   private:
    static constexpr std::size_t arrays = 1 + R::slots.size();

    struct Chunk {
      std::byte* data = nullptr;  // values, then groups; or all arrays
      std::uint32_t values = 0;
      std::uint32_t groups : 31 = 0;
      std::uint32_t whole : 1 = 0;
    };
    struct Tensor {
      std::size_t codes;  // where they begin
      bool rounded;
    };
    //! The worst case of one chunk, of which mostly the beginning is used.
    struct Scratch {
      alignas(64) double values[kernel::exact_values_size<R>(undo_chunk)];
      double groups[kernel::exact_groups_size<R>(undo_chunk)];
    };

    static bool bounded(const typename R::Coefficients& c) {
      if constexpr (BoundedOptimizer<R>)
        return R::bounded(c);
      else
        return true;
    }
    std::byte* codes_of(std::size_t i, std::size_t at) {
      return codes_.data() + tensors_[i].codes + at * kernel::exact_codes_bits<R>() / 8;
    }

    template <class T>
    void keep_whole(Chunk& chunk, const UpdateRange<R, T>& r) {
      std::byte* to = take(arrays * r.n * sizeof(T));
      chunk = {to, 0, 0, 1};
      std::memcpy(to, r.p, r.n * sizeof(T));
      for (const T* slot : r.slots) std::memcpy(to += r.n * sizeof(T), slot, r.n * sizeof(T));
      kernel::apply<R>(r.coefficients, r.p, r.slots, r.g, r.n, r.gradient_scale);
    }
    template <class T>
    void keep_codes(Chunk& chunk, const UpdateRange<R, T>& r, std::byte* codes, Scratch& scratch) {
      const kernel::ExactRecord<T> record{codes, reinterpret_cast<T*>(scratch.values),
                                          reinterpret_cast<T*>(scratch.groups)};
      const kernel::ExactSizes sizes =
          kernel::apply_exact<R>(r.coefficients, r.p, r.slots, r.g, r.n, r.gradient_scale, record);
      std::byte* to = nullptr;
      try {
        to = take((sizes.values + sizes.groups) * sizeof(T));
      } catch (...) {  // the chunk is as it was before the error leaves
        kernel::revert_exact<R>(r.coefficients, r.p, r.slots, r.g, r.n, r.gradient_scale, record,
                                sizes);
        throw;
      }
      std::memcpy(to, record.values, sizes.values * sizeof(T));
      std::memcpy(to + sizes.values * sizeof(T), record.groups, sizes.groups * sizeof(T));
      chunk = {to, static_cast<std::uint32_t>(sizes.values),
               static_cast<std::uint32_t>(sizes.groups) & 0x7fffffffu, 0};
    }

    std::byte* take(std::size_t bytes) {
      std::lock_guard lock{mutex_};
      return pages_.take(bytes);
    }
    std::unique_ptr<Scratch> take_scratch() {
      std::lock_guard lock{mutex_};
      if (scratches_.empty()) {
        std::unique_ptr<Scratch> scratch{new (std::nothrow) Scratch};  // not zeroed
        if (!scratch) throw StateError{"no memory for an exact record"};
        return scratch;
      }
      std::unique_ptr<Scratch> scratch = std::move(scratches_.back());
      scratches_.pop_back();
      return scratch;
    }
    void give_back(std::unique_ptr<Scratch> scratch) {
      std::lock_guard lock{mutex_};
      scratches_.push_back(std::move(scratch));
    }

    std::vector<Tensor> tensors_;
    detail::UndoChunks updated_;
    std::vector<Chunk> chunks_;
    Arena codes_;
    std::mutex mutex_;
    detail::PageStack pages_;  // under the mutex
    std::vector<std::unique_ptr<Scratch>> scratches_;
  };
};
static_assert(UndoPolicy<ExactUndo>);

}  // namespace mend
