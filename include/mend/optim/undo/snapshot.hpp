#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "mend/core/arena.hpp"
#include "mend/core/byte_count.hpp"
#include "mend/core/policy.hpp"
#include "mend/kernel/host/apply.hpp"
#include "mend/optim/undo/record.hpp"

namespace mend {

//! Policy: values and slots are copied before their update and put back if the step fails. For
//! every rule, also one that cannot be inverted, and for any values. Costs as much memory as values
//! and slots, and a copy of them per step, chunk by chunk while they are in the cache.
struct SnapshotUndo {
  using kind = mend::kind::undo;
  static constexpr bool reverts = true, exact = true;

  template <Rule R>
  class Record {
   public:
    //! Throws StateError where the memory does not exist.
    void reserve(std::span<const UndoTensor> tensors) {
      chunks_.reserve(tensors);
      offsets_.clear();
      std::size_t bytes = 0;
      for (const UndoTensor& t : tensors) {
        offsets_.push_back(bytes);
        bytes += arrays * t.count * size_of(t.dtype);
      }
      copies_ = Arena{ByteCount{bytes}};
    }

    template <class T>
    void apply(std::size_t i, std::size_t first, const UpdateRange<R, T>& range) {
      detail::for_each_chunk(range.n, [&](std::size_t at, std::size_t size) {
        auto r = range.part(at, size);
        T* to = copy_of<T>(i, first + at);
        std::memcpy(to, r.p, size * sizeof(T));
        for (const T* slot : r.slots) std::memcpy(to += size, slot, size * sizeof(T));
        chunks_.note(chunks_.index(i, first + at));
        kernel::apply<R>(r.coefficients, r.p, r.slots, r.g, r.n, r.gradient_scale);
      });
    }

    template <class T>
    void revert(std::size_t i, std::size_t first, const UpdateRange<R, T>& range) {
      detail::for_each_chunk(range.n, [&](std::size_t at, std::size_t size) {
        if (!chunks_.take(chunks_.index(i, first + at))) return;
        auto r = range.part(at, size);
        const T* from = copy_of<T>(i, first + at);
        std::memcpy(r.p, from, size * sizeof(T));
        for (T* slot : r.slots) std::memcpy(slot, from += size, size * sizeof(T));
      });
    }

    void drop() { chunks_.drop(); }
    [[nodiscard]] ByteCount memory() const { return ByteCount{copies_.size() + chunks_.size()}; }

   private:
    static constexpr std::size_t arrays = 1 + R::slots.size();

    //! A chunk's values and slots lie one after another.
    template <class T>
    T* copy_of(std::size_t i, std::size_t at) {
      return reinterpret_cast<T*>(copies_.data() + offsets_[i]) + arrays * at;
    }

    Arena copies_;
    std::vector<std::size_t> offsets_;  // per tensor, in bytes
    detail::UndoChunks chunks_;
  };
};
static_assert(UndoPolicy<SnapshotUndo>);

}  // namespace mend
