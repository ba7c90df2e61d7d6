#pragma once

#include <cstddef>
#include <span>

#include "mend/core/byte_count.hpp"
#include "mend/core/policy.hpp"
#include "mend/optim/undo/record.hpp"

namespace mend {

//! Policy, the default: updates start when all buckets are reduced, and one that a failure cut
//! short is finished from the reduced gradients, which live until the commit. Keeps nothing, costs
//! nothing.
struct RollForward {
  using kind = mend::kind::undo;
  static constexpr bool reverts = false;

  struct Record {
    void reserve(std::size_t, ByteCount) {}
    void save(std::size_t, std::span<const StateSpan>) {}
    [[nodiscard]] bool restore(std::size_t) { return false; }
    void drop() {}
    [[nodiscard]] ByteCount memory() const { return {}; }
  };
};
static_assert(UndoPolicy<RollForward>);

}  // namespace mend
