#include <mend/session/replica_recovery.hpp>

#include <mend/comm/threads.hpp>
#include <mend/optim/adam.hpp>
#include <mend/session/session.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "session/support/trainer.hpp"

namespace {

using namespace mend;
using namespace mend_test;
using namespace std::chrono_literals;
using comm::ThreadComm;

static_assert(Is<ReplicaRecovery, kind::recovery>);

constexpr int ranks = 3, steps = 5;

// One run of the stateful trainer; every worker may be struck by `strike` at its crash points.
struct Run {
  comm::Outcome outcome;
  std::map<int, Hash128> final;                               // by rank
  std::vector<std::pair<int, Committed>> committed;           // by rank, in order
  std::vector<std::pair<Incarnation, std::int64_t>> lambdas;  // who, which step
  std::uint64_t fetched = 0;                                  // fetched chunks
};
using Strike = std::function<void(ThreadComm&, const comm::CrashPoint&)>;

Run run(bool simulated, comm::CoordinatorOptions options, const Strike& strike, int copies = 1) {
  Run result;
  std::mutex mutex;
  options.ranks = ranks;
  comm::Threads cluster{options, {.simulated = simulated, .chunk_bytes = 4096}};
  result.outcome = cluster.run([&](ThreadComm& comm) {
    auto world = comm.on_crash_point;
    comm.on_crash_point = [&, world](const comm::CrashPoint& p) {
      if (world) world(p);
      if (p.name == "fetched") {
        std::lock_guard lock{mutex};
        ++result.fetched;
      }
      if (strike) strike(comm, p);
    };
    Trainer trainer{comm.rank(), {.copies = copies}};
    Session session{trainer.state, Adam{.lr = 1e-2}, comm, ReplicaRecovery{}};
    session.train(
        steps,
        [&](Step s) {
          {
            std::lock_guard lock{mutex};
            result.lambdas.emplace_back(comm.membership().incarnation, s.value());
          }
          return trainer.step(s, [](auto&&) {});
        },
        [&](const Committed& done) {
          trainer.after(done);
          std::lock_guard lock{mutex};
          result.committed.emplace_back(comm.rank(), done);
        });
    std::lock_guard lock{mutex};
    result.final[comm.rank()] = hash_of(trainer.state);
  });
  CHECK(!cluster.world().hung());
  return result;
}
const std::map<int, Hash128>& uninterrupted() {
  static const std::map<int, Hash128> hashes = run(true, {}, {}).final;
  return hashes;
}
// Kills the first incarnation of a rank at the first crash point of that name in a step.
Strike kill(int rank, std::string_view point, std::int64_t step) {
  return [=](ThreadComm& comm, const comm::CrashPoint& p) {
    if (comm.membership().rank == rank && !comm.membership().replacement && p.name == point &&
        p.step == Step{step})
      throw comm::Killed{};
  };
}

TEST_CASE("a rank that is killed anywhere in a step is replaced, and the bits are the same") {
  REQUIRE(uninterrupted().size() == ranks);
  for (bool simulated : {true, false})
    for (int rank = 0; rank < ranks; ++rank)
      for (std::string_view point : {"lambda", "reduce", "copies", "closing", "during_reduce",
                                     "bucket", "reduced", "done", "update", "updated", "commit"}) {
        CAPTURE(simulated);
        CAPTURE(rank);
        CAPTURE(point);
        Run r = run(simulated, {}, kill(rank, point, 2));
        CHECK(r.outcome.finished);
        CHECK(r.outcome.reason == "");
        CHECK(r.outcome.deaths == 1);
        CHECK(r.outcome.restarts == 1);
        CHECK(r.outcome.generations == 2);
        CHECK(r.final == uninterrupted());
        CHECK(r.fetched > 0);  // only the replacement had to fetch state
      }
}

TEST_CASE("a repeated step says so, on every rank that repeats it, and no commit is taken back") {
  Run r = run(true, {}, kill(1, "reduce", 3));  // before it sent anything: nobody has step 3
  REQUIRE(r.outcome.finished);
  std::map<int, std::vector<std::int64_t>> order;
  for (const auto& [rank, done] : r.committed) {
    order[rank].push_back(done.step.value());
    CHECK(done.repeated == (done.step == Step{3} && rank != 1));  // to the replacement it is new
  }
  CHECK(order[0] == std::vector<std::int64_t>{0, 1, 2, 3, 4});
  CHECK(order[2] == std::vector<std::int64_t>{0, 1, 2, 3, 4});
  CHECK(order[1] == std::vector<std::int64_t>{0, 1, 2, 3, 4});  // two lives, one history
  int again = 0;
  for (auto [who, step] : r.lambdas) again += step == 3;
  CHECK(again == 3 + 3);
}

TEST_CASE("a death after all was reduced does not repeat the step: the others roll it forward") {
  Run r = run(true, {}, kill(1, "updated", 3));
  REQUIRE(r.outcome.finished);
  for (const auto& [rank, done] : r.committed) CHECK(!done.repeated);
  int times = 0;
  for (auto [who, step] : r.lambdas) times += step == 3;
  CHECK(times == 3);
  CHECK(r.final == uninterrupted());
}

TEST_CASE("two at once, where each has a partner that lives") {
  for (bool simulated : {true, false}) {
    Run r = run(
        simulated, {},
        [](ThreadComm& comm, const comm::CrashPoint& p) {
          if (comm.membership().rank != 1 && !comm.membership().replacement && p.name == "lambda" &&
              p.step == Step{2})
            throw comm::Killed{};
        },
        2);
    CHECK(r.outcome.finished);
    CHECK(r.outcome.deaths == 2);
    CHECK(r.final == uninterrupted());
  }
}

TEST_CASE("a rank and the only holder of its copies: the run stops and says what was lost") {
  Run r = run(true, {}, [](ThreadComm& comm, const comm::CrashPoint& p) {
    if (comm.membership().rank != 0 && !comm.membership().replacement && p.name == "lambda" &&
        p.step == Step{2})
      throw comm::Killed{};
  });
  CHECK(!r.outcome.finished);
  CHECK(r.outcome.reason.find("the per-rank state of a dead rank was lost together with all its "
                              "copies, at step 2; PerRank{.copies = 2} survives") == 0);
}

TEST_CASE("a replacement that dies while it receives is replaced in turn") {
  for (bool simulated : {true, false})
    for (std::string_view point :
         {"view", "report", "plan", "feed", "fetched", "restored", "ready"}) {
      CAPTURE(simulated);
      CAPTURE(point);
      std::set<Incarnation> struck;
      std::mutex mutex;
      Run r = run(simulated, {.max_restarts = 8}, [&](ThreadComm& comm, const comm::CrashPoint& p) {
        kill(1, "lambda", 2)(comm, p);
        if (!comm.membership().replacement || p.name != point) return;
        std::lock_guard lock{mutex};
        if (struck.empty() && struck.insert(comm.membership().incarnation).second)
          throw comm::Killed{};
      });
      CHECK(r.outcome.finished);
      CHECK(r.outcome.deaths == 2);
      CHECK(r.final == uninterrupted());
    }
}

TEST_CASE("a survivor that dies during the recovery is recovered, too") {
  for (bool simulated : {true, false})
    for (std::string_view point :
         {"view", "report", "plan", "undo", "ready", "served", "copies", "go"}) {
      CAPTURE(simulated);
      CAPTURE(point);
      Run r = run(
          simulated, {.max_restarts = 8},
          [&](ThreadComm& comm, const comm::CrashPoint& p) {
            kill(1, "lambda", 2)(comm, p);
            if (comm.membership().rank == 2 && !comm.membership().replacement && p.name == point &&
                comm.generation() == Generation{2})
              throw comm::Killed{};
          },
          2);
      CHECK(r.outcome.finished);
      CHECK(r.final == uninterrupted());
      // In a run of its own pace, rank 2 may have had nothing to undo, or nothing to serve.
      if (simulated)
        CHECK(r.outcome.deaths == 2);
      else
        CHECK(r.outcome.deaths >= 1);
    }
}

TEST_CASE("when all of them die at once the run begins anew, and ends with the same bits") {
  std::barrier all{ranks};
  Run r = run(false, {}, [&](ThreadComm& comm, const comm::CrashPoint& p) {
    if (comm.membership().replacement || p.name != "lambda" || p.step != Step{3}) return;
    all.arrive_and_wait();
    throw comm::Killed{};
  });
  CHECK(r.outcome.finished);
  CHECK(r.outcome.deaths == 3);
  CHECK(r.final == uninterrupted());
  int first = 0;
  for (auto [who, step] : r.lambdas) first += step == 0;
  CHECK(first == 6);
}

TEST_CASE("without replacements the group shrinks, if it may, and goes on") {
  for (bool simulated : {true, false}) {
    Run r = run(simulated, {.max_restarts = 0, .shrink = true}, kill(1, "lambda", 2));
    CHECK(r.outcome.finished);
    CHECK(r.outcome.restarts == 0);
    CHECK(r.outcome.deaths == 1);
    CHECK(r.final.size() == 2);
    int last = 0;
    for (const auto& [rank, done] : r.committed) last += done.step == Step{steps - 1};
    CHECK(last == 2);
    Run none = run(simulated, {.max_restarts = 0}, kill(1, "lambda", 2));
    CHECK(!none.outcome.finished);
    CHECK(none.outcome.reason.find("no replacement is left (--max-restarts 0)") == 0);
    CHECK(none.outcome.step <= Step{2});
  }
}

TEST_CASE("a step that kills whoever runs it is a poison step") {
  Run r = run(true, {.poison = 3}, [](ThreadComm& comm, const comm::CrashPoint& p) {
    if (comm.membership().rank == 1 && p.name == "reduce" && p.step == Step{2})
      throw comm::Killed{};
  });
  CHECK(!r.outcome.finished);
  CHECK(r.outcome.reason.find("a poison step: 3 failures at step 2, which was not committed") == 0);
}

TEST_CASE("a rank that computes other bits is found by the hashes in Done, and never voted on") {
  for (bool simulated : {true, false}) {
    std::mutex mutex;
    std::vector<std::string> texts;
    comm::Threads cluster{{.ranks = 3}, {.simulated = simulated}};
    comm::Outcome outcome = cluster.run([&](ThreadComm& comm) {
      std::vector<float> w(100, 1), g(100);
      TrainState state;
      state.add("w", w, g);
      Session session{state, Adam{}, comm, ReplicaRecovery{}};
      try {
        session.train(10, [&](Step s) {
          g.assign(100, 1);
          if (s == Step{3} && comm.rank() == 2) w[50] += 1e-3f;  // a stray write
        });
      } catch (const RunStopped& e) {
        std::lock_guard lock{mutex};
        texts.emplace_back(e.what());
        throw;
      }
    });
    CHECK(!outcome.finished);
    CHECK(outcome.reason.find("replicas diverged silently: rank 2 holds other bits than rank 0 at "
                              "step ") != std::string::npos);
    CHECK(outcome.restarts == 0);
    CHECK(texts.size() == 3);  // everybody is told
  }
}

}  // namespace
