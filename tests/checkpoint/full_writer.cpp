#include <mend/checkpoint/full_writer.hpp>

#include <doctest/doctest.h>
#include <mend/checkpoint/loader.hpp>
#include <mend/store/directory.hpp>
#include <mend/store/memory.hpp>
#include <mend/store/safetensors.hpp>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/model.hpp"
#include "core/scratch.hpp"

using mend::ByteCount;
using mend::Bytes;
using mend::ByteView;
using mend::FileError;
using mend::Memory;
using mend::TrainState;
using mend::checkpoint::FullWriter;
using mend::checkpoint::Loader;
using mend::store::Manifest;
using mend_test::Model;

namespace {

//! A store in memory whose writes wait at a gate, and fail where that is said.
struct GatedMemory : Memory {
  struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = false;
    int arrived = 0, fail_at = -1, code = ENOSPC;  // of writes
    std::size_t open_until = 0;                    // bytes that pass before it

    void pass(std::size_t written) {
      std::unique_lock lock{mutex};
      if (arrived++ == fail_at) throw FileError{"injected", {.code = code, .path = "memory"}};
      changed.notify_all();
      changed.wait(lock, [&] { return open || written < open_until; });
    }
    void set_open() {
      std::lock_guard lock{mutex};
      open = true;
      changed.notify_all();
    }
    void wait_for_writer() {
      std::unique_lock lock{mutex};
      changed.wait(lock, [&] { return arrived > 0; });
    }
  };
  struct Writer {
    void write(ByteView bytes) {
      gate->pass(written);
      written += bytes.size();
      inner.write(bytes);
    }
    void publish() { inner.publish(); }
    Memory::Writer inner;
    std::shared_ptr<Gate> gate;
    std::size_t written = 0;
  };
  [[nodiscard]] Writer put_new(const std::string& name) { return {Memory::put_new(name), gate}; }
  std::shared_ptr<Gate> gate = std::make_shared<Gate>();
};
static_assert(mend::Store<GatedMemory>);

const mend::checkpoint::ShardLabel label{.step = 3, .applied = 1, .run = "run", .generation = 1};

//! What one part, the whole, holds.
mend::Hash128 restored(Memory store, const Manifest::Shard& shard) {
  Manifest m;
  m.run.id = "run";
  Model model{1, 0, 1};
  Loader loader{std::move(store)};
  loader.open(m, {.step = 3, .generation = 1, .shards = {shard}});
  loader.restore(model.state, 0, 1);
  return model.hash();
}

}  // namespace

TEST_CASE("what is written is the state at begin, whatever changes afterwards") {
  for (std::uint64_t staging : {0u, 100u, 3000u, 13'000u, 1u << 20}) {
    Memory store;
    FullWriter<Memory> writer{store, ByteCount{staging}};
    Model model{3, 0, 1};
    mend::Hash128 expected = model.hash();
    for (int i = 0; i < 5; ++i) {
      model.fill(3);
      REQUIRE(writer.begin(model.state, label));
      // The lambda.
      model.bytes.assign(77, 0), model.position = 0, model.shared.clear(), model.loader.clear();
      model.own.assign(9, 0), model.line.assign(model.line.size(), 0);
      CHECK(writer.before_update() >= mend::Time{0});
      model.fill(9);  // the update changes everything
      auto report = writer.wait();
      REQUIRE(report);
      REQUIRE(report->shard);
      CHECK(report->step == 3);
      CHECK_FALSE(report->error);
      CHECK(restored(store, *report->shard) == expected);
      CHECK(mend::hash_bytes(mend::store::read_all(store, report->shard->name)) ==
            report->shard->hash);
    }
  }
}

TEST_CASE("training goes on while a staged part is written; another begin is skipped") {
  GatedMemory store;
  FullWriter<GatedMemory> writer{store, ByteCount{1 << 20}};
  Model model{3, 0, 1};
  REQUIRE(writer.begin(model.state, label));
  store.gate->wait_for_writer();
  CHECK(writer.before_update() == mend::Time{0});  // all is copied though nothing is written
  model.fill(4);
  CHECK(writer.busy());
  CHECK_FALSE(writer.poll());
  CHECK_FALSE(writer.begin(model.state, label));
  store.gate->set_open();
  auto report = writer.wait();
  REQUIRE(report);
  CHECK(restored(store, *report->shard) == Model{3, 0, 1}.hash());
  CHECK_FALSE(writer.poll());  // once
  CHECK_FALSE(writer.wait());
  CHECK(writer.begin(model.state, label));
  for (std::optional<FullWriter<GatedMemory>::Report> r; !r; r = writer.poll())
    std::this_thread::yield();
  CHECK_FALSE(writer.busy());
}

TEST_CASE("before_update blocks until what is not staged has been written") {
  GatedMemory store;
  FullWriter<GatedMemory> writer{store, ByteCount{0}};
  Model model{3, 0, 1};
  REQUIRE(writer.begin(model.state, label));
  store.gate->wait_for_writer();
  std::atomic<bool> passed = false;
  mend::Time stalled{0};
  std::thread trainer{[&] {
    stalled = writer.before_update();
    passed = true;
  }};
  CHECK_FALSE(passed);  // cannot: the gate is closed
  store.gate->set_open();
  trainer.join();
  CHECK(passed);
  model.fill(4);
  CHECK(restored(store, *writer.wait()->shard) == Model{3, 0, 1}.hash());
}

TEST_CASE("an error is reported with its errno and path, and the next attempt works") {
  for (int at = 0; at < 6; ++at) {
    GatedMemory store;
    store.gate->set_open();
    store.gate->fail_at = at;
    FullWriter<GatedMemory> writer{store, ByteCount{100}};
    Model model{3, 0, 1};
    REQUIRE(writer.begin(model.state, label));
    (void)writer.before_update();  // does not hang
    auto report = writer.wait();
    REQUIRE(report);
    CHECK_FALSE(report->shard);
    REQUIRE(report->error);
    CHECK(report->error->code() == ENOSPC);
    CHECK(report->error->path() == "memory");
    CHECK(store.list("").empty());
    REQUIRE(writer.begin(model.state, label));
    CHECK(restored(store, *writer.wait()->shard) == model.hash());
  }
}

TEST_CASE("the end of the object gives up what is being written") {
  GatedMemory store;
  Model model{3, 0, 1};
  {
    std::thread opener;
    FullWriter<GatedMemory> writer{store, ByteCount{1 << 20}};
    REQUIRE(writer.begin(model.state, label));
    store.gate->wait_for_writer();
    (void)writer.before_update();
    opener = std::thread{[&] { store.gate->set_open(); }};
    opener.join();
  }
  CHECK(store.list("").size() <= 1);  // whole or not there
  FullWriter<GatedMemory> never_used{store, ByteCount{1}};
}

TEST_CASE("a save function that throws, and a name that no file holds, begin nothing") {
  Memory store;
  FullWriter<Memory> writer{store, ByteCount{100}};
  float v = 1;
  TrainState bad;
  bad.add_scalar("\xff", v);
  CHECK_THROWS_AS(writer.begin(bad, label), mend::StateError);
  TrainState throws;
  throws.add_state(
      "s", []() -> Bytes { throw std::runtime_error{"no"}; }, [](ByteView) {});
  CHECK_THROWS_AS(writer.begin(throws, label), std::runtime_error);
  CHECK_FALSE(writer.busy());
  CHECK(writer.before_update() == mend::Time{0});
}

TEST_CASE("a part that is the whole loads as a file by itself") {
  mend_test::Scratch scratch;
  mend::Directory store{scratch / "ckpt"};
  Model model{3, 0, 1};
  auto shard = mend_test::write_part(store, model.state, label);
  Model other{1, 0, 1};
  mend::load(other.state, (scratch / "ckpt") + "/" + shard.name);
  CHECK(other.state.step == 3);
  other.state.applied = model.state.applied;
  CHECK(other.hash() == model.hash());
}

TEST_CASE("a directory that cannot be written to") {
  mend_test::Scratch scratch;
  mend::Directory store{scratch / "a file/ckpt"};
  FullWriter<mend::Directory> writer{store, ByteCount{1 << 20}};
  {
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> f{std::fopen((scratch / "a file").c_str(), "w"),
                                                      std::fclose};
  }
  Model model{3, 0, 1};
  REQUIRE(writer.begin(model.state, label));
  auto report = writer.wait();
  REQUIRE(report->error);
  CHECK(report->error->code() == ENOTDIR);
}
