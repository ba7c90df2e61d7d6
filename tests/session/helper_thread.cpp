#include <mend/session/helper_thread.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "comm/system.hpp"

namespace {

using namespace std::chrono_literals;
using mend::HelperThread;

TEST_CASE("jobs run in order, on one other thread") {
  std::vector<int> order;
  std::vector<std::thread::id> threads;
  HelperThread helper;
  for (int i = 0; i < 100; ++i)
    helper.run([&, i] {
      order.push_back(i);
      threads.push_back(std::this_thread::get_id());
    });
  helper.wait();
  REQUIRE(order.size() == 100);
  for (int i = 0; i < 100; ++i) {
    CHECK(order[static_cast<std::size_t>(i)] == i);
    CHECK(threads[static_cast<std::size_t>(i)] == threads[0]);
  }
  CHECK(threads[0] != std::this_thread::get_id());
}

TEST_CASE("wait returns when the last job has ended, not when it has begun") {
  HelperThread helper;
  std::atomic<bool> ended{false};
  helper.run([&] {
    std::this_thread::sleep_for(30ms);
    ended = true;
  });
  helper.wait();
  CHECK(ended);
  helper.wait();  // and at once where there is nothing to wait for
}

TEST_CASE("jobs may follow after a wait, and see what came before") {
  HelperThread helper;
  int sum = 0;
  for (int round = 1; round <= 50; ++round) {
    helper.run([&] { sum += round; });
    helper.wait();
    CHECK(sum == round * (round + 1) / 2);
  }
}

TEST_CASE("no job, no thread; and none is left behind") {
  std::size_t before = mend_test::running_threads();
  {
    HelperThread idle;
    idle.wait();
    CHECK(mend_test::running_threads() == before);
  }
  int done = 0;
  {
    HelperThread helper;
    for (int i = 0; i < 10; ++i) helper.run([&] { ++done; });
  }  // what was asked for is done first
  CHECK(done == 10);
  CHECK(mend_test::eventually([&] { return mend_test::running_threads() == before; }));
}

}  // namespace
