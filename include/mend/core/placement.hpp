#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "mend/config.hpp"

namespace mend {

//! Equal on every rank of the group; a survivor's copy is as good as one's own. The default.
struct Replicated {};

//! What becomes of per-rank state when a checkpoint is restored on another number of ranks.
enum class OnResize : std::uint8_t {
  refuse,      //!< an error: nobody but the trainer knows what is right
  reset,       //!< it stays as the trainer registered it
  from_rank_0  //!< every rank takes rank 0's
};

//! Differs from rank to rank. mend keeps `copies` of it on the next ranks, refreshed at every
//! commit; with 0 only checkpoints hold it.
struct PerRank {
  int copies = 1;
  OnResize on_resize = OnResize::refuse;
};

//! This rank's block of a global array, so that a restart on another rank count can cut it anew.
//! of: the array's shape; at, extent: the block's offset and shape, in elements, row-major.
struct Slice {
  std::vector<std::int64_t> of, at, extent;
};

//! Where copies of a piece of state exist.
struct Placement {
  Placement(Replicated = {}) {}  // NOLINT: implicit by design
  Placement(PerRank p) : per_rank{true}, copies{p.copies}, on_resize{p.on_resize} {}  // NOLINT
  Placement(Slice slice_, PerRank p = {.copies = 0})                                  // NOLINT
      : per_rank{true}, copies{p.copies}, on_resize{p.on_resize}, slice{std::move(slice_)} {}

  bool per_rank = false;
  int copies = 0;
  OnResize on_resize = OnResize::refuse;
  Slice slice;
};

}  // namespace mend
