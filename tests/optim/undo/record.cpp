#include <mend/optim/undo/record.hpp>

#include <doctest/doctest.h>

#include <mend/optim/amsgrad.hpp>
#include <mend/optim/sgd.hpp>
#include <mend/optim/undo/approximate.hpp>
#include <mend/optim/undo/exact.hpp>
#include <mend/optim/undo/ping_pong.hpp>
#include <mend/optim/undo/roll_forward.hpp>
#include <mend/optim/undo/snapshot.hpp>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace {

using mend::AmsGrad, mend::Sgd, mend::UndoRecord;

struct Record {
  void reserve(std::span<const mend::UndoTensor>) {}
  template <class Range>
  void apply(std::size_t, std::size_t, const Range&) {}
  template <class Range>
  void revert(std::size_t, std::size_t, const Range&) {}
  void drop() {}
  mend::ByteCount memory() const { return {}; }
};
struct MemoryIsANumber : Record {
  int memory() const { return 0; }
};
struct NoDrop : Record {
 private:
  using Record::drop;
};

struct Policy {
  using kind = mend::kind::undo;
  static constexpr bool reverts = true, exact = true;
};
struct OtherKind : Policy {
  using kind = mend::kind::recovery;
};
struct DoesNotSay {
  using kind = mend::kind::undo;
};

static_assert(UndoRecord<Record, Sgd>);
static_assert(!UndoRecord<MemoryIsANumber, Sgd>);
static_assert(!UndoRecord<NoDrop, Sgd>);
static_assert(mend::UndoPolicy<Policy>);
static_assert(!mend::UndoPolicy<OtherKind>);
static_assert(!mend::UndoPolicy<DoesNotSay>);

static_assert(UndoRecord<mend::RollForward::Record<AmsGrad>, AmsGrad>);
static_assert(UndoRecord<mend::SnapshotUndo::Record<AmsGrad>, AmsGrad>);
static_assert(UndoRecord<mend::PingPong::Record<AmsGrad>, AmsGrad>);
static_assert(UndoRecord<mend::ExactUndo::Record<Sgd>, Sgd>);
static_assert(UndoRecord<mend::ApproximateUndo::Record<Sgd>, Sgd>);

}  // namespace

TEST_CASE("a policy says which way a half-done update goes") {
  CHECK(mend::SnapshotUndo::reverts);
  CHECK(!mend::RollForward::reverts);
}

TEST_CASE("a part of a range has its own pointers") {
  float p[8], g[8];
  const mend::UpdateRange<Sgd, float> range{{}, p, {}, g, 8, 1.0f};
  const auto part = range.part(2, 3);
  CHECK(part.p == p + 2);
  CHECK(part.g == g + 2);
  CHECK(part.n == 3);
}

TEST_CASE("chunks are noted and taken once") {
  mend::detail::UndoChunks chunks;
  const mend::UndoTensor tensors[] = {
      {1, {}, false}, {0, {}, false}, {mend::undo_chunk + 1, {}, false}};
  chunks.reserve(tensors);
  CHECK(chunks.size() == 3);
  CHECK(chunks.index(0, 0) == 0);
  CHECK(chunks.index(2, mend::undo_chunk) == 2);
  chunks.note(2);
  CHECK(!chunks.take(1));
  CHECK(chunks.take(2));
  CHECK(!chunks.take(2));
  chunks.note(0);
  chunks.drop();
  CHECK(!chunks.take(0));
}
