#include <mend/kernel/host/workers.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using mend::kernel::Workers;

TEST_CASE("a loop is cut the same way for every number of threads, and each range runs once") {
  for (int threads : {1, 2, 3, 5}) {
    Workers workers{threads};
    CHECK(workers.size() == threads);
    for (std::size_t n : {0, 1, 7, 8, 9, 1000}) {
      const std::size_t grain = 8, ranges = (n + grain - 1) / grain;
      std::vector<std::pair<std::size_t, std::size_t>> seen(ranges);
      std::atomic<int> calls = 0;
      workers.parallel_for(n, grain, [&](std::size_t begin, std::size_t end) {
        seen.at(begin / grain) = {begin, end};
        ++calls;
      });
      CHECK(calls == static_cast<int>(ranges));
      for (std::size_t k = 0; k < ranges; ++k)
        CHECK(seen[k] == std::pair{k * grain, std::min(n, (k + 1) * grain)});
    }
  }
}

TEST_CASE("several threads work at a time") {
  Workers workers{2};
  std::atomic<int> arrived = 0;
  // Each of two ranges waits for the other to begin: one thread alone would never get there.
  workers.parallel_for(2, 1, [&](std::size_t, std::size_t) {
    ++arrived;
    while (arrived != 2) std::this_thread::yield();
  });
  CHECK(arrived == 2);
}

TEST_CASE("the exception of the earliest failed range reaches the caller, and the pool lives on") {
  for (int threads : {1, 3}) {
    Workers workers{threads};
    for (int round = 0; round < 50; ++round) {
      std::string what;
      try {
        workers.parallel_for(100, 1, [](std::size_t i, std::size_t) {
          if (i % 10 == 7) throw std::runtime_error{std::to_string(i)};
        });
      } catch (const std::runtime_error& e) {
        what = e.what();
      }
      CHECK(what == "7");  // ranges begin in order, so 7 begins before any later one fails
      std::atomic<int> calls = 0;
      workers.parallel_for(100, 1, [&](std::size_t, std::size_t) { ++calls; });
      CHECK(calls == 100);
    }
  }
}

TEST_CASE("a loop inside a loop runs where it is called") {
  Workers workers{3};
  std::atomic<int> calls = 0;
  workers.parallel_for(8, 1, [&](std::size_t, std::size_t) {
    const auto here = std::this_thread::get_id();
    workers.parallel_for(5, 2, [&](std::size_t, std::size_t) {
      CHECK(std::this_thread::get_id() == here);
      ++calls;
    });
  });
  CHECK(calls == 8 * 3);
}

TEST_CASE("callers on several threads take turns") {
  Workers workers{2};
  std::atomic<int> sum = 0;
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t)
    callers.emplace_back([&] {
      for (int i = 0; i < 50; ++i)
        workers.parallel_for(10, 3, [&](std::size_t begin, std::size_t end) {
          sum += static_cast<int>(end - begin);
        });
    });
  for (auto& caller : callers) caller.join();
  CHECK(sum == 4 * 50 * 10);
}

TEST_CASE("no threads at all is refused") {
  CHECK_THROWS_WITH_AS(Workers{0}, "Workers: 0 threads; at least 1 works", mend::OptionError);
}
