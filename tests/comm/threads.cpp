#include <mend/comm/threads.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/ranks.hpp"

namespace {

using namespace mend;
using namespace mend::comm;
using namespace std::chrono_literals;

constexpr bool modes[] = {false, true};

TEST_CASE("a cluster in one process: collectives over any number of ranks, in both modes") {
  for (bool simulated : modes)
    for (int n = 1; n <= 6; ++n) {
      std::vector<float> results(static_cast<std::size_t>(n));
      std::atomic<int> gathered{0};
      Threads cluster{{.ranks = n}, {.simulated = simulated, .chunk_bytes = 64}};
      Outcome outcome = cluster.run([&](ThreadComm& comm) {
        CHECK(comm.size() == n);
        CHECK(comm.managed());
        std::vector<float> v(100, static_cast<float>(comm.rank() + 1));
        comm.all_reduce(std::span{v});
        std::vector<std::byte> blocks(static_cast<std::size_t>(n));
        blocks[static_cast<std::size_t>(comm.rank())] = std::byte{1};
        comm.all_gather(blocks);
        for (std::byte b : blocks) gathered += b == std::byte{1};
        comm.barrier();
        results[static_cast<std::size_t>(comm.rank())] = v[99];
      });
      CHECK(outcome.finished);
      CHECK(outcome.reason == "");
      CHECK(outcome.generations == 1);
      CHECK(outcome.deaths == 0);
      CHECK(!cluster.world().hung());
      CHECK(gathered == n * n);
      for (float x : results) CHECK(x == static_cast<float>(n + 1) / 2);
    }
}

TEST_CASE("options reach the workers and the world") {
  Threads cluster{{.ranks = 2, .lease = 3s, .timeout = 41s}, {.simulated = true, .seed = 5}};
  std::atomic<bool> right{true};
  CHECK(cluster
            .run([&](ThreadComm& comm) {
              if (comm.membership().timeout != 41s) right = false;
            })
            .finished);
  CHECK(right);
  CHECK(cluster.world().options().lease == 3s);
  CHECK(cluster.world().options().timeout == 41s);
  CHECK(cluster.world().options().seed == 5);
}

TEST_CASE("a worker that throws is replaced until the limit, and its words are kept") {
  for (bool simulated : modes) {
    Threads cluster{{.ranks = 2, .max_restarts = 2}, {.simulated = simulated}};
    std::mutex mutex;
    std::map<int, int> starts;
    Outcome outcome = cluster.run([&](ThreadComm& comm) {
      {
        std::lock_guard lock{mutex};
        ++starts[comm.rank()];
      }
      if (comm.rank() == 1) throw StateError{"no data"};
      for (;;) comm.enter(comm.await_view());  // one generation after the other, until Stop
    });
    CHECK(!outcome.finished);
    CHECK(outcome.restarts == 2);
    CHECK(outcome.reason.find("no replacement is left (--max-restarts 2). rank 1 ended with exit "
                              "status 1") == 0);
    CHECK(outcome.status == 1);
    CHECK(starts[1] == 3);
    int kept = 0;
    for (const auto& [who, error] : cluster.world().failures()) {
      try {
        std::rethrow_exception(error);
      } catch (const StateError& e) {
        CHECK(std::string{e.what()} == "no data");
        ++kept;
      } catch (const std::exception&) {  // of rank 0, which was told to stop
      }
    }
    CHECK(kept == 3);
  }
}

TEST_CASE("a thread that is killed ends where it stands; what it owned is destroyed") {
  struct Counted {
    explicit Counted(std::atomic<int>& n) : alive{n} { ++alive; }
    ~Counted() { --alive; }
    std::atomic<int>& alive;
  };
  for (bool simulated : modes) {
    std::atomic<int> alive{0};
    Threads cluster{{.ranks = 3, .max_restarts = 0},
                    {.simulated = simulated, .faults = {{.who = 2, .operation = 6}}}};
    Outcome outcome = cluster.run([&](ThreadComm& comm) {
      Counted here{alive};
      for (int i = 0; i < 1000; ++i) comm.barrier();
    });
    CHECK(!outcome.finished);
    CHECK(outcome.deaths == 1);
    CHECK(outcome.status == -9);
    CHECK(alive == 0);
  }
}

TEST_CASE("a worker stopped for longer than its lease is killed; a shorter stop is nothing") {
  for (auto [span, deaths] : {std::pair<Time, int>{800ms, 0}, std::pair<Time, int>{5s, 1}}) {
    Threads cluster{
        {.ranks = 2, .max_restarts = 0, .lease = 1s},
        {.simulated = true,
         .faults = {{.kind = Fault::Kind::stop, .who = 2, .operation = 5, .span = span}}}};
    std::vector<std::string> names;
    cluster.on_event = [&](const trace::Event& e) { names.push_back(e.name); };
    Outcome outcome = cluster.run([&](ThreadComm& comm) {
      for (int i = 0; i < 20; ++i) comm.barrier();
    });
    CHECK(outcome.deaths == deaths);
    CHECK(outcome.finished == (deaths == 0));
    CHECK(std::ranges::count(names, "suspect") == deaths);
    CHECK(!cluster.world().hung());
  }
}

TEST_CASE("events come in the thread of run, in order of time") {
  for (bool simulated : modes) {
    Threads cluster{{.ranks = 2}, {.simulated = simulated}};
    std::vector<trace::Event> events;
    std::set<std::thread::id> threads;
    cluster.on_event = [&](const trace::Event& e) {
      events.push_back(e);
      threads.insert(std::this_thread::get_id());
    };
    CHECK(cluster.run([](ThreadComm& comm) { comm.barrier(); }).finished);
    CHECK(threads == std::set{std::this_thread::get_id()});
    REQUIRE(events.size() == 5);  // two starts, two joins, a view
    for (std::size_t i = 1; i < events.size(); ++i) CHECK(events[i - 1].time <= events[i].time);
    CHECK(events[4].kind == trace::EventKind::view);
    CHECK(events[4].generation == Generation{1});
  }
}

TEST_CASE("an empty cluster is refused") {
  Threads cluster{{.ranks = 0}};
  Outcome outcome = cluster.run([](ThreadComm&) {});
  CHECK(!outcome.finished);
  CHECK(outcome.reason == "a run needs at least one rank");
}

}  // namespace
