#pragma once

#include <cstdint>
#include <utility>

#include "mend/checkpoint/full_checkpoints.hpp"
#include "mend/core/byte_count.hpp"
#include "mend/core/error.hpp"
#include "mend/core/policy.hpp"
#include "mend/store/store.hpp"

namespace mend {

//! Policy: the whole state in a store, every so many steps and at the end, each rank a part of it;
//! written beside the training. When a run begins, or begins anew because all workers died, it goes
//! on from the newest checkpoint, on any number of ranks:
//!
//!   mend::FullCheckpointer{mend::Directory{"ckpt"}, {.every = 50, .keep = 2}}
//!
//! All ranks must reach the store: a directory lies on a file system that they share, or on the one
//! disk of one host. Where a checkpoint cannot be written the training goes on, the one before
//! stays, and Session::checkpoint_error() says why. Cost: the step after the snapshot waits until
//! the part is copied or written.
template <Store S>
class FullCheckpointer {
 public:
  using kind = mend::kind::recovery;
  using Checkpoints = checkpoint::FullCheckpoints<S>;

  //! The store by value. Throws OptionError for numbers that cannot work.
  explicit FullCheckpointer(S store, FullOptions options = {})
      : store_{std::move(store)}, options_{options} {
    auto positive = [](std::int64_t value, const char* what) {
      if (value < 1)
        throw OptionError{std::string{"FullCheckpointer: "} + what + " = " + std::to_string(value) +
                          " must be positive"};
    };
    positive(options.every, "every");
    positive(options.keep, "keep");
    if (options.keep_every < 0)
      throw OptionError{"FullCheckpointer: keep_every = " + std::to_string(options.keep_every) +
                        " must not be negative"};
  }

  [[nodiscard]] Checkpoints checkpoints() const { return Checkpoints{store_, options_}; }

 private:
  S store_;
  FullOptions options_;
};

}  // namespace mend
