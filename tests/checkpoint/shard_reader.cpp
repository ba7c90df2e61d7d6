#include <mend/checkpoint/shard_reader.hpp>

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <mend/store/memory.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/model.hpp"

using mend::Bytes;
using mend::ByteView;
using mend::FileError;
using mend::Memory;
using mend::TrainState;
using mend::checkpoint::Place;
using mend::checkpoint::ShardReader;
using mend::store::Manifest;
using mend_test::Model;

namespace {

const mend::checkpoint::ShardLabel label{.step = 3, .applied = 1, .run = "run", .generation = 1};

Manifest::Shard put(Memory& store, const Bytes& bytes) {
  Manifest::Shard shard{.name = mend::store::shard_name(3, 1, 0), .length = bytes.size()};
  CHECK(store.put_if_absent(shard.name, bytes));
  return shard;
}
//! Whether reading all of it finds fault.
bool refused(Memory& store, const Manifest::Shard& shard) {
  try {
    ShardReader<Memory>{store, shard}.verify();
    return false;
  } catch (const FileError&) {
    return true;
  }
}
//! A small shard: everything that a header has, and few bytes.
Bytes small_shard() {
  Memory store;
  std::vector<float> w{1, 2, 3, 4}, g(4);
  std::vector<double> field{5, 6};
  std::int64_t own = 7;
  TrainState state;
  state.add("w", w, g, {.shape = {2, 2}}).add("tied", w, g, {.shape = {2, 2}});
  state.add_scalar("own", own, mend::PerRank{});
  state.add_buffer("field", field, mend::Slice{.of = {4}, .at = {2}, .extent = {2}});
  auto of_two = label;
  of_two.parts = 2;
  return mend::store::read_all(store, mend_test::write_part(store, state, of_two).name);
}

}  // namespace

TEST_CASE("a shard reads as it was written") {
  Memory store;
  Model model{3, 0, 1};
  auto shard = mend_test::write_part(store, model.state, label);
  ShardReader<Memory> reader{store, shard};
  CHECK(reader.label() == label);
  CHECK(reader.tied() == mend::store::SafetensorsHeader::Strings{{"tied to fc", "fc/weight"}});
  reader.verify();
  std::size_t found = 0;
  for (std::size_t i = 0; i < reader.tensors().size(); ++i) {
    const auto& t = reader.tensors()[i];
    CHECK(t.verified);
    const TrainState::Entry* e = model.state.find(t.name);
    REQUIRE(e != nullptr);
    CHECK(t.kind == e->kind);
    CHECK(t.place.kind == Place::of(*e).kind);
    Bytes room, expected = e->kind == TrainState::Kind::state ? e->save() : Bytes{};
    if (e->kind != TrainState::Kind::state) {
      ByteView v = e->view(room);
      expected.assign(v.begin(), v.end());
    }
    CHECK(reader.read(i) == expected);
    ++found;
  }
  CHECK(found == model.state.entries().size() - 1);  // one is tied
}

TEST_CASE("every byte that is flipped, every length that is cut, is found") {
  const Bytes bytes = small_shard();
  Memory store;
  CHECK_FALSE(refused(store, put(store, bytes)));
  for (std::size_t at = 0; at < bytes.size(); ++at)
    for (unsigned bits : {0x01u, 0x20u, 0x80u, 0xffu}) {
      Bytes damaged = bytes;
      damaged[at] ^= static_cast<std::byte>(bits);
      auto shard = put(store, damaged);
      CHECK_MESSAGE(refused(store, shard), at << " " << bits);
      store.remove(shard.name);
    }
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    auto shard = put(store, Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n)));
    CHECK_MESSAGE(refused(store, shard), n);  // even where the manifest says that length
    shard.length = bytes.size();
    CHECK(refused(store, shard));
    store.remove(shard.name);
  }
}

TEST_CASE("hostile lengths allocate nothing, and foreign files are refused") {
  Memory store;
  for (std::uint64_t length :
       {~std::uint64_t{}, std::uint64_t{1} << 62, std::uint64_t{90'000'000}}) {
    Bytes bytes(64);
    std::memcpy(bytes.data(), &length, 8);
    CHECK(refused(store, put(store, bytes)));
  }
  CHECK_THROWS_WITH_AS((ShardReader<Memory>{store, {.name = "shards/none"}}),
                       "the shard is not there [shards/none]: No such file or directory",
                       FileError);
  std::string foreign{"{}"};
  Bytes plain(10);
  plain[0] = std::byte{2};
  std::memcpy(plain.data() + 8, foreign.data(), 2);
  auto shard = put(store, plain);
  CHECK_THROWS_AS((ShardReader<Memory>{store, shard}), FileError);
}

TEST_CASE("a header that is whole and says what cannot be is refused") {
  auto with = [](const std::string& key, const std::string& value) {
    mend::store::SafetensorsHeader header;
    header.tensors = {{"w", mend::DType::f32, {2}, 0, 8}};
    Bytes data(8);
    header.metadata = {{"format", "mend"},
                       {"mend.version", "1"},
                       {"mend.step", "3"},
                       {"mend.applied", "1"},
                       {"mend.run", "run"},
                       {"mend.generation", "1"},
                       {"mend.rank", "0"},
                       {"mend.size", "1"},
                       {"mend.kinds", "tensor"},
                       {"mend.places", "whole"},
                       {"mend.hashes", mend::hash_bytes(data).to_hex()},
                       {"mend.tied", "{}"},
                       {"mend.checksum", std::string{mend::store::detail::no_checksum}}};
    for (auto& [k, v] : header.metadata)
      if (k == key) v = value;
    std::string text = mend::store::detail::sealed(header, "");
    std::uint64_t length = text.size();
    Bytes bytes(8 + text.size() + 8);
    std::memcpy(bytes.data(), &length, 8);
    std::memcpy(bytes.data() + 8, text.data(), text.size());
    Memory store;
    return refused(store, put(store, bytes));
  };
  CHECK_FALSE(with("", ""));
  CHECK_FALSE(with("mend.places", "rows:2/4"));
  CHECK_FALSE(with("mend.places", "slice:4;1;2"));
  for (const auto& wrong : std::vector<std::pair<const char*, const char*>>{
           {"mend.places", ""},
           {"mend.places", "nowhere"},
           {"mend.places", "rows:3/4"},
           {"mend.places", "slice:4;1;3"},
           {"mend.places",
            "slice:9223372036854775807,9223372036854775807;0,0;"
            "9223372036854775807,9223372036854775807"},
           {"mend.kinds", "something"},
           {"mend.generation", "x"},
           {"mend.generation", "-1"},
           {"mend.rank", "1"},
           {"mend.size", "0"},
           {"mend.size", "9000000000"}})
    CHECK_MESSAGE(with(wrong.first, wrong.second), wrong.first << " " << wrong.second);
}

TEST_CASE("a tensor larger than the window, and many small ones") {
  Memory store;
  std::vector<float> large(700'001), g(large.size());
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<float>(i);
  std::vector<std::vector<std::uint8_t>> small(10'000, std::vector<std::uint8_t>(33));
  TrainState state;
  state.add("large", large, g);
  for (std::size_t i = 0; i < small.size(); ++i) {
    small[i][5] = static_cast<std::uint8_t>(i);
    state.add_buffer("small " + std::to_string(i), small[i]);
  }
  ShardReader<Memory> reader{store, mend_test::write_part(store, state, label)};
  REQUIRE(reader.tensors().size() == 10'001);
  std::vector<float> read(large.size());
  reader.read(0, std::as_writable_bytes(std::span{read}));
  CHECK(read == large);
  bool same = true;
  for (std::size_t i = 0; i < small.size(); ++i) {
    Bytes bytes = reader.read(i + 1);
    same = same && std::memcmp(bytes.data(), small[i].data(), 33) == 0;
  }
  CHECK(same);
}

namespace {

//! A store that keeps of its one piece only what is not zero.
struct SparseStore : Memory {
  struct Content {
    std::map<std::uint64_t, Bytes> chunks;  // by where they begin
    std::uint64_t size = 0;
  };
  struct Writer {
    void write(ByteView bytes) {
      bool zero =
          std::all_of(
              bytes.begin(),
              bytes.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(16, bytes.size())),
              [](std::byte b) { return b == std::byte{0}; }) &&
          (bytes.size() <= 16 ||
           std::memcmp(bytes.data(), bytes.data() + 16, bytes.size() - 16) == 0);
      if (!zero) content->chunks[content->size].assign(bytes.begin(), bytes.end());
      content->size += bytes.size();
    }
    void publish() {}
    std::shared_ptr<Content> content;
  };
  [[nodiscard]] Writer put_new(const std::string&) {
    *content = {};
    return {content};
  }
  [[nodiscard]] std::optional<std::uint64_t> size(const std::string&) { return content->size; }
  void read_range(const std::string&, std::uint64_t offset, std::span<std::byte> into) {
    std::fill(into.begin(), into.end(), std::byte{0});
    for (const auto& [at, bytes] : content->chunks) {
      std::uint64_t from = std::max(at, offset);
      std::uint64_t to = std::min(at + bytes.size(), offset + into.size());
      if (from < to)
        std::memcpy(into.data() + (from - offset), bytes.data() + (from - at), to - from);
    }
  }
  std::shared_ptr<Content> content = std::make_shared<Content>();
};
static_assert(mend::Store<SparseStore>);

}  // namespace

TEST_CASE("a tensor of 5 GiB, mostly holes, cut in two") {
  constexpr std::size_t count = std::size_t{5} << 28;
  constexpr std::int64_t columns = 1024, rows = count / 1024;
  void* memory = ::mmap(nullptr, count * sizeof(float), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  std::span<float> values{static_cast<float*>(memory), count};
  values[1] = 1;
  values[count - 2] = 2;
  TrainState state;
  state.add_buffer("huge", values, {}, {.shape = {rows, columns}, .before_image = false});
  for (int part : {0, 1}) {
    SparseStore store;
    auto of_two = label;
    of_two.part = part;
    of_two.parts = 2;
    auto shard = mend_test::write_part(store, state, of_two, mend::ByteCount{0});
    CHECK(shard.length > (std::uint64_t{5} << 29));
    ShardReader<SparseStore> reader{store, shard};
    REQUIRE(reader.tensors().size() == 1);
    CHECK(reader.tensors()[0].shape == mend::Shape{rows / 2, columns});
    CHECK(reader.tensors()[0].place.first_row == part * rows / 2);
    float sum = 0;
    reader.stream(0, [&](std::size_t at, ByteView bytes) {
      if (at != 0 && at + bytes.size() != (std::size_t{5} << 29)) return;
      for (std::size_t i = 0; i < bytes.size(); i += 4) {
        float v = 0;
        std::memcpy(&v, bytes.data() + i, 4);
        sum += v;
      }
    });
    CHECK(sum == static_cast<float>(part + 1));
  }
  ::munmap(memory, count * sizeof(float));
}
