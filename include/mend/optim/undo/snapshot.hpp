#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "mend/core/arena.hpp"
#include "mend/core/byte_count.hpp"
#include "mend/core/error.hpp"
#include "mend/core/policy.hpp"
#include "mend/kernel/host/copy.hpp"
#include "mend/optim/undo/record.hpp"

namespace mend {

//! Policy: a bucket's values and slots are copied before its update and put back if the step fails.
//! For every rule, also one that cannot be inverted, and for any values. Costs as much memory as
//! values and slots, and a copy of them per step.
struct SnapshotUndo {
  using kind = mend::kind::undo;
  static constexpr bool reverts = true;

  class Record {
   public:
    //! Throws StateError where the memory does not exist.
    void reserve(std::size_t buckets, ByteCount bytes) {
      copies_ = Arena{bytes};
      buckets_.assign(buckets, {});
      used_ = 0;
    }

    //! Throws StateError, before it writes anything, for a bucket or bytes beyond what was
    //! reserved.
    void save(std::size_t bucket, std::span<const StateSpan> state) {
      if (bucket < buckets_.size() && buckets_[bucket].saved) return;
      std::size_t bytes = 0;
      for (StateSpan array : state) bytes += array.size();
      if (bucket >= buckets_.size() || bytes > copies_.size() - used_)
        throw StateError{"SnapshotUndo: bucket " + std::to_string(bucket) + " with " +
                         std::to_string(bytes) + " bytes is beyond what was reserved"};
      Bucket& b = buckets_[bucket];
      b.state.assign(state.begin(), state.end());
      b.offset = used_;
      for (StateSpan array : state) {
        kernel::copy(copies_.data() + used_, array.data(), array.size());
        used_ += array.size();
      }
      b.saved = true;
    }

    [[nodiscard]] bool restore(std::size_t bucket) {
      if (bucket >= buckets_.size() || !buckets_[bucket].saved) return false;
      const std::byte* from = copies_.data() + buckets_[bucket].offset;
      for (StateSpan array : buckets_[bucket].state) {
        kernel::copy(array.data(), from, array.size());
        from += array.size();
      }
      return true;
    }

    void drop() {
      for (Bucket& b : buckets_) b.saved = false;
      used_ = 0;
    }

    [[nodiscard]] ByteCount memory() const { return ByteCount{copies_.size()}; }

   private:
    struct Bucket {
      std::vector<StateSpan> state;
      std::size_t offset = 0;  // in copies_
      bool saved = false;
    };

    Arena copies_;
    std::vector<Bucket> buckets_;
    std::size_t used_ = 0;
  };
};
static_assert(UndoPolicy<SnapshotUndo>);

}  // namespace mend
