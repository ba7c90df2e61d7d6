#include <mend/store/memory.hpp>

#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <thread>
#include <vector>

// What every store does is tested in store.cpp.

using mend::Memory;

namespace {
mend::ByteView view(std::string_view text) { return std::as_bytes(std::span{text}); }
}  // namespace

TEST_CASE("copies share what they hold, which outlives each of them") {
  auto first = std::make_unique<Memory>();
  Memory second = *first;
  auto writer = first->put_new("a");
  auto appender = first->append_new("b");
  first.reset();
  writer.write(view("one"));
  CHECK_FALSE(second.size("a"));
  writer.publish();
  appender.append(view("more"));
  CHECK(second.size("a") == 3);
  CHECK(second.size("b") == 4);
  CHECK(Memory{}.list("").empty());
}

TEST_CASE("the whole is listed under the empty prefix") {
  Memory memory;
  for (const char* name : {"b/2", "a", "b/10", "b", "bc"}) memory.put_new(name).publish();
  CHECK(memory.list("") == std::vector<std::string>{"a", "b", "b/10", "b/2", "bc"});
  CHECK(memory.list("b/") == std::vector<std::string>{"b/10", "b/2"});
}

TEST_CASE("threads append, read and list at once") {
  Memory memory;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&memory, name = "d/" + std::to_string(t)] {
      Memory mine = memory;
      auto appender = mine.append_new(name);
      for (std::uint64_t i = 1; i <= 200; ++i) {
        appender.append(view("x"));
        if (mine.size(name) != i) return;
        (void)mine.list("d/");
      }
    });
  for (std::thread& t : threads) t.join();
  for (const std::string& name : memory.list("d/")) CHECK(memory.size(name) == 200);
  CHECK(memory.list("d/").size() == 4);
}
