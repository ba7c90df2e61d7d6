#include <mend/checkpoint/loader.hpp>

#include <doctest/doctest.h>
#include <mend/checkpoint/publisher.hpp>
#include <mend/checkpoint/schema.hpp>
#include <mend/store/memory.hpp>

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/model.hpp"

using mend::Bytes;
using mend::ByteView;
using mend::FileError;
using mend::Memory;
using mend::PerRank;
using mend::Slice;
using mend::StateError;
using mend::TrainState;
using mend::checkpoint::Loader;
using mend::checkpoint::Publisher;
using mend::checkpoint::schema_of;
using mend_test::Model;
using mend_test::write_checkpoint;

namespace {

bool says(const std::string& text, std::string_view part) { return text.find(part) != text.npos; }
std::string error_of(auto call) {
  try {
    call();
  } catch (const mend::Error& e) {
    return e.what();
  }
  return "";
}

//! A store with checkpoints of the model's seeds, each by that many ranks.
Memory with_checkpoints(const std::vector<std::uint64_t>& seeds, int size, int keep = 9) {
  Memory store;
  Publisher<Memory> publisher{store, {.keep = keep}};
  publisher.open(schema_of(Model{0, 0, 1}.state), size);
  for (std::uint64_t seed : seeds) write_checkpoint(store, publisher, seed, size);
  return store;
}

void flip(Memory& store, const std::string& name, std::size_t at, unsigned bit = 0) {
  Bytes bytes = mend::store::read_all(store, name);
  bytes[at] ^= std::byte{1} << bit;
  store.remove(name);
  CHECK(store.put_if_absent(name, bytes));
}

//! The state of one checkpoint written by `parts` small states, which `add` registers.
struct Written {
  Memory store;
  Written(int parts, auto add) {
    Publisher<Memory> publisher{store, {}};
    publisher.open({}, parts);
    std::vector<mend::store::Manifest::Shard> shards;
    for (int rank = 0; rank < parts; ++rank) {
      TrainState state;
      add(state, rank);
      shards.push_back(mend_test::write_part(store, state,
                                             {.step = 5,
                                              .run = publisher.run(),
                                              .generation = publisher.generation(),
                                              .part = rank,
                                              .parts = parts}));
    }
    publisher.commit(5, shards);
  }
  std::string refused(int rank, int size, auto add) {
    TrainState state;
    add(state);
    return error_of([&] { (void)Loader{store}.restore_newest(state, rank, size); });
  }
};

}  // namespace

TEST_CASE("what N ranks wrote, M ranks restore, to the last bit") {
  for (int n = 1; n <= 8; ++n) {
    Memory store = with_checkpoints({3, 8}, n);
    for (int m = 1; m <= 8; ++m)
      for (int rank = 0; rank < m; ++rank) {
        Model expected{8, rank, m}, model{1, rank, m};
        if (n != m) {  // what their placements say
          expected.own = model.own;
          expected.loader = Model{8, 0, n}.loader;
        }
        auto found = Loader{store}.restore_newest(model.state, rank, m);
        REQUIRE(found.base);
        CHECK(found.base->step == 8);
        CHECK(found.skipped.empty());
        CHECK(model.state.applied == 4);
        CHECK_MESSAGE(model.hash() == expected.hash(), n << " -> " << m << " on " << rank);
      }
  }
}

TEST_CASE("blocks of another shape, from rows to columns and to one corner") {
  Written w{3, [](TrainState& s, int rank) {
              static std::vector<double> rows[3];
              rows[rank].resize(8);
              for (std::size_t i = 0; i < 8; ++i)
                rows[rank][i] = static_cast<double>(8 * static_cast<std::size_t>(rank) + i);
              s.add_buffer("a", rows[rank],
                           Slice{.of = {3, 2, 4}, .at = {rank, 0, 0}, .extent = {1, 2, 4}});
            }};
  auto restored = [&](Slice slice) {
    std::size_t n = 1;
    for (std::int64_t e : slice.extent) n *= static_cast<std::size_t>(e);
    std::vector<double> block(n);
    TrainState state;
    state.add_buffer("a", block, slice);
    (void)Loader{w.store}.restore_newest(state, 0, 1);
    return block;
  };
  CHECK(restored({.of = {3, 2, 4}, .at = {0, 0, 1}, .extent = {3, 2, 2}}) ==
        std::vector<double>{1, 2, 5, 6, 9, 10, 13, 14, 17, 18, 21, 22});
  CHECK(restored({.of = {3, 2, 4}, .at = {1, 1, 3}, .extent = {2, 1, 1}}) ==
        std::vector<double>{15, 23});
  CHECK(restored({.of = {3, 2, 4}, .at = {1, 0, 0}, .extent = {1, 2, 4}}) ==
        std::vector<double>{8, 9, 10, 11, 12, 13, 14, 15});
  CHECK(restored({.of = {3, 2, 4}, .at = {3, 2, 4}, .extent = {0, 0, 0}}).empty());
}

TEST_CASE("one tensor by its name") {
  Memory store = with_checkpoints({8}, 3);
  Loader loader{store};
  CHECK(loader.newest([] {}).base);
  Model model{8, 0, 1}, second{8, 1, 3};
  auto same = [](const auto& tensor, const auto& values) {
    ByteView bytes = std::as_bytes(std::span{values});
    return tensor.bytes == Bytes(bytes.begin(), bytes.end());
  };
  auto tall = loader.read_tensor("tall \xc3\xa9");
  CHECK(tall.dtype == mend::DType::f32);
  CHECK(tall.shape == mend::Shape{1000, 3});
  CHECK(same(tall, model.tall));
  auto field = loader.read_tensor("field");
  CHECK(field.shape == mend::Shape{13, 6});
  CHECK(same(field, model.field));
  CHECK(same(loader.read_tensor("line"), model.line));
  CHECK(same(loader.read_tensor("own", 1), second.own));
  CHECK(loader.read_tensor("loader", 1).bytes == second.loader);
  CHECK(loader.read_tensor("none").shape == mend::Shape{0, 4});
  CHECK(loader.read_tensor("position").shape.empty());
  CHECK(says(error_of([&] { (void)loader.read_tensor("own", 3); }), "no 'own' of rank 3"));
  CHECK(says(error_of([&] { (void)loader.read_tensor("nobody"); }), "holds no 'nobody'"));
}

TEST_CASE("a state that differs is refused, with names, and does not change") {
  float v = 1;
  std::vector<float> w(4), g(4), other(6), d_g(6);
  std::vector<double> d(4);
  Written written{2, [&](TrainState& s, int) {
                    s.add("w", w, g, {.shape = {2, 2}}).add_scalar("v", v, PerRank{});
                  }};
  auto refused = [&](auto add, int size = 2) { return written.refused(0, size, add); };
  CHECK(refused([&](TrainState& s) {
          s.add("w", w, g, {.shape = {2, 2}}).add_scalar("v", v, PerRank{});
        }).empty());
  CHECK(says(refused([&](TrainState& s) { s.add("x", w, g).add_buffer("y", d); }),
             "it lacks 'x', 'y'; it also holds 'v', 'w'"));
  CHECK(says(refused([&](TrainState& s) {
               s.add("w", other, d_g, {.shape = {3, 2}}).add_scalar("v", v, PerRank{});
             }),
             "'w' has the shape [2, 2] in it"));
  CHECK(says(refused([&](TrainState& s) {
               s.add("w", w, g, {.shape = {4}}).add_scalar("v", v, PerRank{});
             }),
             "'w' has the shape"));
  CHECK(says(refused([&](TrainState& s) {
               s.add_buffer("w", d, {}, {.shape = {2, 2}}).add_scalar("v", v);
             }),
             "'w' is a tensor of F32 in it and a buffer of F64 here; 'v' is a scalar of F32, per "
             "rank, in it and a scalar of F32 here"));
  CHECK(says(refused([&](TrainState& s) {
               s.add("w", w, g, {.shape = {2, 2}})
                   .add("again", w, g, {.shape = {2, 2}})
                   .add_scalar("v", v, PerRank{});
             }),
             "other tensors are tied in it"));
  auto per_rank = [&](TrainState& s) {
    s.add("w", w, g, {.shape = {2, 2}}).add_scalar("v", v, PerRank{});
  };
  CHECK(says(refused(per_rank, 3),
             "'v' is registered per rank; it was written by 2 ranks and here "
             "are 3: say what to do with PerRank{.on_resize"));
}

TEST_CASE("blocks that leave a gap, lie over one another or belong to another array are refused") {
  std::vector<float> a(6), b(8);
  Written gap{2, [&](TrainState& s, int rank) {
                s.add_buffer("a", a, Slice{.of = {8, 2}, .at = {4 * rank, 0}, .extent = {3, 2}});
              }};
  Written over{2, [&](TrainState& s, int rank) {
                 s.add_buffer("a", a, Slice{.of = {5, 2}, .at = {2 * rank, 0}, .extent = {3, 2}});
               }};
  auto whole = [&](std::int64_t n, auto& values) {
    values.resize(static_cast<std::size_t>(2 * n));
    return [n, &values](TrainState& s) {
      s.add_buffer("a", values, Slice{.of = {n, 2}, .at = {0, 0}, .extent = {n, 2}});
    };
  };
  CHECK(says(gap.refused(0, 1, whole(8, b)), "do not cover [8, 2] at [0, 0] of [8, 2]"));
  CHECK(says(over.refused(0, 1, whole(5, b)), "or lie over one another"));
  CHECK(says(over.refused(0, 1, whole(4, b)), "a slice of [5, 2], in it"));
  // The very blocks come back, even those that lie over one another.
  CHECK(over.refused(1, 2,
                     [&](TrainState& s) {
                       s.add_buffer("a", a, Slice{.of = {5, 2}, .at = {2, 0}, .extent = {3, 2}});
                     })
            .empty());
  Loader loader{gap.store};
  CHECK(loader.newest([] {}).base);
  CHECK_THROWS_AS((void)loader.read_tensor("a"), FileError);
}

TEST_CASE("what is damaged is skipped and named, and an older checkpoint is taken") {
  Memory store = with_checkpoints({2, 4, 6}, 3);
  auto bases = mend::store::ManifestLog{store}.newest().manifest->bases;
  REQUIRE(bases.size() == 3);
  flip(store, bases[2].shards[1].name, bases[2].shards[1].length - 1);
  store.remove(bases[1].shards[2].name);
  // Rank 0 has no need of what is damaged: all ranks must go by what one has verified whole.
  Model other{1, 0, 3};
  CHECK(Loader{store}.restore_newest(other.state, 0, 3).base == bases[2]);
  Model model{1, 1, 3};
  auto found = Loader{store}.restore_newest(model.state, 1, 3);
  CHECK(found.base == bases[0]);
  CHECK(model.hash() == Model{2, 1, 3}.hash());
  Loader loader{store};
  CHECK(loader.newest([&] { loader.verify(); }).base == bases[0]);
  REQUIRE(found.skipped.size() == 2);
  CHECK(found.skipped[0].name == bases[2].shards[1].name);
  CHECK(says(found.skipped[0].why, "step 6: the shard is damaged: the checksum of '"));
  CHECK(says(found.skipped[1].why, "step 4: the shard is not there"));
  flip(store, bases[0].shards[0].name, 100);
  Model untouched{1, 1, 3};
  CHECK_FALSE(Loader{store}.restore_newest(untouched.state, 1, 3).base);
  CHECK(untouched.hash() == Model{1, 1, 3}.hash());
}

TEST_CASE("a manifest that is damaged, or whose bases are gone, leads to the one before") {
  Memory store = with_checkpoints({2, 4}, 1, 1);  // the manifest of step 2 is still there
  mend::store::ManifestLog log{store};
  auto newest = *log.newest().manifest;
  flip(store, log.name_of(newest.sequence), 30);
  auto found = Loader{store}.newest([] {});
  CHECK_FALSE(found.base);  // retention took what the older one names
  REQUIRE(found.skipped.size() == 2);
  CHECK(says(found.skipped[0].name, "manifests/"));
  CHECK(says(found.skipped[1].why, "step 2: the shard is not there"));
}

TEST_CASE("parts of different checkpoints are never mixed") {
  Memory store = with_checkpoints({2, 4}, 2);
  mend::store::Manifest m = *mend::store::ManifestLog{store}.newest().manifest;
  Loader loader{store};
  auto refused = [&](auto change) {
    mend::store::Manifest other = m;
    change(other, other.bases[1]);
    return error_of([&] { loader.open(other, other.bases[1]); });
  };
  using M = mend::store::Manifest;
  using B = M::Base;
  CHECK(refused([](M&, B&) {}).empty());
  CHECK(
      says(refused([](M& o, B& b) { b.shards[1] = o.bases[0].shards[1]; }), "another checkpoint"));
  CHECK(says(refused([](M&, B& b) { std::swap(b.shards[0], b.shards[1]); }), "another checkpoint"));
  CHECK(says(refused([](M&, B& b) { b.shards.pop_back(); }), "another checkpoint"));
  CHECK(says(refused([](M&, B& b) { b.step = 5; }), "another checkpoint"));
  CHECK(says(refused([](M&, B& b) { b.generation = 5; }), "another checkpoint"));
  CHECK(says(refused([](M& o, B&) { o.run.id = "x"; }), "another checkpoint"));
  CHECK(says(refused([](M&, B& b) { ++b.shards[0].length; }), "its manifest says"));
  CHECK(says(refused([](M&, B& b) { b.shards.clear(); }), "no shards"));
}

TEST_CASE("a file that changes after the check leaves a state that says so") {
  Memory store = with_checkpoints({2}, 1);
  Model model{1, 0, 1};
  Loader loader{store};
  auto found = loader.newest([&] { loader.check(model.state, 0, 1); });
  CHECK(model.hash() == Model{1, 0, 1}.hash());
  flip(store, found.base->shards[0].name, found.base->shards[0].length - 1);
  CHECK(says(error_of([&] { loader.restore(model.state, 0, 1); }), "only partly restored"));
}

namespace {

int device_reads = 0, device_writes = 0;
const mend::DeviceMemory device_memory{.read =
                                           [](const std::byte* from, std::byte* to, std::size_t n) {
                                             ++device_reads;
                                             std::memcpy(to, from, n);
                                           },
                                       .write =
                                           [](const std::byte* from, std::byte* to, std::size_t n) {
                                             ++device_writes;
                                             std::memcpy(to, from, n);
                                           }};
struct DeviceSpan {
  using element_type = float;
  [[nodiscard]] float* data() const { return values->data(); }
  [[nodiscard]] std::size_t size() const { return values->size(); }
  static const mend::DeviceMemory& memory() { return device_memory; }
  std::vector<float>* values;
};

}  // namespace

TEST_CASE("memory of a device is read and written through it") {
  std::vector<float> w{1, 2, 3, 4}, g(4);
  auto add = [&](TrainState& s) { s.add("w", DeviceSpan{&w}, DeviceSpan{&g}, {.shape = {2, 2}}); };
  device_reads = device_writes = 0;
  Written written{2, [&](TrainState& s, int) { add(s); }};
  CHECK(device_reads == 2);
  w.assign(4, 0.f);
  CHECK(written.refused(0, 1, add).empty());
  CHECK(w == std::vector<float>{1, 2, 3, 4});
  CHECK(device_writes == 1);
}
