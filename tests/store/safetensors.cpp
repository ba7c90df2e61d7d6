#include <mend/store/safetensors.hpp>

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/disk.hpp"
#include "core/scratch.hpp"

using mend::Bytes;
using mend::ByteView;
using mend::DType;
using mend::Error;
using mend::FileError;
using mend::StateError;
using mend::TrainState;
using mend_test::Disk;

namespace {

//! A small trainer with one of everything; `seed` fills it.
struct Trainer {
  explicit Trainer(std::uint64_t seed) {
    std::mt19937_64 random{seed};
    auto fill = [&](auto& v) {
      for (auto& b : std::as_writable_bytes(std::span{v})) b = static_cast<std::byte>(random());
    };
    fill(w), fill(bias), fill(half), fill(steps), fill(loader);
    scale = static_cast<float>(random() % 1000) / 7;
    position = static_cast<std::int64_t>(random() >> 1);
    flag = random() % 2 == 0;
    state.step = static_cast<std::int64_t>(random() % 1000);
    state.applied = state.step - 1;
    state.add("fc1.weight", w, gw, {.shape = {3, 5}})
        .add("tied/to \"fc1\" \xc3\xa9", w, gw, {.shape = {3, 5}})
        .add("bias", bias, gbias)
        .add("nothing", nothing, gnothing, {.shape = {4, 0}});
    state.add_buffer("half", half, mend::PerRank{}).add_buffer("counts", steps);
    state.add_scalar("scale", scale).add_scalar("position", position).add_scalar("flag", flag);
    state.add_state(
        "loader", [this] { return loader; },
        [this](ByteView bytes) { loader.assign(bytes.begin(), bytes.end()); });
  }
  [[nodiscard]] bool same(const Trainer& other) const {
    auto equal = [](const auto& a, const auto& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
    };
    return equal(w, other.w) && equal(bias, other.bias) && equal(half, other.half) &&
           equal(steps, other.steps) && equal(loader, other.loader) &&
           std::memcmp(&scale, &other.scale, sizeof scale) == 0 && position == other.position &&
           flag == other.flag && state.step == other.state.step &&
           state.applied == other.state.applied;
  }

  std::vector<float> w = std::vector<float>(15), gw = w;
  std::vector<double> bias = std::vector<double>(3), gbias = bias;
  std::vector<float> nothing, gnothing;
  std::vector<std::uint16_t> half = std::vector<std::uint16_t>(7);
  std::vector<std::int32_t> steps = std::vector<std::int32_t>(2);
  float scale = 0;
  std::int64_t position = 0;
  bool flag = false;
  Bytes loader = Bytes(13);
  TrainState state;
};

std::string saved(const Trainer& trainer) {
  Disk disk;
  save(trainer.state, "file", disk);
  return disk.now.at("file")->text;
}

Disk disk_with(std::string text) {
  Disk disk;
  disk.now["file"] = std::make_shared<Disk::Node>(Disk::Node{std::move(text), ""});
  return disk;
}

//! The message with which a file is refused, empty if it is not. Refused means: nothing changed.
std::string refusal(Trainer& trainer, std::string text) {
  Trainer before{99};
  Disk disk = disk_with(saved(trainer));
  load(before.state, "file", disk);
  disk = disk_with(std::move(text));
  try {
    load(trainer.state, "file", disk);
    return "";
  } catch (const Error& e) {
    CHECK(e.path() == "file");
    CHECK(trainer.same(before));
    return e.what();
  }
}

bool says(const std::string& message, std::string_view part) {
  return message.find(part) != std::string::npos;
}

//! A file as another tool writes it.
std::string foreign(const std::string& header, const std::string& data) {
  std::uint64_t length = header.size();
  return std::string{reinterpret_cast<const char*>(&length), 8} + header + data;
}

}  // namespace

TEST_CASE("what is saved is loaded, bit for bit") {
  Trainer a{1}, b{2};
  REQUIRE_FALSE(a.same(b));
  mend_test::Scratch scratch;
  save(a.state, scratch / "a.safetensors");
  load(b.state, scratch / "a.safetensors");
  CHECK(a.same(b));
  Trainer c{3};
  std::filesystem::path path{scratch / "a.safetensors"};
  save(c.state, path);  // over the old one
  load(b.state, path);
  CHECK(b.same(c));
  CHECK(mend::PosixFileSystem{}.list(scratch.path) == std::vector<std::string>{"a.safetensors"});
}

TEST_CASE("the same state gives the same file, byte for byte") {
  Trainer a{1}, b{2};
  Disk disk = disk_with(saved(a));
  load(b.state, "file", disk);
  CHECK(saved(a) == saved(b));
}

TEST_CASE("the file is what any reader of .safetensors expects") {
  Trainer a{1};
  std::string file = saved(a);
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  auto h = mend::store::SafetensorsHeader::parse(std::string_view{file}.substr(8, length),
                                                 file.size() - 8 - length, "file");
  CHECK((8 + length) % 64 == 0);
  CHECK(h.tensors.size() == 9);  // the tied one is stored once
  for (const auto& t : h.tensors) {
    CHECK(t.begin % mend::size_of(t.dtype) == 0);
    if (t.name == "fc1.weight") {
      CHECK(t.shape == std::vector<std::int64_t>{3, 5});
      CHECK(std::memcmp(file.data() + 8 + length + t.begin, a.w.data(), 60) == 0);
    }
    if (t.name == "scale") CHECK(t.shape.empty());
    if (t.name == "nothing") CHECK(t.shape == std::vector<std::int64_t>{4, 0});
    if (t.name == "loader") {
      CHECK(t.dtype == DType::u8);
      CHECK(t.shape == std::vector<std::int64_t>{13});
    }
  }
  CHECK(*h.find("format") == "mend");
  CHECK(*h.find("mend.step") == std::to_string(a.state.step));
  CHECK(*h.find("mend.kinds") == "tensor scalar tensor tensor buffer scalar buffer scalar state");
}

TEST_CASE("an empty state, and one without bytes") {
  TrainState empty;
  Disk disk;
  save(empty, "file", disk);
  CHECK_NOTHROW(load(empty, "file", disk));
  std::vector<float> none;
  TrainState zero;
  zero.add("none", none, none);
  CHECK_THROWS_AS(load(zero, "file", disk), StateError);
  save(zero, "file2", disk);
  CHECK_NOTHROW(load(zero, "file2", disk));
}

TEST_CASE("every truncation is refused, and leaves the state as it was") {
  Trainer a{1}, b{2};
  std::string file = saved(a);
  for (std::size_t n = 0; n < file.size(); ++n) CHECK(refusal(b, file.substr(0, n)) != "");
  CHECK(refusal(b, file + '\0') != "");
  CHECK(refusal(b, file).empty());
}

TEST_CASE("every change of one byte is refused, and leaves the state as it was") {
  std::vector<float> w{1, 2}, g(2), other_w(2), other_g(2);
  std::int8_t small = 3, other_small = 4;
  Bytes blob(3), other_blob;
  auto keep = [](Bytes& to) {
    return [&to](ByteView bytes) { to.assign(bytes.begin(), bytes.end()); };
  };
  TrainState state, other;
  state.add("w", w, g).add("tied", w, g).add_scalar("s", small);
  state.add_state(
      "b", [&] { return blob; }, keep(blob));
  other.add("w", other_w, other_g).add("tied", other_w, other_g).add_scalar("s", other_small);
  other.add_state(
      "b", [&] { return other_blob; }, keep(other_blob));
  Disk disk;
  save(state, "file", disk);
  std::string& text = disk.now.at("file")->text;
  std::size_t accepted = 0, changed = 0, untyped = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    char right = text[i];
    for (int value = 0; value < 256; ++value) {
      if (static_cast<char>(value) == right) continue;
      text[i] = static_cast<char>(value);
      try {
        load(other, "file", disk);
        ++accepted;
      } catch (const Error&) {
      } catch (...) {
        ++untyped;
      }
      changed += other_w[0] != 0 || other_w[1] != 0 || other_small != 4 || !other_blob.empty() ||
                 other.step != 0;
    }
    text[i] = right;
  }
  CHECK(accepted == 0);
  CHECK(changed == 0);
  CHECK(untyped == 0);
  load(other, "file", disk);
  CHECK(other_w == w);
  CHECK(other_small == small);
  CHECK(other_blob == blob);
}

TEST_CASE("a file of mend's does not pass for another tool's when its mark is damaged") {
  std::vector<float> w{1}, g(1);
  TrainState state;
  state.add("w", w, g);
  Disk disk;
  save(state, "file", disk);
  std::string& text = disk.now.at("file")->text;
  for (std::string_view mark : {"\"mend\"", "\"format\"", "__metadata__"}) {
    std::string whole = text;
    text[text.find(mark) + 1] = 'n';
    CHECK_THROWS_AS(load(state, "file", disk), Error);
    text = whole;
  }
  CHECK_NOTHROW(load(state, "file", disk));
}

TEST_CASE("a damaged tensor is named") {
  Trainer a{1}, b{2};
  std::string file = saved(a);
  std::size_t at = file.find(std::string{reinterpret_cast<const char*>(a.w.data()), 60});
  REQUIRE(at != file.npos);
  file[at + 59] = static_cast<char>(file[at + 59] ^ 1);
  CHECK(says(refusal(b, file), "'fc1.weight' is damaged"));
}

TEST_CASE("lengths that no file has allocate nothing and are refused") {
  Trainer b{2};
  for (std::uint64_t length : {~std::uint64_t{0}, std::uint64_t{1} << 63, std::uint64_t{1} << 40,
                               std::uint64_t{100'000'001}, std::uint64_t{3}}) {
    std::string file{reinterpret_cast<const char*>(&length), 8};
    CHECK(says(refusal(b, file + "{}"), "header would have"));
  }
  CHECK(says(refusal(b, ""), "too short"));
  CHECK(says(refusal(b, "1234567"), "too short"));
}

TEST_CASE("missing, unexpected and differing entries are named") {
  std::vector<float> w(6), g(6);
  std::vector<double> d(6);
  float f = 0;
  Disk disk;
  TrainState file;
  file.add("a", w, g, {.shape = {2, 3}}).add_scalar("only there", f);
  file.add_buffer("d", d);
  save(file, "file", disk);
  auto message = [&](const TrainState& state) {
    auto& s = const_cast<TrainState&>(state);
    try {
      load(s, "file", disk);
    } catch (const StateError& e) {
      CHECK(e.path() == "file");
      return std::string{e.what()};
    }
    return std::string{};
  };
  {
    TrainState here;
    std::vector<float> d32(6);
    here.add("a", w, g, {.shape = {3, 2}}).add_buffer("d", d32).add_scalar("only here", f);
    std::string text = message(here);
    CHECK(says(text, "it lacks 'only here'"));
    CHECK(says(text, "it also holds 'only there'"));
    CHECK(says(text, "'a' is F32 [2, 3] in the file and F32 [3, 2] here"));
    CHECK(says(text, "'d' is F64 [6] in the file and F32 [6] here"));
  }
  {
    TrainState here;
    here.add_buffer("a", w, {}, {.shape = {2, 3}}).add_scalar("only there", f).add_buffer("d", d);
    CHECK(says(message(here), "'a' is a tensor in the file and a buffer here"));
  }
  {
    TrainState here;
    here.add("a", w, g, {.shape = {2, 3}}).add("alias", w, g, {.shape = {2, 3}});
    here.add_scalar("only there", f).add_buffer("d", d);
    CHECK(says(message(here), "other tensors are tied in it: 'alias'"));
  }
  {
    TrainState here;
    std::vector<std::vector<float>> many(20, std::vector<float>(1));
    for (std::size_t i = 0; i < many.size(); ++i)
      here.add_buffer("many" + std::to_string(i), many[i]);
    CHECK(says(message(here), "it lacks 'many0', 'many1', 'many2', 'many3', 'many4' and 15 more"));
  }
  {
    TrainState here;  // near miss: the very same state loads
    here.add("a", w, g, {.shape = {2, 3}}).add_scalar("only there", f).add_buffer("d", d);
    CHECK(message(here).empty());
  }
}

TEST_CASE("per-rank state is loaded on its own rank of a group of its own size, and nowhere else") {
  struct Worker {
    Worker(int rank, int size, mend::Placement placement) : noise(3, float(rank)) {
      state.add("w", w, g).add_buffer("noise", noise, std::move(placement));
      state.rank = rank;
      state.size = size;
    }
    std::vector<float> w = std::vector<float>(2), g = w, noise;
    TrainState state;
  };
  Worker of_zero{0, 3, mend::PerRank{}}, of_one{1, 3, mend::PerRank{}};
  Disk disk;
  save(of_zero.state, "0", disk);
  save(of_one.state, "1", disk);
  auto refused = [&](int rank, int size, const char* file,
                     mend::Placement placement = mend::PerRank{}) {
    Worker here{rank, size, std::move(placement)};
    here.noise.assign(3, -1);
    try {
      load(here.state, file, disk);
      CHECK(here.noise == std::vector<float>(3, float(file[0] - '0')));
      return std::string{};
    } catch (const StateError& e) {
      CHECK(here.noise == std::vector<float>(3, -1));
      CHECK(e.path() == file);
      return std::string{e.what()};
    }
  };
  CHECK(refused(0, 3, "0").empty());
  CHECK(refused(1, 3, "1").empty());
  CHECK(says(refused(1, 3, "0"),
             "'noise' is registered per rank and this file holds rank 0's of 3, here is rank 1 of "
             "3; save one file per rank, and load each on its rank"));
  CHECK(says(refused(0, 3, "1"), "rank 1's of 3, here is rank 0 of 3"));
  CHECK(says(refused(0, 4, "0"), "rank 0's of 3, here is rank 0 of 4"));
  CHECK(says(refused(0, 1, "0"), "rank 0's of 3, here is rank 0 of 1"));
  CHECK(says(refused(1, 3, "0", mend::Slice{.of = {9}, .at = {3}, .extent = {3}}), "per rank"));
  CHECK(refused(1, 3, "0", mend::Replicated{}).empty());  // this program says that all are alike

  // Without per-rank entries a file fits every rank of every group, and says nothing of ranks.
  Worker replicated{2, 3, mend::Replicated{}};
  save(replicated.state, "2", disk);
  CHECK_FALSE(says(disk.now.at("2")->text, "mend.rank"));
  CHECK(refused(0, 1, "2", mend::Replicated{}).empty());
  CHECK(refused(4, 5, "2", mend::Replicated{}).empty());
}

TEST_CASE("a tie that the state has and the file has not, and the other way round, are errors") {
  std::vector<float> a(2), ga(2), b(2), gb(2);
  Disk disk;
  TrainState tied, apart;
  tied.add("a", a, ga).add("b", a, ga);
  apart.add("a", a, ga).add("b", b, gb);
  save(tied, "tied", disk);
  save(apart, "apart", disk);
  CHECK_THROWS_AS(load(apart, "tied", disk), StateError);
  CHECK_THROWS_AS(load(tied, "apart", disk), StateError);
  CHECK_NOTHROW(load(tied, "tied", disk));
  CHECK_NOTHROW(load(apart, "apart", disk));
}

TEST_CASE("a file from another tool gives tensors, buffers and the scalars that it holds") {
  std::vector<float> w(2), g(2);
  std::vector<std::int8_t> mean(3);
  float scale = 5;
  Bytes blob{std::byte{1}};
  TrainState state;
  state.step = 12;
  state.add("w", w, g).add_buffer("mean", mean).add_scalar("scale", scale);
  state.add_state(
      "s", [&] { return blob; }, [&](ByteView b) { blob.assign(b.begin(), b.end()); });
  std::string data{"\0\0\x80\x3f\0\0\0\x40\x01\x02\x03", 11};
  std::string tensors =
      "\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
      "\"mean\":{\"dtype\":\"I8\",\"shape\":[3],\"data_offsets\":[8,11]}";
  Disk disk = disk_with(foreign("{\"__metadata__\":{\"format\":\"pt\"}," + tensors + "}", data));
  load(state, "file", disk);
  CHECK(w == std::vector<float>{1, 2});
  CHECK(mean == std::vector<std::int8_t>{1, 2, 3});
  CHECK(scale == 5);
  CHECK(state.step == 12);
  CHECK(blob.size() == 1);

  disk = disk_with(foreign(
      "{" + tensors + ",\"scale\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[11,15]}}",
      data + std::string{"\0\0\x80\x3f", 4}));
  load(state, "file", disk);
  CHECK(scale == 1);

  w[0] = 7;
  auto refused = [&](const std::string& header, const std::string& bytes) {
    disk = disk_with(foreign(header, bytes));
    CHECK_THROWS_AS(load(state, "file", disk), StateError);
    CHECK(w[0] == 7);
  };
  refused("{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", data.substr(0, 8));
  refused("{" + tensors + ",\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[11,12]}}",
          data + "x");
  refused("{" + tensors + ",\"s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[11,12]}}",
          data + "x");
  std::string other = tensors;
  other.replace(other.find("F32"), 3, "I32");
  refused("{" + other + "}", data);
}

TEST_CASE("a bool that is neither true nor false never reaches a bool") {
  bool flag = false;
  TrainState state;
  state.add_scalar("flag", flag);
  std::string header = "{\"flag\":{\"dtype\":\"BOOL\",\"shape\":[],\"data_offsets\":[0,1]}}";
  Disk disk = disk_with(foreign(header, "\x02"));
  CHECK_THROWS_AS(load(state, "file", disk), FileError);
  disk = disk_with(foreign(header, "\x01"));
  load(state, "file", disk);
  CHECK(flag);
}

TEST_CASE("a file in another version of the format is refused by that version") {
  Trainer a{1};
  std::string file = saved(a);
  std::string key = "\"mend.version\":\"";
  file[file.find(key) + key.size()] = '2';
  CHECK(says(refusal(a, file), "written in version 2"));
}

TEST_CASE("names that a file cannot hold, and device memory, are refused when saving") {
  std::vector<float> w(1);
  Disk disk;
  for (std::string_view name : {"\xff", "__metadata__"}) {
    TrainState state;
    state.add_buffer(name, w);
    CHECK_THROWS_AS(save(state, "file", disk), StateError);
  }
  CHECK(disk.now.empty());
}

TEST_CASE("a moved buffer is found before anything is written or read") {
  std::vector<float> w(4), g(4);
  TrainState state;
  state.add("w", w, g);
  Disk disk;
  save(state, "file", disk);
  w.resize(1000);
  CHECK_THROWS_AS(save(state, "other", disk), StateError);
  CHECK_THROWS_AS(load(state, "file", disk), StateError);
  CHECK(disk.now.size() == 1);
}

TEST_CASE("optimizer slots are stored and restored") {
  std::vector<float> w(4), g(4), m{1, 2, 3, 4};
  TrainState state;
  state.add("w", w, g);
  state.add_slot(*state.find("w"), "m", reinterpret_cast<std::byte*>(m.data()));
  Disk disk;
  save(state, "file", disk);
  m.assign(4, 0);
  load(state, "file", disk);
  CHECK(m == std::vector<float>{1, 2, 3, 4});
  state.release();  // without a session there are no slots: nothing is skipped in silence
  try {
    load(state, "file", disk);
    FAIL("slots were skipped");
  } catch (const StateError& e) {
    CHECK(says(e.what(), "it also holds 'w.m'"));
    CHECK(says(e.what(), "only while a session is"));
  }
}

TEST_CASE("a failure at any operation of save leaves the old file or the new one") {
  Trainer a{1}, b{2};
  std::string old = saved(a), now = saved(b);
  for (int n = 0;; ++n) {
    Disk disk = disk_with(old);
    disk.now.at("file")->durable = old;
    disk.durable = disk.now;
    disk.fail_at = n;
    bool failed = false;
    try {
      save(b.state, "file", disk);
    } catch (const FileError& e) {
      failed = true;
      CHECK(e.code() == ENOSPC);
    }
    CHECK(disk.now.size() == 1);
    for (const std::string& text : disk.after_power_loss("file")) {
      if (failed)
        CHECK((text == old || text == now));
      else
        CHECK(text == now);
    }
    if (!failed) {
      CHECK(n > 10);
      break;
    }
  }
}

TEST_CASE("a disk that fails while reading: refused in the first pass, said in the second") {
  Trainer a{1};
  std::string file = saved(a);
  int first_change = -1;
  for (int n = 0;; ++n) {
    Trainer b{2}, before{2};
    Disk disk = disk_with(file);
    disk.fail_read_at = n;
    try {
      load(b.state, "file", disk);
      CHECK(n > 10);
      break;
    } catch (const FileError& e) {
      CHECK(e.code() == EIO);
      bool partly = says(e.what(), "only partly restored");
      if (partly && first_change < 0) first_change = n;
      if (!partly) CHECK(b.same(before));
      if (!partly) CHECK(first_change < 0);
    }
  }
  CHECK(first_change > 5);
}

TEST_CASE("an exception of a load function reaches the caller, before any buffer has changed") {
  std::vector<float> w{1}, g(1);
  bool broken = false;
  TrainState state;
  state.add("w", w, g);
  state.add_state(
      "s", [] { return Bytes(1); },
      [&](ByteView) {
        if (broken) throw std::runtime_error{"the trainer's own"};
      });
  Disk disk;
  save(state, "file", disk);
  w[0] = 2;
  broken = true;
  CHECK_THROWS_AS(load(state, "file", disk), std::runtime_error);
  CHECK(w[0] == 2);
}

TEST_CASE("errors of the real file system carry errno and path, and leave nothing behind") {
  Trainer a{1};
  mend_test::Scratch scratch;
  auto code_of = [&](const std::string& path, bool saving) {
    try {
      if (saving)
        save(a.state, path);
      else
        load(a.state, path);
    } catch (const FileError& e) {
      CHECK(e.path() == path);
      return e.code();
    }
    return -1;
  };
  CHECK(code_of(scratch / "absent/a", true) == ENOENT);
  CHECK(code_of(scratch / "absent", false) == ENOENT);
  CHECK(code_of(scratch.path, false) == 0);  // a directory
  std::filesystem::create_directory(scratch / "directory");
  CHECK(code_of(scratch / "directory", true) != -1);
  CHECK(code_of("/proc/a", true) != -1);  // unwritable, even for root
  std::ofstream{scratch / "text"} << "not a tensor file";
  CHECK(code_of(scratch / "text", false) == 0);

  // A disk that fills up: the largest file allowed is smaller than the state.
  save(a.state, scratch / "a");
  auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  rlimit limit = before;
  limit.rlim_cur = 1000;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  int code = code_of(scratch / "a", true);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, handler);
  CHECK(code == EFBIG);
  CHECK(mend::PosixFileSystem{}.list(scratch.path) ==
        std::vector<std::string>{"a", "directory", "text"});
  Trainer b{2};
  load(b.state, scratch / "a");  // the old file is whole
  CHECK(a.same(b));
}
