#include <mend/store/directory.hpp>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/error_of.hpp"
#include "core/scratch.hpp"
#include "store/power_loss.hpp"

// What every store does is tested in store.cpp.

using mend::ByteView;
using mend::Directory;
using mend::Durability;
using mend::FileError;
using mend_test::PowerLossDisk;
using mend_test::PowerLossFiles;
using mend_test::Scratch;

namespace {

using ModelStore = mend::BasicDirectory<PowerLossFiles>;

ByteView view(std::string_view text) { return std::as_bytes(std::span{text}); }

template <class S>
std::string text_of(S& store, const std::string& name) {
  mend::Bytes bytes = mend::store::read_all(store, name);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

using mend_test::error_of;

void put(Directory& store, const std::string& name, std::string_view text) {
  auto writer = store.put_new(name);
  writer.write(view(text));
  writer.publish();
}

//! Everything below a directory, hidden files too.
std::vector<std::string> tree(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator{path})
    names.push_back(std::filesystem::relative(entry.path(), path).string());
  std::sort(names.begin(), names.end());
  return names;
}

//! A file system of its own on a directory, where this process may mount; check mounted.
struct Mount {
  Mount(const std::string& kind, const std::string& at, const std::string& options) : path{at} {
    std::filesystem::create_directory(path);
    mounted = ::mount("mend-test", path.c_str(), kind.c_str(), 0, options.c_str()) == 0;
    if (!mounted) MESSAGE("cannot mount here: not tested");
  }
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;
  ~Mount() {
    if (mounted) ::umount2(path.c_str(), MNT_DETACH);
  }
  std::string path;
  bool mounted = false;
};

}  // namespace

TEST_CASE("the directory, those above it and its folders are made at the first write") {
  Scratch scratch;
  Directory store{scratch / "a/b c/\xc3\xa9/"};
  CHECK(store.path() == scratch / "a/b c/\xc3\xa9");
  CHECK(store.list("shards/").empty());
  CHECK_FALSE(store.size("shards/x"));
  store.remove("shards/x");
  CHECK(tree(scratch.path).empty());
  store.prepare();
  store.prepare();
  CHECK(tree(scratch / "a/b c/\xc3\xa9").empty());
  put(store, "shards/x", "1");
  CHECK(store.put_if_absent("manifests/1", view("2")));
  CHECK(tree(scratch / "a/b c/\xc3\xa9") ==
        std::vector<std::string>{"manifests", "manifests/1", "shards", "shards/x"});
  CHECK_THROWS_AS(Directory{""}, mend::OptionError);
}

TEST_CASE("foreign and hidden files are not listed, and left alone") {
  Scratch scratch;
  Directory store{scratch.path};
  put(store, "m/00000001", "1");
  for (const char* name : {"m/.mend-00000001-a", "m/.mend-00000003-a", "m/.mend-", "m/.hidden",
                           "m/notes about this", "m/mend-00000001-a"})
    std::ofstream{scratch / name} << "x";
  CHECK(store.list("m/") == std::vector<std::string>{"m/00000001", "m/mend-00000001-a"});
  store.remove_leftovers("m/", "m/00000003");
  CHECK(tree(scratch / "m") == std::vector<std::string>{".hidden", ".mend-00000003-a", "00000001",
                                                        "mend-00000001-a", "notes about this"});
}

TEST_CASE("every durability keeps what the process wrote") {
  for (Durability d : {Durability::durable, Durability::relaxed, Durability::flushed}) {
    Scratch scratch;
    Directory store{scratch.path, {.durability = d}};
    put(store, "shards/a", "text");
    auto appender = store.append_new("d/a");
    appender.append(view("more"));
    appender.sync();
    CHECK(store.put_if_absent("m/1", view("one")));
    CHECK_FALSE(store.put_if_absent("m/1", view("two")));
    store.sync_existing("shards/a");
    Directory other{scratch.path};
    CHECK(text_of(other, "shards/a") == "text");
    CHECK(text_of(other, "d/a") == "more");
    CHECK(text_of(other, "m/1") == "one");
  }
}

namespace {

// What each operation promises, on a disk that loses power: at each of its operations the process
// dies, or something fails; then every disk that may be found is looked at.

struct Verdict {
  int states = 0, wrong = 0, told = 0;
};

//! operation(store) is true when the store said that it was done; whole(store) is whether it is
//! there, and torn(store) whether something that must not be seen is.
Verdict check(bool files_sync, bool directories_sync, Durability durability, auto operation,
              auto whole, auto torn) {
  Verdict verdict;
  std::mt19937_64 random{3};
  using Fault = PowerLossDisk::Fault;
  for (Fault fault :
       {Fault::none, Fault::dies_before, Fault::dies_after, Fault::no_space, Fault::io_error}) {
    for (int at = 0;; ++at) {
      PowerLossDisk disk;
      disk.fault = fault;
      disk.fault_at = at;
      disk.files_sync = files_sync;
      disk.directories_sync = directories_sync;
      bool told = false;
      try {
        ModelStore store{"runs/ckpt", {.durability = durability}, PowerLossFiles{&disk}};
        told = operation(store);
      } catch (const FileError&) {
      }
      verdict.told += told;
      auto look = [&](PowerLossDisk found) {
        ModelStore store{"runs/ckpt", {}, PowerLossFiles{&found}};
        ++verdict.states;
        verdict.wrong += (told && !whole(store)) || torn(store);
      };
      disk.after_power_loss(300, random, look);
      if (fault == Fault::none || disk.changes <= at) break;
    }
  }
  CHECK(verdict.told > 0);
  return verdict;
}

const std::string text = "a text that has a few sectors: " + std::string(300, 'x') + " and its end";

bool holds(ModelStore& store, const std::string& name, std::string_view expected) {
  return store.size(name) && text_of(store, name).starts_with(expected);
}
auto never = [](ModelStore&) { return false; };

auto put_new = [](ModelStore& store) {
  auto writer = store.put_new("shards/a");
  for (std::size_t at = 0; at < text.size(); at += 100)
    writer.write(view(std::string_view{text}.substr(at, 100)));
  writer.publish();
  return true;
};
auto shard_is_whole = [](ModelStore& store) { return holds(store, "shards/a", text); };

auto put_if_absent = [](ModelStore& store) {
  return store.put_if_absent("manifests/1", view(text));
};
auto manifest_is_whole = [](ModelStore& store) { return holds(store, "manifests/1", text); };
auto manifest_is_torn = [](ModelStore& store) {
  return store.size("manifests/1") && text_of(store, "manifests/1") != text;
};

auto append = [](ModelStore& store) {
  auto appender = store.append_new("differentials/a");
  appender.append(view(text));
  appender.sync();
  return true;
};
auto segment_is_whole = [](ModelStore& store) { return holds(store, "differentials/a", text); };

}  // namespace

TEST_CASE("what was put, published or synced survives every loss of power, whole") {
  auto durable = Durability::durable;
  Verdict verdict = check(true, true, durable, put_new, shard_is_whole, never);
  CHECK(verdict.wrong == 0);
  CHECK(verdict.states > 150);
  verdict = check(true, true, durable, put_if_absent, manifest_is_whole, manifest_is_torn);
  CHECK(verdict.wrong == 0);
  CHECK(verdict.states > 150);
  verdict = check(true, true, durable, append, segment_is_whole, never);
  CHECK(verdict.wrong == 0);
  CHECK(verdict.states > 150);
}

TEST_CASE("the same check finds every sync that is left out") {
  auto durable = Durability::durable;
  for (bool files : {false, true}) {
    CHECK(check(files, !files, durable, put_new, shard_is_whole, never).wrong > 0);
    CHECK(check(files, !files, durable, put_if_absent, manifest_is_whole, manifest_is_torn).wrong >
          0);
    CHECK(check(files, !files, durable, append, segment_is_whole, never).wrong > 0);
  }
}

TEST_CASE("relaxed keeps manifests through a loss of power, flushed keeps nothing") {
  auto relaxed = Durability::relaxed, flushed = Durability::flushed;
  CHECK(check(true, true, relaxed, put_if_absent, manifest_is_whole, manifest_is_torn).wrong == 0);
  CHECK(check(true, true, relaxed, put_new, shard_is_whole, never).wrong > 0);
  CHECK(check(true, true, flushed, put_if_absent, manifest_is_whole, never).wrong > 0);
  PowerLossDisk disk;
  ModelStore store{"ckpt", {.durability = flushed}, PowerLossFiles{&disk}};
  (void)put_new(store), (void)put_if_absent(store), (void)append(store);
  for (const auto& node : disk.nodes) CHECK(node.durable.empty());
}

TEST_CASE("sync_existing makes durable what another process left") {
  for (bool syncs : {true, false}) {
    std::mt19937_64 random{3};
    PowerLossDisk disk;
    ModelStore dead{"runs/ckpt", {.durability = Durability::flushed}, PowerLossFiles{&disk}};
    (void)put_new(dead);
    ModelStore store{"runs/ckpt", {}, PowerLossFiles{&disk}};
    if (syncs) store.sync_existing("shards/a");
    int lost = 0;
    disk.after_power_loss(200, random, [&](PowerLossDisk found) {
      ModelStore next{"runs/ckpt", {}, PowerLossFiles{&found}};
      lost += !shard_is_whole(next);
    });
    CHECK((lost == 0) == syncs);
  }
}

TEST_CASE("after a failed sync a file takes nothing more, and a writer's is removed") {
  PowerLossDisk disk;
  ModelStore store{"ckpt", {}, PowerLossFiles{&disk}};
  store.put_new("d/b").publish();
  disk.fault = PowerLossDisk::Fault::io_error;
  disk.fault_at = disk.changes + 1;  // the sync of the folder, after the file is there
  CHECK(error_of([&] { (void)store.append_new("d/a"); }) == EIO);
  CHECK(store.list("d/") == std::vector<std::string>{"d/b"});
  auto appender = store.append_new("d/a");
  appender.append(view("one"));
  appender.sync();
  appender.append(view("two"));
  disk.fault_at = disk.changes;
  CHECK(error_of([&] { appender.sync(); }) == EIO);
  CHECK(error_of([&] { appender.sync(); }) == 0);
  CHECK(error_of([&] { appender.append(view("three")); }) == 0);
  CHECK(text_of(store, "d/a") == "onetwo");  // what was synced before is still good
  {
    auto writer = store.put_new("s/a");
    writer.write(view("one"));
    disk.fault_at = disk.changes;
    CHECK(error_of([&] { writer.publish(); }) == EIO);
    CHECK(error_of([&] { writer.publish(); }) == 0);
  }
  CHECK(store.list("s/").empty());
  {
    auto writer = store.put_new("s/a");
    disk.fault = PowerLossDisk::Fault::no_space;
    disk.fault_at = disk.changes;
    CHECK(error_of([&] { writer.write(view("half")); }) == ENOSPC);
    CHECK(error_of([&] { writer.publish(); }) == 0);
  }
  CHECK(store.list("s/").empty());
}

// Real failures.

TEST_CASE("a full disk: a typed error, nothing left behind, and it works when space is back") {
  Scratch scratch;
  Mount small{"tmpfs", scratch / "small", "size=256k"};
  if (!small.mounted) return;
  Directory store{small.path + "/ckpt"};
  put(store, "shards/first", "whole");
  std::string large(300 * 1024, 'x');
  CHECK(error_of([&] { put(store, "shards/large", large); }) == ENOSPC);
  CHECK(error_of([&] { (void)store.put_if_absent("m/1", view(large)); }) == ENOSPC);
  CHECK(error_of([&] { store.append_new("d/a").append(view(large)); }) == ENOSPC);
  store.remove("d/a");
  CHECK(tree(small.path) ==
        std::vector<std::string>{"ckpt", "ckpt/d", "ckpt/m", "ckpt/shards", "ckpt/shards/first"});
  CHECK(text_of(store, "shards/first") == "whole");
  put(store, "shards/second", large.substr(0, 100 * 1024));
  CHECK(store.size("shards/second") == 100 * 1024);
}

TEST_CASE("a file that may not grow further (EFBIG)") {
  Scratch scratch;
  Directory store{scratch.path};
  put(store, "shards/first", "whole");
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit low = before;
  low.rlim_cur = 1000;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &low) == 0);
  std::string large(5000, 'x');
  int code = error_of([&] { put(store, "shards/large", large); });
  int manifest = error_of([&] { (void)store.put_if_absent("shards/m", view(large)); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(code == EFBIG);
  CHECK(manifest == EFBIG);
  CHECK(tree(scratch.path) == std::vector<std::string>{"shards", "shards/first"});
}

TEST_CASE("a directory that may only be read is read, and says so when written to") {
  Scratch scratch;
  Mount disk{"tmpfs", scratch / "disk", ""};
  if (!disk.mounted) return;
  Directory before{disk.path + "/ckpt"};
  put(before, "shards/a", "text");
  REQUIRE(::mount("", disk.path.c_str(), "", MS_REMOUNT | MS_RDONLY, "") == 0);
  Directory store{disk.path + "/ckpt"};
  CHECK(text_of(store, "shards/a") == "text");
  store.sync_existing("shards/a");
  CHECK(error_of([&] { put(store, "shards/b", "text"); }) == EROFS);
  CHECK(error_of([&] { put(store, "new/b", "text"); }) == EROFS);
  CHECK(error_of([&] { (void)store.put_if_absent("shards/b", view("text")); }) == EROFS);
  CHECK(error_of([&] { (void)store.append_new("shards/b"); }) == EROFS);
  CHECK(error_of([&] { store.remove("shards/a"); }) == EROFS);
}

TEST_CASE("a directory without permission to write") {
  if (::geteuid() == 0) return;  // whom modes do not bind
  Scratch scratch;
  Directory store{scratch / "ckpt"};
  put(store, "shards/a", "text");
  ::chmod((scratch / "ckpt/shards").c_str(), 0555);
  CHECK(error_of([&] { put(store, "shards/b", "text"); }) == EACCES);
  ::chmod((scratch / "ckpt/shards").c_str(), 0755);
  put(store, "shards/b", "text");
}

TEST_CASE("a directory that vanishes is an error, and is not made again behind one's back") {
  Scratch scratch;
  Directory store{scratch / "ckpt"};
  put(store, "shards/a", "text");
  auto appender = store.append_new("shards/d");
  std::filesystem::remove_all(scratch / "ckpt");
  CHECK(error_of([&] { put(store, "shards/b", "text"); }) == ENOENT);
  CHECK(error_of([&] { (void)store.put_if_absent("shards/b", view("text")); }) == ENOENT);
  CHECK(error_of([&] { store.read_range("shards/a", 0, {}); }) == ENOENT);
  CHECK(store.list("shards/").empty());
  CHECK(tree(scratch.path).empty());
  appender.append(view("nobody sees it"));
  Directory again{scratch / "ckpt"};
  put(again, "shards/b", "text");
  CHECK(text_of(again, "shards/b") == "text");
}

TEST_CASE("symbolic links: to a directory they are followed, in a loop they are an error") {
  Scratch scratch;
  std::filesystem::create_directory(scratch / "real");
  std::filesystem::create_directory_symlink("real", scratch / "link");
  Directory linked{scratch / "link"};
  put(linked, "shards/a", "text");
  CHECK(tree(scratch / "real") == std::vector<std::string>{"shards", "shards/a"});

  std::filesystem::create_directory_symlink("loop", scratch / "loop");
  Directory loop{scratch / "loop"};
  CHECK(error_of([&] { put(loop, "shards/a", "text"); }) == ELOOP);
  CHECK(error_of([&] { (void)loop.list("shards/"); }) == ELOOP);
  CHECK(error_of([&] { (void)loop.size("shards/a"); }) == ELOOP);

  std::filesystem::create_symlink("nowhere", scratch / "real/shards/b");
  CHECK(error_of([&] { put(linked, "shards/b", "text"); }) == EEXIST);
  CHECK_FALSE(std::filesystem::exists(scratch / "real/shards/nowhere"));
}

TEST_CASE("a file where a directory should be, and a directory where a file should be") {
  Scratch scratch;
  std::ofstream{scratch / "file"} << "precious";
  Directory store{scratch / "file"};
  CHECK(error_of([&] { put(store, "shards/a", "text"); }) == ENOTDIR);
  CHECK(error_of([&] { (void)store.list("shards/"); }) == ENOTDIR);
  CHECK(error_of([&] { (void)store.size("shards/a"); }) == ENOTDIR);
  Directory below{scratch / "file/ckpt"};
  CHECK(error_of([&] { put(below, "shards/a", "text"); }) == ENOTDIR);
  CHECK(tree(scratch.path) == std::vector<std::string>{"file"});

  Directory other{scratch / "ckpt"};
  std::filesystem::create_directories(scratch / "ckpt/shards/a");
  CHECK(error_of([&] { put(other, "shards/a", "text"); }) == EEXIST);
  CHECK_FALSE(error_of([&] { (void)other.size("shards/a"); }) == -1);
  CHECK(std::filesystem::is_directory(scratch / "ckpt/shards/a"));
}

TEST_CASE("no descriptors leak, whatever ends early") {
  Scratch scratch;
  auto open = [] {
    std::filesystem::directory_iterator all{"/proc/self/fd"};
    return std::distance(begin(all), end(all));
  };
  auto before = open();
  Directory store{scratch.path};
  for (int i = 0; i < 20; ++i) {
    (void)store.put_new("s/a");
    (void)store.put_if_absent("m/1", view("x"));
    (void)error_of([&] { (void)store.append_new("m/1"); });
    (void)store.size("m/1");
    (void)store.list("m/");
  }
  CHECK(open() == before);
}
