#include <mend/optim/undo/record.hpp>

#include <doctest/doctest.h>

#include <mend/optim/undo/roll_forward.hpp>
#include <mend/optim/undo/snapshot.hpp>

#include <cstddef>
#include <span>

namespace {

struct Record {
  void reserve(std::size_t, mend::ByteCount) {}
  void save(std::size_t, std::span<const mend::StateSpan>) {}
  bool restore(std::size_t) { return true; }
  void drop() {}
  mend::ByteCount memory() const { return {}; }
};
struct RestoreSaysNothing : Record {
  void restore(std::size_t) {}
};
struct NoDrop : Record {
 private:
  using Record::drop;
};

struct Policy {
  using kind = mend::kind::undo;
  static constexpr bool reverts = true;
  using Record = ::Record;
};
struct OtherKind : Policy {
  using kind = mend::kind::recovery;
};
struct DoesNotSay {
  using kind = mend::kind::undo;
  using Record = ::Record;
};

static_assert(mend::UndoRecord<Record>);
static_assert(!mend::UndoRecord<RestoreSaysNothing>);
static_assert(!mend::UndoRecord<NoDrop>);
static_assert(mend::UndoPolicy<Policy>);
static_assert(!mend::UndoPolicy<OtherKind>);
static_assert(!mend::UndoPolicy<DoesNotSay>);
static_assert(!mend::UndoPolicy<Record>);

}  // namespace

TEST_CASE("a policy says which way a half-done update goes") {
  CHECK(mend::SnapshotUndo::reverts);
  CHECK(!mend::RollForward::reverts);
}
