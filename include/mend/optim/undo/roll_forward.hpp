#pragma once

#include <cstddef>
#include <span>

#include "mend/core/byte_count.hpp"
#include "mend/core/policy.hpp"
#include "mend/kernel/host/apply.hpp"
#include "mend/optim/undo/record.hpp"

namespace mend {

//! Policy, the default: updates start when all buckets are reduced, and one that a failure cut
//! short is finished from the reduced gradients, which live until the commit. Keeps nothing, costs
//! nothing.
struct RollForward {
  using kind = mend::kind::undo;
  static constexpr bool reverts = false, exact = true;

  template <Rule R>
  struct Record {
    void reserve(std::span<const UndoTensor>) {}
    template <class T>
    void apply(std::size_t, std::size_t, const UpdateRange<R, T>& r) {
      kernel::apply<R>(r.coefficients, r.p, r.slots, r.g, r.n, r.gradient_scale);
    }
    template <class T>
    void revert(std::size_t, std::size_t, const UpdateRange<R, T>&) {}
    void drop() {}
    [[nodiscard]] ByteCount memory() const { return {}; }
  };
};
static_assert(UndoPolicy<RollForward>);

}  // namespace mend
