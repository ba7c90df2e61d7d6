#include <mend/checkpoint/publisher.hpp>

#include <doctest/doctest.h>
#include <mend/checkpoint/schema.hpp>
#include <mend/checkpoint/shard.hpp>
#include <mend/store/directory.hpp>
#include <mend/store/memory.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/model.hpp"
#include "store/power_loss.hpp"

using mend::Bytes;
using mend::ByteView;
using mend::Fenced;
using mend::FileError;
using mend::Memory;
using mend::StateError;
using mend::TrainState;
using mend::checkpoint::Loader;
using mend::checkpoint::Publisher;
using mend::checkpoint::Retention;
using mend::checkpoint::schema_of;
using mend::store::Manifest;
using mend_test::Model;
using mend_test::PowerLossDisk;
using mend_test::PowerLossFiles;
using mend_test::write_checkpoint;

namespace {

using ModelStore = mend::BasicDirectory<PowerLossFiles>;

std::vector<std::int64_t> steps_of(const Manifest& m) {
  std::vector<std::int64_t> steps;
  for (const auto& base : m.bases) steps.push_back(base.step);
  return steps;
}
const mend::Hash128 schema = schema_of(Model{0, 0, 1}.state);

void damage(Memory& store, const std::string& name) {
  Bytes bytes = mend::store::read_all(store, name);
  bytes.back() ^= std::byte{1};
  store.remove(name);
  CHECK(store.put_if_absent(name, bytes));
}

}  // namespace

TEST_CASE("an empty store: nothing is there, and nothing but the claim is written") {
  Memory store;
  Publisher<Memory> publisher{store, {}};
  auto opened = publisher.open(schema, 2);
  CHECK_FALSE(opened.base);
  CHECK(opened.skipped.empty());
  CHECK(publisher.generation() == 1);
  CHECK(publisher.run().size() == 16);
  CHECK(store.list("").size() == 1);
  CHECK_FALSE(Loader{store}.newest([] {}).base);
}

TEST_CASE("a restart finds what was committed, and goes on from it") {
  Memory store;
  std::string run;
  {
    Publisher<Memory> publisher{store, {}};
    publisher.open(schema, 3);
    run = publisher.run();
    for (std::uint64_t step : {4u, 8u}) write_checkpoint(store, publisher, step, 3);
    CHECK(publisher.manifest().history ==
          std::vector<Manifest::Resumed>{{.generation = 1, .resume_step = -1, .ranks = 3}});
  }
  Publisher<Memory> next{store, {}};
  auto opened = next.open(schema, 2);
  REQUIRE(opened.base);
  CHECK(opened.base->step == 8);
  CHECK(next.run() == run);
  CHECK(next.manifest().kind == Manifest::Kind::resume);
  CHECK(steps_of(next.manifest()) == std::vector<std::int64_t>{4, 8});
  CHECK(next.manifest().history.back() ==
        Manifest::Resumed{.generation = next.generation(), .resume_step = 8, .ranks = 2});
  Model model{1, 1, 2};
  next.loader().restore(model.state, 1, 2);
  CHECK(model.state.step == 8);
  write_checkpoint(store, next, 12, 2);
  CHECK(steps_of(*mend::store::ManifestLog{store}.newest().manifest) ==
        std::vector<std::int64_t>{8, 12});
}

TEST_CASE("retention: the newest stay, those of every n-th step stay, the others go") {
  auto after = [](Retention retention) {
    Memory store;
    Publisher<Memory> publisher{store, retention};
    publisher.open(schema, 2);
    for (std::uint64_t step = 1; step <= 7; ++step) {
      write_checkpoint(store, publisher, step, 2);
      // Exactly what the manifest names is there.
      std::set<std::string> named;
      for (const auto& base : publisher.manifest().bases)
        for (const auto& shard : base.shards) named.insert(shard.name);
      auto there = store.list("shards/");
      CHECK(named == std::set<std::string>{there.begin(), there.end()});
    }
    return steps_of(publisher.manifest());
  };
  CHECK(after({}) == std::vector<std::int64_t>{6, 7});
  CHECK(after({.keep = 1}) == std::vector<std::int64_t>{7});
  CHECK(after({.keep = 9}) == std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7});
  CHECK(after({.keep = 1, .keep_every = 3}) == std::vector<std::int64_t>{3, 6, 7});
  CHECK(after({.keep = 2, .keep_every = 2}) == std::vector<std::int64_t>{2, 4, 6, 7});
  CHECK_THROWS_AS((Publisher<Memory>{Memory{}, {.keep = 0}}), mend::OptionError);
  CHECK_THROWS_AS((Publisher<Memory>{Memory{}, {.keep_every = -1}}), mend::OptionError);
}

TEST_CASE("bases of later steps, which an earlier run left, are superseded") {
  Memory store;
  Publisher<Memory> publisher{store, {.keep = 9}};
  publisher.open(schema, 1);
  for (std::uint64_t step : {2u, 4u, 6u}) write_checkpoint(store, publisher, step, 1);
  write_checkpoint(store, publisher, 4, 1);
  CHECK(steps_of(publisher.manifest()) == std::vector<std::int64_t>{2, 4});
  CHECK(store.list("shards/").size() == 2);
}

TEST_CASE("another state's store is refused, and nothing is written") {
  Memory store;
  Publisher<Memory> publisher{store, {}};
  publisher.open(schema, 1);
  write_checkpoint(store, publisher, 2, 1);
  auto before = store.list("");
  CHECK_THROWS_AS((Publisher<Memory>{store, {}}.open({.lo = 1, .hi = 1}, 1)), StateError);
  CHECK(store.list("") == before);
}

TEST_CASE("a damaged checkpoint is skipped; where none is whole, nobody starts afresh") {
  Memory store;
  Publisher<Memory> publisher{store, {}};
  publisher.open(schema, 2);
  for (std::uint64_t step : {2u, 4u}) write_checkpoint(store, publisher, step, 2);
  auto bases = publisher.manifest().bases;
  damage(store, bases[1].shards[1].name);
  Publisher<Memory> next{store, {}};
  auto opened = next.open(schema, 2);
  CHECK(opened.base == bases[0]);
  REQUIRE(opened.skipped.size() == 1);
  CHECK(opened.skipped[0].name == bases[1].shards[1].name);
  CHECK(steps_of(next.manifest()) == std::vector<std::int64_t>{2});
  damage(store, bases[0].shards[0].name);
  auto before = store.list("shards/");
  try {
    Publisher<Memory>{store, {}}.open(schema, 2);
    FAIL("nothing can be used");
  } catch (const FileError& e) {
    CHECK(std::string{e.what()}.find("no checkpoint of the directory can be used") == 0);
    CHECK(e.path() == bases[0].shards[0].name);
  }
  CHECK(store.list("shards/") == before);
}

TEST_CASE("parts of an attempt that failed elsewhere are taken away") {
  Memory store;
  Publisher<Memory> publisher{store, {}};
  publisher.open(schema, 2);
  write_checkpoint(store, publisher, 2, 2);
  Model model{4, 0, 2};
  auto label = mend::checkpoint::ShardLabel{
      .step = 4, .run = publisher.run(), .generation = publisher.generation(), .parts = 2};
  std::vector<Manifest::Shard> parts{mend_test::write_part(store, model.state, label)};
  CHECK(store.list("shards/").size() == 3);
  publisher.discard(parts);
  CHECK(store.list("shards/").size() == 2);
  CHECK(steps_of(publisher.manifest()) == std::vector<std::int64_t>{2});
}

namespace {

// Two or three ranks on a disk that loses power: they restore, commit three checkpoints with
// retention, and at every operation they die, or it fails, or another publisher takes over. Then
// every disk that may be found is restored from by others.

enum class Mutant { none, no_file_sync, no_directory_sync, no_sync_on_restore, delete_first };

struct MutantStore : ModelStore {
  MutantStore(PowerLossDisk& disk, Mutant m)
      : ModelStore{"runs/ckpt", {}, PowerLossFiles{&disk}}, mutant{m} {
    disk.files_sync = m != Mutant::no_file_sync;
    disk.directories_sync = m != Mutant::no_directory_sync;
  }
  bool put_if_absent(const std::string& name, ByteView bytes) {
    if (mutant == Mutant::delete_first) {
      std::string_view text{reinterpret_cast<const char*>(bytes.data()), bytes.size()};
      for (const std::string& old : Manifest::parse(text, name).garbage) remove(old);
    }
    return ModelStore::put_if_absent(name, bytes);
  }
  void sync_existing(const std::string& name) {
    if (mutant != Mutant::no_sync_on_restore) ModelStore::sync_existing(name);
  }
  Mutant mutant;
};

//! A rank's small state: a tensor that is cut, and an entry of its own. Values tell the step.
struct Small {
  Small(std::int64_t step, int rank, int size) {
    state.add("w", w, g, {.shape = {4, 2}}).add_scalar("own", own, mend::PerRank{});
    state.rank = rank;
    state.size = size;
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(step) * 100 + float(i);
    own = step * 10 + rank;
    state.step = state.applied = step;
  }
  std::vector<float> w = std::vector<float>(8), g = w;
  std::int64_t own = 0;
  TrainState state;
};

//! All ranks of one incarnation of the run, driven step by step.
struct Ranks {
  Ranks(PowerLossDisk& disk, Mutant m, int size_, int keep = 2)
      : size{size_}, store{disk, m}, publisher{store, {.keep = keep}} {}

  void take_over() {
    auto opened = publisher.open(schema_of(Small{0, 0, 1}.state), size);
    last = 0;
    seen = -1;
    if (!opened.base) return;
    if (!opened.skipped.empty()) throw FileError{"skipped: " + opened.skipped[0].why};
    seen = last = opened.base->step;
    for (int rank = 0; rank < size; ++rank) {
      Small state{-1, rank, size};
      publisher.loader().restore(state.state, rank, size);
      if (state.state.hash() != Small{last, rank, size}.state.hash())
        throw FileError{"a state that never was"};
    }
    acknowledged = last;
  }

  void commit() {
    std::int64_t step = last + 1;
    std::vector<Manifest::Shard> parts;
    try {
      for (int rank = 0; rank < size; ++rank) {
        Small small{step, rank, size};
        auto plan = mend::checkpoint::ShardPlan{small.state, rank, size}.pieces();
        std::vector<mend::checkpoint::ShardTensor> tensors;
        for (const auto& piece : plan)
          tensors.push_back({&piece, {piece.entry->value + piece.offset, piece.bytes}});
        parts.push_back(mend::checkpoint::write_shard(
            store,
            {.step = step,
             .applied = step,
             .run = publisher.run(),
             .generation = publisher.generation(),
             .part = rank,
             .parts = size},
            {}, std::span<const mend::checkpoint::ShardTensor>{tensors}, [](std::size_t) {}));
      }
    } catch (const FileError&) {
      publisher.discard(parts);
      throw;
    }
    publisher.commit(step, parts);
    acknowledged = last = step;
  }
  void work() {
    for (int i = 0; i < 3; ++i) commit();
  }

  int size;
  MutantStore store;
  Publisher<MutantStore> publisher;
  std::int64_t last = 0, seen = -1, acknowledged = -1;
};

struct Verdict {
  int states = 0, wrong = 0;
  void expect(bool right) { wrong += !right; }
};

//! Others must find at least what was acknowledged and no mix, and commit; so must those after
//! them, after one more loss of power.
void judge(const PowerLossDisk& disk, std::int64_t acknowledged, Mutant mutant, int size, int most,
           std::mt19937_64& random, Verdict& verdict, bool again = true) {
  auto look = [&](PowerLossDisk found) {
    ++verdict.states;
    Ranks next{found, mutant, size};
    try {
      next.take_over();
      verdict.expect(next.seen >= acknowledged);
      next.commit();
    } catch (const mend::Error&) {
      verdict.expect(false);
      return;
    }
    if (again) judge(found, next.acknowledged, mutant, size, 1, random, verdict, false);
  };
  disk.after_power_loss(most, random, look);
  look(disk.rebooted());
}

PowerLossDisk fresh() {
  PowerLossDisk disk;
  disk.make("runs", true);
  disk.sync_names(".");
  return disk;
}

//! One operation goes wrong, each in turn. What fails is tried once more: training went on.
Verdict all_faults(Mutant mutant, PowerLossDisk::Fault fault, int size, int most, int keep = 2) {
  std::mt19937_64 random{7};
  Verdict verdict;
  for (int at = 0;; ++at) {
    PowerLossDisk disk = fresh();
    disk.fault = fault;
    disk.fault_at = at;
    Ranks ranks{disk, mutant, size, keep};
    auto attempt = [&](auto operation) {
      try {
        operation();
      } catch (const FileError&) {
        if (!disk.dead) operation();
      }
    };
    try {
      attempt([&] { ranks.take_over(); });
      for (int i = 0; i < 3; ++i) attempt([&] { ranks.commit(); });
    } catch (const PowerLossDisk::Died&) {
    }
    verdict.expect(disk.dead || ranks.acknowledged >= 3);
    if (disk.changes <= at) return verdict;
    judge(disk, ranks.acknowledged, mutant, size, most, random, verdict);
  }
}

//! The restore dies at each operation in turn, on a disk that a process left when it died in the
//! middle of its third checkpoint; then others restore.
Verdict restore_dies(Mutant mutant, int size) {
  std::mt19937_64 random{11};
  Verdict verdict;
  PowerLossDisk left = fresh();
  Ranks before{left, mutant, size};
  before.take_over();
  before.commit();
  before.commit();
  left.fault = PowerLossDisk::Fault::dies_before;
  left.fault_at = left.changes + 9;
  CHECK_THROWS_AS(before.commit(), PowerLossDisk::Died);
  for (int at = 0;; ++at) {
    PowerLossDisk disk = left.rebooted();
    disk.fault = PowerLossDisk::Fault::dies_after;
    disk.fault_at = at;
    Ranks second{disk, mutant, size};
    try {
      second.take_over();
    } catch (const FileError&) {
    }
    if (disk.changes <= at) return verdict;
    judge(disk, before.acknowledged, mutant, size, 4, random, verdict);
  }
}

//! At each operation of some ranks, in turn, another incarnation takes over and commits; the first
//! one wakes up, writes and deletes.
Verdict overtaken(Mutant mutant, int size) {
  std::mt19937_64 random{13};
  Verdict verdict;
  for (int at = 0;; ++at) {
    PowerLossDisk disk = fresh();
    Ranks a{disk, mutant, size}, b{disk, mutant, size};
    a.take_over();
    int operation = 0;
    bool happened = false;
    disk.before_each = [&] {
      if (happened || operation++ != at) return;
      happened = true;
      b.take_over();
      b.commit();
      b.commit();
    };
    try {
      a.work();
    } catch (const Fenced&) {
    } catch (const FileError&) {  // the sweep took its hidden file
    }
    disk.before_each = {};
    if (!happened) return verdict;
    verdict.expect(a.acknowledged <= b.seen);
    judge(disk, b.acknowledged, mutant, size, 4, random, verdict, false);
    try {  // nor does it wake up later
      a.commit();
      verdict.expect(false);
    } catch (const Fenced&) {
    }
    judge(disk, b.acknowledged, mutant, size, 4, random, verdict, false);
  }
}

}  // namespace

TEST_CASE("whatever fails, whatever a power loss leaves: what was acknowledged is restored") {
  using Fault = PowerLossDisk::Fault;
  for (int size : {2, 3})
    for (Fault fault : {Fault::dies_before, Fault::dies_after, Fault::no_space, Fault::io_error}) {
      Verdict verdict = all_faults(Mutant::none, fault, size, 8);
      CHECK(verdict.wrong == 0);
      CHECK(verdict.states > 500);
    }
}

TEST_CASE("a restore that dies at any operation can be done again") {
  for (int size : {2, 3}) {
    Verdict verdict = restore_dies(Mutant::none, size);
    CHECK(verdict.wrong == 0);
    CHECK(verdict.states > 50);
  }
}

TEST_CASE("an old publisher that wakes up at any operation spoils nothing") {
  for (int size : {2, 3}) {
    Verdict verdict = overtaken(Mutant::none, size);
    CHECK(verdict.wrong == 0);
    CHECK(verdict.states > 100);
  }
}

TEST_CASE("the same checks find what is left out, and what is deleted too early") {
  using Fault = PowerLossDisk::Fault;
  CHECK(all_faults(Mutant::no_file_sync, Fault::dies_before, 2, 4).wrong > 0);
  CHECK(all_faults(Mutant::no_directory_sync, Fault::dies_before, 2, 4).wrong > 0);
  CHECK(all_faults(Mutant::delete_first, Fault::dies_before, 2, 4, 1).wrong > 0);
}

TEST_CASE("what is restored is durable from then on, however it was written") {
  std::mt19937_64 random{17};
  auto wrong = [&](Mutant mutant) {
    PowerLossDisk disk = fresh();
    disk.files_sync = disk.directories_sync = false;  // a run that promised nothing
    {
      Ranks before{disk, Mutant::no_file_sync, 2};
      disk.directories_sync = false;
      before.take_over();
      before.commit();
    }
    Ranks next{disk, mutant, 2};
    next.take_over();
    Verdict verdict;
    judge(disk, 1, mutant, 2, 200, random, verdict, false);
    return verdict.wrong;
  };
  CHECK(wrong(Mutant::none) == 0);
  CHECK(wrong(Mutant::no_sync_on_restore) > 0);
}
