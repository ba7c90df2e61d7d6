#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "mend/core/arena.hpp"
#include "mend/core/byte_count.hpp"
#include "mend/core/policy.hpp"
#include "mend/kernel/host/apply_apart.hpp"
#include "mend/optim/undo/record.hpp"

namespace mend {

//! Policy: every slot exists twice, and an update writes the one that is not current, so that
//! taking it back is a swap of pointers. Parameters belong to the trainer and stay where they are:
//! their old values are copied in the same pass. For every rule and any values. Costs as much
//! memory as values and slots, and little time, since what is written is not read first.
struct PingPong {
  using kind = mend::kind::undo;
  static constexpr bool reverts = true, exact = true;

  template <Rule R>
  class Record {
   public:
    //! Throws StateError where the memory does not exist.
    void reserve(std::span<const UndoTensor> tensors) {
      chunks_.reserve(tensors);
      tensors_.assign(tensors.size(), {});
      std::size_t bytes = 0;
      for (const UndoTensor& t : tensors)
        bytes += arrays * Arena::aligned(t.count * size_of(t.dtype));
      memory_ = Arena{ByteCount{bytes}};
      std::byte* at = memory_.data();
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        const std::size_t size = Arena::aligned(tensors[i].count * size_of(tensors[i].dtype));
        tensors_[i].values = at;
        at += size;
        for (std::byte*& slot : tensors_[i].slots) {
          slot = at;
          at += size;
        }
      }
    }

    template <class T>
    void apply(std::size_t i, std::size_t first, const UpdateRange<R, T>& r) {
      std::array<const T*, R::slots.size()> slots{};
      std::array<T*, R::slots.size()> others{};
      for (std::size_t k = 0; k != slots.size(); ++k) {
        slots[k] = r.slots[k];
        others[k] = reinterpret_cast<T*>(tensors_[i].slots[k]) + first;
      }
      detail::for_each_chunk(
          r.n, [&](std::size_t at, std::size_t) { chunks_.note(chunks_.index(i, first + at)); });
      kernel::apply_apart<R>(r.coefficients, r.p, old_values<T>(i) + first, slots, others, r.g, r.n,
                             r.gradient_scale);
    }

    template <class T>
    void revert(std::size_t i, std::size_t first, const UpdateRange<R, T>& r) {
      detail::for_each_chunk(r.n, [&](std::size_t at, std::size_t size) {
        if (chunks_.take(chunks_.index(i, first + at)))
          std::memcpy(r.p + at, old_values<T>(i) + first + at, size * sizeof(T));
      });
    }

    //! After a tensor's update or its undo: the other slots are current, if that one happened.
    void exchange(std::size_t i, std::array<std::byte*, R::slots.size()>& slots) {
      std::swap(tensors_[i].slots, slots);
    }

    void drop() { chunks_.drop(); }
    [[nodiscard]] ByteCount memory() const { return ByteCount{memory_.size() + chunks_.size()}; }

   private:
    static constexpr std::size_t arrays = 1 + R::slots.size();

    struct Tensor {
      std::byte* values = nullptr;                      // old ones
      std::array<std::byte*, R::slots.size()> slots{};  // those that are not current
    };

    template <class T>
    T* old_values(std::size_t i) {
      return reinterpret_cast<T*>(tensors_[i].values);
    }

    Arena memory_;
    std::vector<Tensor> tensors_;
    detail::UndoChunks chunks_;
  };
};
static_assert(UndoPolicy<PingPong>);

}  // namespace mend
