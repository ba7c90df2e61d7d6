#include <mend/checkpoint/full_checkpoints.hpp>

#include <doctest/doctest.h>

#include <mend/store/memory.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using namespace mend;
using checkpoint::FullCheckpoints;

namespace {

//! Ranks in step, and what a session would carry between them.
struct Group {
  struct Rank {
    std::vector<float> w;
    TrainState state;
    std::optional<FullCheckpoints<Memory>> checkpoints;
  };

  Group(Memory store, int n, FullOptions options = {.every = 5}) {
    for (int r = 0; r < n; ++r) {
      Rank& rank = *ranks.emplace_back(std::make_unique<Rank>());
      rank.w.assign(1000, 0);
      rank.state.add_buffer("w", rank.w);
      rank.checkpoints.emplace(store, options);
    }
  }
  [[nodiscard]] int size() const { return static_cast<int>(ranks.size()); }

  //! As at the beginning of a generation; the step from which all go on.
  std::int64_t open() {
    const Bytes told = ranks[0]->checkpoints->open(ranks[0]->state, size());
    for (int r = 0; r < size(); ++r) {
      Rank& rank = *ranks[static_cast<std::size_t>(r)];
      rank.checkpoints->take_over(told);
      (void)rank.checkpoints->restore(rank.state, r, size());
    }
    return ranks[0]->state.step;
  }
  //! A step: snapshots, records, commit. drop: a rank whose record does not come.
  void step(int drop = -1) {
    std::vector<FullCheckpoints<Memory>::Record> all;
    for (int r = 0; r < size(); ++r) {
      Rank& rank = *ranks[static_cast<std::size_t>(r)];
      rank.checkpoints->begin_if_due(rank.state, r, size(), true);
      all.push_back(r == drop ? FullCheckpoints<Memory>::Record{} : rank.checkpoints->record());
      rank.checkpoints->before_update();
      for (float& x : rank.w) x += 1;
      ++rank.state.step;
    }
    for (int r = 0; r < size(); ++r)
      ranks[static_cast<std::size_t>(r)]->checkpoints->committed(all, r, true);
  }
  [[nodiscard]] std::int64_t durable() const { return ranks[0]->checkpoints->durable_step(); }

  std::vector<std::unique_ptr<Rank>> ranks;
};

}  // namespace

TEST_CASE("a checkpoint is published when every rank has said that its part is durable") {
  const Memory store;
  Group group{store, 3};
  CHECK(group.open() == 0);
  for (int i = 0; i < 5; ++i) group.step();
  CHECK(group.durable() == 0);
  group.step(1);  // the snapshot of step 5 is taken, and rank 1's record is late
  CHECK(group.durable() == 0);
  group.step(1);
  CHECK(group.durable() == 0);
  group.step();
  CHECK(group.durable() == 5);

  Group next{store, 2};  // another rank count
  CHECK(next.open() == 5);
  CHECK(next.ranks[1]->w == std::vector<float>(1000, 5));
}

TEST_CASE("an attempt that is open keeps the next one from beginning, on all ranks alike") {
  const Memory store;
  Group group{store, 2};
  CHECK(group.open() == 0);
  for (int i = 0; i < 12; ++i) group.step(1);  // step 10 came and went
  CHECK(group.durable() == 0);
  group.step();
  CHECK(group.durable() == 5);
  for (int i = 0; i < 3; ++i) group.step();
  CHECK(group.durable() == 15);
}

TEST_CASE("a new generation gives up the attempt under way, and goes on") {
  const Memory store;
  Group group{store, 2};
  CHECK(group.open() == 0);
  for (int i = 0; i < 6; ++i) group.step(1);
  const Bytes told = group.ranks[0]->checkpoints->open(group.ranks[0]->state, 2);
  for (auto& rank : group.ranks) rank->checkpoints->take_over(told);
  for (int i = 0; i < 5; ++i) group.step();
  CHECK(group.durable() == 10);
}

TEST_CASE("without a publisher nothing is written, and the reason is told") {
  Memory store;
  Group group{store, 2};
  const Bytes told = group.ranks[0]->checkpoints->nothing("no space left");
  for (auto& rank : group.ranks) rank->checkpoints->take_over(told);
  for (int i = 0; i < 12; ++i) group.step();
  CHECK(group.durable() == 0);
  CHECK(store.list("shards/").empty());
  CHECK(group.ranks[0]->checkpoints->error() == "no space left");
}

TEST_CASE("flush makes the last step durable, and tells all ranks") {
  const Memory store;
  Group group{store, 1};
  CHECK(group.open() == 0);
  for (int i = 0; i < 7; ++i) group.step();
  auto& only = *group.ranks[0];
  const auto gather = [](const FullCheckpoints<Memory>::Record& mine) {
    return std::vector<FullCheckpoints<Memory>::Record>{mine};
  };
  only.checkpoints->flush(only.state, 0, 1, gather);
  CHECK(group.durable() == 7);
  only.checkpoints->flush(only.state, 0, 1, gather);  // again: nothing to do
  CHECK(group.durable() == 7);
}
