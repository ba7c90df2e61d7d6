#pragma once

#include <cstddef>
#include <span>

#include "mend/core/byte_count.hpp"
#include "mend/core/policy.hpp"
#include "mend/kernel/host/apply.hpp"
#include "mend/optim/undo/record.hpp"

namespace mend {

//! Policy, opt-in: an update is taken back by the rule's own revert, as in the literature. Keeps
//! nothing, and does NOT restore the same bits: after a recovery all ranks take over the state of
//! one of them, so they agree, but the run differs in the last places from one without failures,
//! and a worker that is lost while they do so may end the run.
struct ApproximateUndo {
  using kind = mend::kind::undo;
  static constexpr bool reverts = true, exact = false;

  template <Rule R>
  class Record {
    static_assert(InvertibleOptimizer<R>,
                  "ApproximateUndo needs a rule with revert (mend::InvertibleOptimizer); "
                  "SnapshotUndo and PingPong serve every rule");

   public:
    void reserve(std::span<const UndoTensor> tensors) { chunks_.reserve(tensors); }
    template <class T>
    void apply(std::size_t i, std::size_t first, const UpdateRange<R, T>& r) {
      detail::for_each_chunk(
          r.n, [&](std::size_t at, std::size_t) { chunks_.note(chunks_.index(i, first + at)); });
      kernel::apply<R>(r.coefficients, r.p, r.slots, r.g, r.n, r.gradient_scale);
    }
    template <class T>
    void revert(std::size_t i, std::size_t first, const UpdateRange<R, T>& range) {
      detail::for_each_chunk(range.n, [&](std::size_t at, std::size_t size) {
        if (!chunks_.take(chunks_.index(i, first + at))) return;
        const auto r = range.part(at, size);
        kernel::revert<R>(r.coefficients, r.p, r.slots, r.g, r.n, r.gradient_scale);
      });
    }
    void drop() { chunks_.drop(); }
    [[nodiscard]] ByteCount memory() const { return ByteCount{chunks_.size()}; }

   private:
    detail::UndoChunks chunks_;
  };
};
static_assert(UndoPolicy<ApproximateUndo>);

}  // namespace mend
