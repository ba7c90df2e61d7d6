#include <mend/checkpoint/shard.hpp>

#include <doctest/doctest.h>
#include <mend/store/memory.hpp>
#include <mend/store/safetensors_header.hpp>

#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

using mend::Bytes;
using mend::ByteView;
using mend::Memory;
using mend::TrainState;
using mend::checkpoint::ShardPlan;
using mend::checkpoint::ShardTensor;

namespace {

struct Fixture {
  Fixture() {
    state.add("w", w, g, {.shape = {4, 2}}).add_scalar("v", v, mend::PerRank{});
    plan = ShardPlan{state, 1, 2}.pieces();
    for (const auto& p : plan) tensors.push_back({&p, {p.entry->value + p.offset, p.bytes}});
  }
  mend::store::Manifest::Shard write(Memory store, auto progress) {
    return mend::checkpoint::write_shard(store,
                                         {.step = 7,
                                          .applied = 6,
                                          .run = "0123456789abcdef",
                                          .generation = 3,
                                          .part = 1,
                                          .parts = 2},
                                         {{"tied", "w"}}, std::span<const ShardTensor>{tensors},
                                         progress);
  }
  std::vector<float> w{1, 2, 3, 4, 5, 6, 7, 8}, g = w;
  double v = 9;
  TrainState state;
  std::vector<ShardPlan::Piece> plan;
  std::vector<ShardTensor> tensors;
};

}  // namespace

TEST_CASE("a shard is a plain .safetensors file with everything in its header") {
  Fixture f;
  Memory store;
  std::vector<std::size_t> done;
  auto shard = f.write(store, [&](std::size_t n) { done.push_back(n); });
  CHECK(shard.name.starts_with("shards/step-7-generation-3-part-1-"));
  Bytes bytes = mend::store::read_all(store, shard.name);
  CHECK(bytes.size() == shard.length);
  CHECK(mend::hash_bytes(bytes) == shard.hash);
  CHECK(done == std::vector<std::size_t>{0, 0, 0, 1, 2});
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  std::string text{reinterpret_cast<const char*>(bytes.data()) + 8,
                   static_cast<std::size_t>(length)};
  auto header = mend::store::SafetensorsHeader::parse(text, bytes.size() - 8 - length, shard.name);
  REQUIRE(header.tensors.size() == 2);
  CHECK(header.tensors[0].name == "v");
  CHECK(header.tensors[1].name == "w");
  CHECK(header.tensors[1].shape == mend::Shape{2, 2});
  auto is = [&](const char* key, const char* value) {
    REQUIRE(header.find(key) != nullptr);
    CHECK(*header.find(key) == value);
  };
  is("format", "mend");
  is("mend.version", "1");
  is("mend.step", "7");
  is("mend.applied", "6");
  is("mend.run", "0123456789abcdef");
  is("mend.generation", "3");
  is("mend.rank", "1");
  is("mend.size", "2");
  is("mend.kinds", "scalar tensor");
  is("mend.places", "rank rows:2/4");
  is("mend.tied", "{\"tied\":\"w\"}");
  CHECK(std::memcmp(bytes.data() + 8 + length + 8, f.w.data() + 4, 16) == 0);
}

TEST_CASE("what throws in the middle leaves nothing behind") {
  Fixture f;
  for (std::size_t at = 0; at < 5; ++at) {
    Memory store;
    std::size_t calls = 0;
    CHECK_THROWS_AS((void)f.write(store,
                                  [&](std::size_t) {
                                    if (calls++ == at) throw std::runtime_error{"stop"};
                                  }),
                    std::runtime_error);
    CHECK(store.list("").empty());
  }
}

TEST_CASE("the hash of a stream is that of its bytes, however they are cut") {
  std::mt19937 random{1};
  Bytes bytes(1000);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  for (int trial = 0; trial < 300; ++trial) {
    ByteView all = ByteView{bytes}.first(random() % 1000), rest = all;
    mend::checkpoint::detail::StreamHash hash;
    while (!rest.empty()) {
      std::size_t n = random() % (std::min<std::size_t>(rest.size(), trial % 2 != 0 ? 9 : 200) + 1);
      hash.add(rest.first(n));
      rest = rest.subspan(n);
    }
    CHECK(hash.value() == mend::hash_bytes(all));
  }
}
