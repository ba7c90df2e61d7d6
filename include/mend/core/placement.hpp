#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "mend/config.hpp"

namespace mend {

//! Equal on every rank of the group; a survivor's copy is as good as one's own. The default.
struct Replicated {};

//! Differs from rank to rank. mend keeps `copies` of it on the next ranks, refreshed at every
//! commit; with 0 only checkpoints hold it.
struct PerRank {
  int copies = 1;
};

//! This rank's block of a global array, so that a restart on another rank count can cut it anew.
//! of: the array's shape; at, extent: the block's offset and shape, in elements, row-major.
struct Slice {
  std::vector<std::int64_t> of, at, extent;
};

//! Where copies of a piece of state exist.
struct Placement {
  Placement(Replicated = {}) {}  // NOLINT: implicit by design
  Placement(PerRank per_rank_) : per_rank{true}, copies{per_rank_.copies} {}  // NOLINT
  Placement(Slice slice_, PerRank p = {.copies = 0})                          // NOLINT
      : per_rank{true}, copies{p.copies}, slice{std::move(slice_)} {}

  bool per_rank = false;
  int copies = 0;
  Slice slice;
};

}  // namespace mend
