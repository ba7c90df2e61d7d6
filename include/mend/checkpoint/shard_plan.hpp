#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "mend/checkpoint/place.hpp"
#include "mend/core/dtype.hpp"
#include "mend/core/train_state.hpp"

namespace mend::checkpoint {

//! What one of `parts` writers stores of a state: its share of what is replicated, and all of its
//! own per-rank entries. Tied entries are stored once.
//!
//! Replicated entries, one behind the other in the order of registration, are cut into equal
//! shares of bytes. An entry in which a share ends is cut there along its first dimension, to the
//! nearest row; where it is smaller than a sixteenth of a share, has no such dimension, or is a
//! state, it stays whole. So shares differ by no more than a row and an eighth, and at most
//! parts - 1 entries are cut. Derived from the registration alone: all ranks agree without talking.
//! Cost: linear in the entries, once per writer. The state must not take new entries while the plan
//! lives.
class ShardPlan {
 public:
  struct Piece {
    const TrainState::Entry* entry;
    Place place;
    Shape shape;         //!< of the piece; empty for a state, whose bytes are not known yet
    std::size_t offset;  //!< in the entry's value
    std::size_t bytes;   //!< 0 for a state
  };

  ShardPlan(const TrainState& state, int part, int parts) {
    std::uint64_t total = 0;
    for (const auto& e : state.entries()) total += shared_bytes(e);
    auto share = [&](int p) {
      auto n = static_cast<std::uint64_t>(parts), at = static_cast<std::uint64_t>(p);
      return total / n * at + total % n * at / n;
    };
    std::uint64_t begin = share(part), end = share(part + 1), least = share(1) / 16, at = 0;
    for (const auto& e : state.entries()) {
      if (!e.tied_to.empty()) continue;
      if (e.placement.per_rank) {
        add_whole(e);
        continue;
      }
      std::uint64_t n = shared_bytes(e), middle = at + n / 2;
      if (n > least && !e.shape.empty() && e.shape[0] > 1)
        add_rows(e, row_at(e, begin, at, n), row_at(e, end, at, n));
      else if (middle >= total ? part == parts - 1 : begin <= middle && middle < end)
        add_whole(e);
      at += n;
    }
    std::stable_sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
      return size_of(a.entry->dtype) > size_of(b.entry->dtype);
    });
  }

  //! Wide elements first, otherwise in the order of registration, as they lie in a file: so every
  //! tensor lies at a multiple of its element's size.
  [[nodiscard]] const std::vector<Piece>& pieces() const& { return pieces_; }
  [[nodiscard]] std::vector<Piece> pieces() && { return std::move(pieces_); }

 private:
  static std::uint64_t shared_bytes(const TrainState::Entry& e) {
    return e.placement.per_rank || !e.tied_to.empty() ? 0 : e.bytes();
  }
  //! The row of an entry, which lies at `at` with n bytes, that begins nearest to a boundary.
  static std::int64_t row_at(const TrainState::Entry& e, std::uint64_t boundary, std::uint64_t at,
                             std::uint64_t n) {
    if (boundary <= at) return 0;
    if (boundary >= at + n) return e.shape[0];
    std::uint64_t row = n / static_cast<std::uint64_t>(e.shape[0]);
    return static_cast<std::int64_t>((boundary - at + row / 2) / row);
  }

  void add_whole(const TrainState::Entry& e) {
    bool state = e.kind == TrainState::Kind::state;
    pieces_.push_back(
        {&e, Place::of(e), state ? Shape{} : e.shape, 0, state ? std::size_t{0} : e.bytes()});
  }
  void add_rows(const TrainState::Entry& e, std::int64_t from, std::int64_t to) {
    if (from == to) return;
    if (to - from == e.shape[0]) return add_whole(e);
    std::size_t row = e.bytes() / static_cast<std::size_t>(e.shape[0]);
    Shape shape = e.shape;
    shape[0] = to - from;
    pieces_.push_back({&e,
                       {.kind = Place::Kind::rows, .first_row = from, .all_rows = e.shape[0]},
                       std::move(shape),
                       static_cast<std::size_t>(from) * row,
                       static_cast<std::size_t>(to - from) * row});
  }

  std::vector<Piece> pieces_;
};

}  // namespace mend::checkpoint
