#include <mend/session/own_reduction.hpp>

#include <mend/comm/threads.hpp>
#include <mend/optim/sgd.hpp>
#include <mend/session/session.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace mend;
using namespace std::chrono_literals;
using comm::ThreadComm;

static_assert(Is<OwnReduction, kind::reduction>);

// Where the trainers' own communicators meet.
struct Square {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<std::uint32_t, int>, std::map<int, std::vector<float>>> rounds;
};

// Stands for a trainer's NCCL communicator: blocks until all have come, throws once aborted.
class Ring {
 public:
  explicit Ring(Square& square) : square_{square} {}

  void rebuild(std::uint32_t id, int rank, int size) {
    std::lock_guard lock{square_.mutex};
    id_ = id;
    rank_ = rank;
    size_ = size;
    round_ = 0;
    aborted_ = false;
    rebuilds.emplace_back(rank, size);
  }
  void abort() {
    std::lock_guard lock{square_.mutex};
    aborted_ = true;
    ++aborts;
    square_.changed.notify_all();
  }
  void all_reduce(std::vector<float>& values) {
    std::unique_lock lock{square_.mutex};
    auto& round = square_.rounds[{id_, round_++}];
    round[rank_] = values;
    square_.changed.notify_all();
    bool came = square_.changed.wait_for(
        lock, 30s, [&] { return aborted_ || static_cast<int>(round.size()) == size_; });
    if (aborted_ || !came) throw std::runtime_error{"the ring was aborted"};
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = 0;
      for (const auto& [rank, part] : round) values[i] += part[i];
      values[i] /= static_cast<float>(size_);
    }
  }
  std::vector<std::pair<int, int>> rebuilds;
  int aborts = 0;

 private:
  Square& square_;
  std::uint32_t id_ = 0;
  int rank_ = 0, size_ = 1, round_ = 0;
  bool aborted_ = false;
};

float gradient(Step step, int rank, std::size_t i) {
  return static_cast<float>(step.value() + 1) * 0.1f + static_cast<float>(rank) * 0.01f +
         static_cast<float>(i);
}

TEST_CASE("alone: rebuild once before the first step, and the gradients are the trainer's") {
  std::vector<float> w{1, 1}, g{0, 0};
  TrainState state;
  state.add("w", w, g);
  ThreadComm comm;
  Square square;
  Ring ring{square};
  Session session{
      state, Sgd{.lr = 1}, comm,
      OwnReduction{.abort = [&] { ring.abort(); },
                   .rebuild = [&](int rank, int size) { ring.rebuild(1, rank, size); }}};
  session.train(1, [&](Step) {
    g = {0.25f, 0.5f};
    ring.all_reduce(g);
  });
  session.train(2, [&](Step) { g = {0, 0}; });
  CHECK(w == std::vector<float>{0.75f, 0.5f});
  CHECK(ring.rebuilds == std::vector<std::pair<int, int>>{{0, 1}});
  CHECK(ring.aborts == 0);
}

TEST_CASE("alone, a reduction that throws reaches the caller at once") {
  std::vector<float> w{1}, g{0};
  TrainState state;
  state.add("w", w, g);
  ThreadComm comm;
  int calls = 0;
  Session session{state, Sgd{}, comm, OwnReduction{[] {}, [](int, int) {}}};
  CHECK_THROWS_WITH(session.train(1,
                                  [&](Step) {
                                    ++calls;
                                    throw std::runtime_error{"no ring"};
                                  }),
                    "no ring");
  CHECK(calls == 1);
}

// Free running only: in virtual time a thread that blocks in a library of its own blocks all.
struct Result {
  comm::Outcome outcome;
  std::map<int, std::vector<float>> final;
  int aborts = 0;
  std::map<int, std::vector<std::pair<int, int>>> rebuilds;
};
template <class InStep>
Result run(InStep&& in_step, comm::CoordinatorOptions options = {}) {
  Result result;
  Square square;
  std::mutex mutex;
  options.ranks = 3;
  comm::Threads cluster{options};
  result.outcome = cluster.run([&](ThreadComm& comm) {
    std::vector<float> w(5, 1), g(5);
    TrainState state;
    state.add("w", w, g);
    Ring ring{square};
    Session session{state, Sgd{.lr = 0.1}, comm, ReplicaRecovery{},
                    OwnReduction{.abort = [&] { ring.abort(); },
                                 .rebuild =
                                     [&](int rank, int size) {
                                       ring.rebuild(comm.generation().value(), rank, size);
                                     }}};
    session.train(8, [&](Step s) {
      for (std::size_t i = 0; i < 5; ++i) g[i] = gradient(s, comm.rank(), i);
      in_step(comm, s, g);
      ring.all_reduce(g);
      ring.all_reduce(g);  // twice: equal parts give the same mean again, up to its rounding
    });
    std::lock_guard lock{mutex};
    result.final[comm.rank()] = w;
    result.aborts += ring.aborts;
    result.rebuilds[comm.rank()] = ring.rebuilds;
  });
  return result;
}

TEST_CASE("in a group mend leaves the gradients alone and commits what the trainer reduced") {
  Result r = run([](auto&&...) {});
  CHECK(r.outcome.finished);
  REQUIRE(r.final.size() == 3);
  CHECK(r.final[1] == r.final[0]);
  CHECK(r.final[2] == r.final[0]);
  for (int rank = 0; rank < 3; ++rank)
    CHECK(r.rebuilds[rank] == std::vector<std::pair<int, int>>{{rank, 3}});
  CHECK(r.aborts == 0);
}

TEST_CASE("a lost member aborts the reduction that waits for it; all rebuild and repeat the step") {
  std::map<int, std::vector<float>> expected = run([](auto&&...) {}).final;
  Result r = run([](ThreadComm& comm, Step s, auto&) {
    if (s == Step{4} && comm.rank() == 1 && !comm.membership().replacement) throw comm::Killed{};
  });
  CHECK(r.outcome.finished);
  CHECK(r.outcome.restarts == 1);
  CHECK(r.final == expected);
  CHECK(r.aborts >= 2);
  CHECK(r.rebuilds[0] == std::vector<std::pair<int, int>>{{0, 3}, {0, 3}});
  CHECK(r.rebuilds[1] == std::vector<std::pair<int, int>>{{1, 3}});  // the replacement's only one
}

TEST_CASE("a shrinking group is rebuilt with other places") {
  Result r = run(
      [](ThreadComm& comm, Step s, auto&) {
        if (s == Step{4} && comm.membership().rank == 0) throw comm::Killed{};
      },
      {.max_restarts = 0, .shrink = true});
  CHECK(r.outcome.finished);
  REQUIRE(r.final.size() == 2);
  CHECK(r.final[0] == r.final[1]);
  CHECK(r.rebuilds[0] == std::vector<std::pair<int, int>>{{1, 3}, {0, 2}});
}

TEST_CASE(
    "a reduction that fails now and then is repeated; one that always fails ends the worker") {
  std::map<int, std::vector<float>> expected = run([](auto&&...) {}).final;
  std::atomic<int> failures{0};
  Result r = run([&](ThreadComm& comm, Step s, auto&) {
    if (s == Step{3} && comm.rank() == 2 && failures++ < 2) throw std::runtime_error{"a hiccup"};
  });
  CHECK(r.outcome.finished);
  CHECK(r.outcome.deaths == 0);
  CHECK(r.final == expected);

  Result always = run(
      [&](ThreadComm& comm, Step s, auto&) {
        if (s == Step{3} && comm.rank() == 2) throw std::runtime_error{"broken for good"};
      },
      {.max_restarts = 0});
  CHECK(!always.outcome.finished);
  CHECK(always.outcome.reason.find("broken for good") != std::string::npos);
}

TEST_CASE("gradients that the trainer left unequal are found") {
  comm::Threads cluster{{.ranks = 2}, {.simulated = true}};
  comm::Outcome outcome = cluster.run([&](ThreadComm& comm) {
    std::vector<float> w(5, 1), g(5);
    TrainState state;
    state.add("w", w, g);
    Session session{state, Sgd{.lr = 0.1}, comm, ReplicaRecovery{},
                    OwnReduction{[] {}, [](int, int) {}}};
    session.train(8, [&](Step) { g.assign(5, static_cast<float>(comm.rank())); });
  });
  CHECK(!outcome.finished);
  CHECK(outcome.reason.find("replicas diverged silently") != std::string::npos);
}

}  // namespace
