#include <mend/store/store.hpp>

#include <doctest/doctest.h>
#include <mend/store/directory.hpp>
#include <mend/store/memory.hpp>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/error_of.hpp"
#include "core/scratch.hpp"

using mend::ByteView;
using mend::FileError;
using mend::is_store_name;

namespace {

ByteView view(std::string_view text) { return std::as_bytes(std::span{text}); }

//! A store of each kind, empty.
template <class S>
struct Fresh;
template <>
struct Fresh<mend::Memory> {
  mend::Memory store{};
};
template <>
struct Fresh<mend::Directory> {
  mend_test::Scratch scratch{};
  mend::Directory store{scratch / "new/store"};
};

template <class S>
std::string text_of(S& store, const std::string& name) {
  mend::Bytes bytes = mend::store::read_all(store, name);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

using mend_test::error_of;

}  // namespace

TEST_CASE_TEMPLATE("a piece is written, read in ranges, listed and removed", S, mend::Memory,
                   mend::Directory) {
  Fresh<S> fresh;
  S& store = fresh.store;
  CHECK(store.list("shards/").empty());
  CHECK_FALSE(store.size("shards/a"));
  {
    auto writer = store.put_new("shards/a");
    writer.write(view("hello, "));
    writer.write({});
    writer.write(view("world"));
    writer.publish();
  }
  CHECK(store.size("shards/a") == 12);
  CHECK(text_of(store, "shards/a") == "hello, world");
  std::string part(5, '\0');
  store.read_range("shards/a", 7, std::as_writable_bytes(std::span{part}));
  CHECK(part == "world");
  store.read_range("shards/a", 12, {});
  CHECK(error_of([&] { store.read_range("shards/a", 13, {}); }) <= 0);
  CHECK(error_of([&] {
          store.read_range("shards/a", 8, std::as_writable_bytes(std::span{part}));
        }) == 0);

  store.put_new("shards/b").publish();
  store.put_new("other/c").publish();
  CHECK(store.list("shards/") == std::vector<std::string>{"shards/a", "shards/b"});
  CHECK(text_of(store, "shards/b").empty());
  CHECK(error_of([&] { store.put_new("shards/a").publish(); }) == EEXIST);
  CHECK(text_of(store, "shards/a") == "hello, world");
  store.sync_existing("shards/a");

  store.remove("shards/a");
  store.remove("shards/a");
  CHECK(store.list("shards/") == std::vector<std::string>{"shards/b"});
  CHECK(error_of([&] { store.read_range("shards/a", 0, {}); }) == ENOENT);
  CHECK(error_of([&] { (void)text_of(store, "shards/a"); }) == ENOENT);
}

TEST_CASE_TEMPLATE("a large piece is the sum of its writes, whatever their sizes", S, mend::Memory,
                   mend::Directory) {
  Fresh<S> fresh;
  std::string whole;
  {
    auto writer = fresh.store.put_new("shards/a");
    for (std::size_t size : {1u, 1u << 20, (3u << 20) + 5, 0u, (1u << 20) - 6, 7u}) {
      std::string part(size, '\0');
      for (std::size_t i = 0; i < size; ++i)
        part[i] = static_cast<char>((whole.size() + i) * 7 / 5);
      writer.write(view(part));
      whole += part;
    }
    writer.publish();
  }
  CHECK((text_of(fresh.store, "shards/a") == whole));
}

TEST_CASE_TEMPLATE("a writer that ends without publish() leaves nothing", S, mend::Memory,
                   mend::Directory) {
  Fresh<S> fresh;
  {
    auto writer = fresh.store.put_new("shards/a");
    writer.write(view("half"));
    auto moved = std::move(writer);
    moved.write(view("more"));
  }
  CHECK(fresh.store.list("shards/").empty());
  {
    auto writer = fresh.store.put_new("shards/a");
    auto moved = std::move(writer);
    moved.write(view("whole"));
    moved.publish();
  }
  CHECK(text_of(fresh.store, "shards/a") == "whole");
}

TEST_CASE_TEMPLATE("of several that put one name, one succeeds", S, mend::Memory, mend::Directory) {
  Fresh<S> fresh;
  S& store = fresh.store;
  CHECK(store.put_if_absent("m/1", view("one")));
  CHECK_FALSE(store.put_if_absent("m/1", view("two")));
  CHECK_FALSE(store.put_if_absent("m/1", view("one more")));
  CHECK(store.put_if_absent("m/1", view("one")));  // its own bytes: an answer that was lost
  CHECK(text_of(store, "m/1") == "one");
  CHECK(store.list("m/") == std::vector<std::string>{"m/1"});

  std::vector<std::thread> threads;
  std::vector<std::set<int>> won(4);
  for (std::size_t t = 0; t < won.size(); ++t)
    threads.emplace_back([&won, t, copy = store]() mutable {
      for (int n = 10; n < 60; ++n) {
        std::string mine = "thread " + std::to_string(t);
        if (copy.put_if_absent("m/" + std::to_string(n), view(mine))) won[t].insert(n);
      }
    });
  for (std::thread& t : threads) t.join();
  CHECK(store.list("m/").size() == 51);
  for (int n = 10; n < 60; ++n) {
    std::string text = text_of(store, "m/" + std::to_string(n));
    for (std::size_t t = 0; t < won.size(); ++t)
      CHECK((won[t].count(n) == 1) == (text == "thread " + std::to_string(t)));
  }
}

TEST_CASE_TEMPLATE("an appended piece grows, and is seen while it does", S, mend::Memory,
                   mend::Directory) {
  Fresh<S> fresh;
  S& store = fresh.store;
  auto appender = store.append_new("d/a");
  CHECK(store.size("d/a") == 0);
  appender.append(view("one"));
  appender.sync();
  CHECK(text_of(store, "d/a") == "one");
  auto moved = std::move(appender);
  moved.append(view(", two"));
  moved.sync();
  CHECK(text_of(store, "d/a") == "one, two");
  CHECK(error_of([&] { (void)store.append_new("d/a"); }) == EEXIST);
  store.remove("d/a");
  moved.append(view(", three"));
  CHECK_FALSE(store.size("d/a"));
}

TEST_CASE_TEMPLATE("names that lead elsewhere are refused", S, mend::Memory, mend::Directory) {
  Fresh<S> fresh;
  for (const std::string name : {"", "/a", "a/", "../a", "a/../b", "a//b", ".a", "a/.b", "a b",
                                 "a\nb", "\xc3\xa9", "a\\b", "-", "_"}) {
    bool fine = name == "-" || name == "_";
    CHECK_MESSAGE(is_store_name(name) == fine, name);
    if (fine) continue;
    CHECK(error_of([&] { (void)fresh.store.put_new(name); }) == EINVAL);
    CHECK(error_of([&] { (void)fresh.store.append_new(name); }) == EINVAL);
    CHECK(error_of([&] { (void)fresh.store.put_if_absent(name, {}); }) == EINVAL);
  }
  CHECK(is_store_name("a/b-c_D.9/e.json"));
  CHECK_FALSE(is_store_name(std::string_view{"a\0b", 3}));
}

TEST_CASE("unique texts differ") {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(mend::store::unique_text());
  CHECK(seen.size() == 1000);
  CHECK(seen.begin()->size() == 16);
}

namespace {

struct NoRange : mend::Memory {  // near miss
  void read_range(const std::string&, std::uint64_t) {}
};
struct Whole : mend::Memory {  // no appending
  void append_new(const std::string&);
};
static_assert(!mend::Store<NoRange>);
static_assert(mend::Store<Whole> && !mend::AppendStore<Whole>);

}  // namespace
