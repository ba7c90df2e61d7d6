#include <mend/store/manifest_log.hpp>

#include <doctest/doctest.h>
#include <mend/store/directory.hpp>
#include <mend/store/memory.hpp>
#include <mend/store/record.hpp>

#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/power_loss.hpp"

using mend::ByteView;
using mend::Fenced;
using mend::FileError;
using mend::Memory;
using mend::StateError;
using mend::store::Manifest;
using mend::store::ManifestLog;
using mend_test::PowerLossDisk;
using mend_test::PowerLossFiles;

namespace {

using ModelStore = mend::BasicDirectory<PowerLossFiles>;
using Kind = Manifest::Kind;

ByteView view(std::string_view text) { return std::as_bytes(std::span{text}); }

const Manifest::Run run{.id = "run", .schema = {.lo = 1, .hi = 2}};

Manifest holding(Kind kind, std::int64_t step) {
  return {.kind = kind, .bases = {{.step = step, .generation = 1, .shards = {}}}};
}
std::int64_t step_of(const Manifest& m) { return m.bases.empty() ? -1 : m.bases.back().step; }

//! A log in memory with what a writer leaves after some steps.
struct Written {
  explicit Written(std::int64_t steps) : log{memory} {
    log.claim(run, 2);
    log.publish(holding(Kind::resume, 0));
    for (std::int64_t s = 1; s <= steps; ++s) log.publish(holding(Kind::full, s));
  }
  Memory memory{};
  ManifestLog<Memory> log;
};

}  // namespace

TEST_CASE("a writer claims, publishes and is read") {
  Memory memory;
  ManifestLog log{memory};
  CHECK(log.numbers().empty());
  CHECK_FALSE(log.newest().manifest);
  CHECK(log.claim(run, 2) == 1);
  CHECK_FALSE(log.newest().manifest);  // a claim holds nothing
  log.publish(holding(Kind::resume, 3));
  CHECK(log.current().sequence == 2);
  CHECK(log.current().generation == 1);
  CHECK(log.current().run == run);
  CHECK(log.current().ranks == 2);
  CHECK_FALSE(log.fenced());
  ManifestLog reader{memory};
  CHECK(reader.newest().manifest == log.current());
  CHECK(reader.newest().skipped.empty());
  CHECK(reader.read(2) == log.current());
  CHECK(reader.numbers() == std::vector<std::uint64_t>{1, 2});
  CHECK(memory.list("manifests/") ==
        std::vector<std::string>{"manifests/00000001.json", "manifests/00000002.json"});
}

TEST_CASE("a newer claim fences the older writer out, for good") {
  Written old{3};
  ManifestLog next{old.memory};
  CHECK(next.claim(run, 2) == 6);
  CHECK(old.log.fenced());
  CHECK_THROWS_AS(old.log.publish(holding(Kind::full, 4)), Fenced);
  CHECK_THROWS_AS(old.log.publish(holding(Kind::full, 4)), Fenced);
  next.publish(holding(Kind::resume, 3));
  for (std::int64_t s = 4; s < 9; ++s) {
    next.publish(holding(Kind::full, s));
    next.remove_superseded();
  }
  CHECK(old.log.fenced());
  CHECK_THROWS_AS(old.log.publish(holding(Kind::full, 4)), Fenced);
  CHECK(step_of(*next.newest().manifest) == 8);
  CHECK_FALSE(next.fenced());
}

TEST_CASE("what is damaged is skipped and named, and an older manifest is taken") {
  Written w{3};
  auto damage = [&](std::uint64_t n, const std::string& text) {
    w.memory.remove(w.log.name_of(n));
    CHECK(w.memory.put_if_absent(w.log.name_of(n), view(text)));
  };
  damage(5, "");
  damage(4, w.log.read(3).text());  // a copy under another number
  ManifestLog<Memory>::Found found = ManifestLog{w.memory}.newest();
  CHECK(step_of(*found.manifest) == 1);
  REQUIRE(found.skipped.size() == 2);
  CHECK(found.skipped[0].name == "manifests/00000005.json");
  CHECK(found.skipped[0].why.find("damaged") != std::string::npos);
  CHECK(found.skipped[1].why.find("stands under another") != std::string::npos);
  CHECK(step_of(*w.log.newest(3).manifest) == 0);
  CHECK_FALSE(w.log.newest(2).manifest);
  // Its number stays taken.
  CHECK(ManifestLog{w.memory}.claim(run, 2) == 6);
}

TEST_CASE("names that are not of the log are left alone") {
  Written w{1};
  for (const char* name :
       {"manifests/7.json", "manifests/00000009.json.bak", "manifests/notes",
        "manifests/0000000x.json", "manifests/000000010.json", "manifests/00000000.json"})
    w.memory.put_new(name).publish();
  CHECK(w.log.numbers() == std::vector<std::uint64_t>{1, 2, 3});
  w.log.remove_superseded();
  w.log.sweep();
  CHECK(w.memory.list("manifests/").size() == 9);
  CHECK(w.log.name_of(123'456'789) == "manifests/123456789.json");
}

TEST_CASE("a directory of another run is refused before anything is written") {
  Written w{1};
  auto before = w.memory.list("");
  Manifest::Run other{.id = "other", .schema = {.lo = 7, .hi = 7}};
  CHECK_THROWS_AS(ManifestLog{w.memory}.claim(other, 2), StateError);
  CHECK(w.memory.list("") == before);
  // The same state under another identity goes on with the first one's.
  ManifestLog log{w.memory};
  log.claim({.id = "again", .schema = run.schema}, 3);
  CHECK(log.current().run == run);
  ManifestLog fresh{Memory{}};
  fresh.claim({.schema = run.schema}, 1);
  CHECK_FALSE(fresh.current().run.id.empty());
}

TEST_CASE("superseded manifests go, claims stay, and two remain") {
  Written w{4};
  ManifestLog next{w.memory};
  next.claim(run, 2);
  next.remove_superseded();  // nothing is published yet
  CHECK(next.numbers().size() == 7);
  next.publish(holding(Kind::resume, 4));
  next.remove_superseded();
  CHECK(next.numbers() == std::vector<std::uint64_t>{1, 6, 7, 8});
  next.publish(holding(Kind::full, 5));
  next.remove_superseded(3);
  CHECK(next.numbers() == std::vector<std::uint64_t>{1, 6, 7, 8, 9});
  next.remove_superseded(1);
  CHECK(next.numbers() == std::vector<std::uint64_t>{1, 7, 9});
  next.remove_superseded(0);
  CHECK(next.numbers() == std::vector<std::uint64_t>{1, 7, 9});
}

TEST_CASE("a sweep takes what older generations left, by name, and nothing else") {
  Written w{1};
  auto put = [&](const std::string& name) {
    w.memory.put_new(name).publish();
    return name;
  };
  std::string kept = put(mend::store::shard_name(1, 1, 0));
  std::string sealed = put(mend::store::segment_name(1, 0));
  std::string dead = put(mend::store::shard_name(2, 1, 0));
  std::string stray = put(mend::store::segment_name(1, 1));
  ManifestLog next{w.memory};
  std::uint64_t generation = next.claim(run, 2);
  std::string own = put(mend::store::shard_name(3, generation, 0));
  std::string newer = put(mend::store::segment_name(generation + 5, 0));
  std::string foreign = put("shards/notes.txt");
  next.sweep();
  CHECK(w.memory.size(dead));  // nothing is known to be garbage before the resume
  Manifest resume = holding(Kind::resume, 1);
  resume.bases[0].shards.push_back({.name = kept});
  resume.segments.push_back({.name = sealed, .length = 0});
  next.publish(resume);
  next.sweep();
  for (const std::string& name : {kept, sealed, own, newer, foreign}) CHECK(w.memory.size(name));
  for (const std::string& name : {dead, stray}) CHECK_FALSE(w.memory.size(name));
}

TEST_CASE("a manifest whose publication ended in an error is no fence for its own writer") {
  PowerLossDisk disk;
  ManifestLog log{ModelStore{"ckpt", {}, PowerLossFiles{&disk}}};
  log.claim(run, 1);
  log.publish(holding(Kind::resume, 0));
  // create, write, sync, link, sync of the directory: which fails after the name is there
  disk.fault = PowerLossDisk::Fault::io_error;
  disk.fault_at = disk.changes + 4;
  CHECK_THROWS_AS(log.publish(holding(Kind::full, 1)), FileError);
  CHECK(log.numbers().size() == 3);
  CHECK_FALSE(log.fenced());
  log.publish(holding(Kind::full, 2));
  CHECK(log.current().sequence == 4);
  CHECK(step_of(*log.newest().manifest) == 2);
}

namespace {

// The log on a disk that loses power, with a shard for each base and a segment of records behind
// it. A writer takes over, appends and commits; at every operation it dies, or fails, or is
// overtaken; then every disk that may be found is read by another writer.

enum class Mutant {
  none,
  no_file_sync,
  no_directory_sync,
  no_sync_on_restore,
  by_rename,
  no_fence_check,
  read_before_fence,
  claims_removed
};

struct MutantStore : ModelStore {
  MutantStore(PowerLossDisk& disk, Mutant m)
      : ModelStore{"runs/ckpt", {}, PowerLossFiles{&disk}}, files{&disk}, mutant{m} {}
  bool put_if_absent(const std::string& name, ByteView bytes) {
    if (mutant != Mutant::by_rename) return ModelStore::put_if_absent(name, bytes);
    std::string hidden = "manifests/" + mend::store::unique_text();
    auto writer = put_new(hidden);
    writer.write(bytes);
    writer.publish();
    files.rename(path() + "/" + hidden, path() + "/" + name);
    files.sync_directory(path() + "/manifests");
    return true;
  }
  void sync_existing(const std::string& name) {
    if (mutant != Mutant::no_sync_on_restore) ModelStore::sync_existing(name);
  }
  PowerLossFiles files;
  Mutant mutant;
};

//! One rank that checkpoints, by the rules of the notes or without one of them.
struct Writer {
  Writer(PowerLossDisk& disk, Mutant m) : mutant{m}, store{disk, m}, log{store} {
    disk.files_sync = m != Mutant::no_file_sync;
    disk.directories_sync = m != Mutant::no_directory_sync;
  }

  void take_over() {
    Manifest resume;
    if (mutant == Mutant::read_before_fence) resume = restored();
    segment.reset();
    log.claim(run, 1);
    if (mutant != Mutant::read_before_fence) resume = restored();
    if (resume.bases.empty()) {
      base(0);
      return;
    }
    for (const auto& [name, length] : resume.segments) store.sync_existing(name);
    store.sync_existing(resume.bases[0].shards[0].name);
    store.sync_existing(log.name_of(resume.sequence));
    log.publish(resume);
    acknowledged = last;
    log.sweep();
    if (mutant == Mutant::claims_removed) store.remove(log.name_of(log.current().generation));
  }

  //! A record of the next step.
  void append() {
    std::int64_t step = last + 1;
    try {
      if (!segment) {
        std::string name = mend::store::segment_name(log.current().generation, 0);
        superseded.push_back(name);  // by the next base
        segment.emplace(store.append_new(name), name);
      }
      segment->append(std::as_bytes(std::span{&step, 1}));
      segment->sync();
    } catch (const FileError&) {
      segment.reset();  // abandoned; the next attempt goes to a new one
      throw;
    }
    if (mutant != Mutant::no_fence_check && log.fenced()) throw Fenced{"a newer claim"};
    acknowledged = last = step;
  }

  //! A base of the next step, which supersedes everything.
  void commit() {
    base(last + 1);
    log.remove_superseded();
  }

  void base(std::int64_t step) {
    std::string name = mend::store::shard_name(step, log.current().generation, 0);
    std::string text = "the state after step " + std::to_string(step) + std::string(200, '.');
    auto writer = store.put_new(name);
    writer.write(view(text));
    writer.publish();
    Manifest before = log.current();
    log.publish({.kind = Kind::full,
                 .bases = {{.step = step,
                            .generation = before.generation,
                            .shards = {{name, text.size(), mend::hash_bytes(view(text))}}}}});
    acknowledged = last = step;
    segment.reset();
    for (const Manifest::Base& b : before.bases) store.remove(b.shards[0].name);
    for (const std::string& old : superseded) store.remove(old);
    superseded.clear();
  }

  //! What can be read, as the resume manifest that names it; `last` and `seen` tell how far it
  //! goes.
  Manifest restored() {
    auto found = log.newest();
    if (!found.skipped.empty()) throw FileError{"a torn manifest: " + found.skipped[0].why};
    if (!found.manifest) return {};
    Manifest m = *found.manifest;
    const Manifest::Shard& shard = m.bases[0].shards[0];
    if (mend::hash_bytes(mend::store::read_all(store, shard.name)) != shard.hash)
      throw FileError{"a torn shard"};
    std::map<std::string, std::uint64_t> sealed;
    for (const Manifest::Segment& s : m.segments) sealed[s.name] = s.length;
    std::set<std::int64_t> steps;
    m.segments.clear();
    superseded.clear();
    for (const std::string& name : store.list("differentials/")) {
      std::uint64_t generation = *mend::store::generation_of(name), most = ~std::uint64_t{};
      if (generation > m.generation || (generation < m.generation && sealed.count(name) == 0))
        continue;
      if (generation < m.generation) most = sealed[name];
      mend::store::RecordReader reader{store, name, most};
      while (auto payload = reader.next()) {
        std::int64_t step = 0;
        std::memcpy(&step, payload->data(), 8);
        steps.insert(step);
      }
      m.segments.push_back({name, reader.end()});
      superseded.push_back(name);
    }
    last = m.bases[0].step;
    while (steps.count(last + 1) != 0) ++last;
    seen = last;
    m.kind = Kind::resume;
    return m;
  }

  Mutant mutant;
  MutantStore store;
  ManifestLog<MutantStore> log;
  std::optional<mend::store::RecordWriter<MutantStore::Appender>> segment{};
  std::vector<std::string> superseded{};
  std::int64_t last = 0, seen = -1, acknowledged = -1;
};

void work(Writer& writer) {
  writer.append();
  writer.append();
  writer.commit();
  writer.append();
  writer.commit();
}

struct Verdict {
  int states = 0, wrong = 0;
  void expect(bool right) { wrong += !right; }
};

//! Another writer must find at least what was acknowledged and nothing torn, and go on; so must a
//! third one, after one more loss of power.
void judge(const PowerLossDisk& disk, std::int64_t acknowledged, Mutant mutant, int most,
           std::mt19937_64& random, Verdict& verdict, bool again = true) {
  auto look = [&](PowerLossDisk found) {
    ++verdict.states;
    Writer next{found, mutant};
    try {
      next.take_over();
    } catch (const mend::Error&) {
      verdict.expect(false);
      return;
    }
    verdict.expect(next.seen >= acknowledged);
    if (again) judge(found, next.acknowledged, mutant, 3, random, verdict, false);
  };
  disk.after_power_loss(most, random, look);
  look(disk.rebooted());
}

//! One operation of a writer goes wrong, each in turn. What fails is tried once more.
Verdict all_faults(Mutant mutant, PowerLossDisk::Fault fault) {
  std::mt19937_64 random{5};
  Verdict verdict;
  for (int at = 0;; ++at) {
    PowerLossDisk disk;
    disk.make("runs", true);
    disk.sync_names(".");
    disk.fault = fault;
    disk.fault_at = at;
    Writer writer{disk, mutant};
    auto attempt = [&](auto operation) {
      try {
        operation();
      } catch (const FileError&) {
        if (!disk.dead) operation();
      }
    };
    attempt([&] { writer.take_over(); });
    for (int step = 0; step < 2; ++step) {
      attempt([&] { writer.append(); });
      attempt([&] { writer.append(); });
      attempt([&] { writer.commit(); });
    }
    verdict.expect(disk.dead || writer.acknowledged >= 6);
    if (disk.changes <= at) return verdict;
    judge(disk, writer.acknowledged, mutant, 16, random, verdict);
  }
}

}  // namespace

TEST_CASE("whatever fails, and whatever a power loss leaves, what was acknowledged is there") {
  using Fault = PowerLossDisk::Fault;
  for (Fault fault : {Fault::dies_before, Fault::dies_after, Fault::no_space, Fault::io_error}) {
    Verdict verdict = all_faults(Mutant::none, fault);
    CHECK(verdict.wrong == 0);
    CHECK(verdict.states > 2000);
  }
}

TEST_CASE("the same check finds every sync that is left out") {
  for (Mutant m : {Mutant::no_file_sync, Mutant::no_directory_sync, Mutant::no_sync_on_restore})
    CHECK_MESSAGE(all_faults(m, PowerLossDisk::Fault::dies_before).wrong > 0, static_cast<int>(m));
}

namespace {

//! At each operation of `first`, in turn, `other` happens; then `after` judges.
Verdict interleaved(Mutant mutant, auto prepare, auto first, auto other, auto after) {
  Verdict verdict;
  for (int at = 0;; ++at) {
    PowerLossDisk disk;
    disk.make("runs", true);
    Writer a{disk, mutant}, b{disk, mutant};
    prepare(a, b);
    int operation = 0;
    bool happened = false;
    disk.before_each = [&] {
      if (happened || operation++ != at) return;
      happened = true;
      try {
        other(a, b);
      } catch (const Fenced&) {
      }
    };
    try {
      first(a);
    } catch (const Fenced&) {
    } catch (const FileError&) {  // of a writer that is fenced out: a sweep took its hidden file
    }
    disk.before_each = {};
    if (!happened) return verdict;
    ++verdict.states;
    after(a, b, verdict);
  }
}

//! A writer that is overtaken was told nothing that its successor has not found.
Verdict overtaken(Mutant mutant) {
  return interleaved(
      mutant, [](Writer& a, Writer&) { a.take_over(); }, work,
      [](Writer&, Writer& b) { b.take_over(); },
      [](Writer& a, Writer& b, Verdict& verdict) {
        verdict.expect(a.acknowledged <= b.seen);
        verdict.expect(a.log.fenced() && !b.log.fenced());
      });
}

//! A claimant that sleeps while a writer goes on, whose retention frees numbers of the log.
Verdict slept(Mutant mutant) {
  return interleaved(
      mutant,
      [](Writer&, Writer& b) {
        b.take_over();
        work(b);
      },
      [](Writer& a) { a.take_over(); },
      [](Writer&, Writer& b) {
        for (int i = 0; i < 3; ++i) work(b);
      },
      [](Writer& a, Writer& b, Verdict& verdict) {
        verdict.expect(b.log.fenced() && !a.log.fenced());
        verdict.expect(a.seen >= b.acknowledged);
      });
}

}  // namespace

TEST_CASE("a writer that is overtaken at any operation is fenced out, or was seen") {
  Verdict verdict = overtaken(Mutant::none);
  CHECK(verdict.wrong == 0);
  CHECK(verdict.states > 50);
  for (Mutant m : {Mutant::by_rename, Mutant::no_fence_check, Mutant::claims_removed})
    CHECK_MESSAGE(overtaken(m).wrong > 0, static_cast<int>(m));
}

TEST_CASE("a claimant that sleeps at any operation keeps the writer out that went on meanwhile") {
  Verdict verdict = slept(Mutant::none);
  CHECK(verdict.wrong == 0);
  CHECK(verdict.states > 10);
  CHECK(slept(Mutant::read_before_fence).wrong > 0);
}

TEST_CASE("of two that claim at once, interleaved at any operation, one can publish") {
  Verdict verdict = interleaved(
      Mutant::none, [](Writer&, Writer&) {}, [](Writer& a) { a.take_over(); },
      [](Writer&, Writer& b) { b.take_over(); },
      [](Writer& a, Writer& b, Verdict& v) {
        v.expect(a.log.fenced() != b.log.fenced());
        v.expect(a.log.current().generation != b.log.current().generation);
      });
  CHECK(verdict.wrong == 0);
  CHECK(verdict.states > 10);
}
