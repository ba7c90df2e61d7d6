#include <mend/checkpoint/full.hpp>

#include <doctest/doctest.h>

#include <mend/checkpoint/full_checkpoints.hpp>
#include <mend/comm/threads.hpp>
#include <mend/optim/adam.hpp>
#include <mend/optim/undo/exact.hpp>
#include <mend/session/session.hpp>
#include <mend/store/memory.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace mend;
using comm::Fault;
using comm::ThreadComm;

namespace {

//! How many cases a slow build may pass over for each one that it runs.
std::uint64_t scale() {
  const char* text = std::getenv("MEND_TEST_SCALE");
  return text == nullptr ? 1 : std::max<std::uint64_t>(std::strtoull(text, nullptr, 10), 1);
}

//! A memory whose next puts fail with an errno, on every rank.
class Failing {
 public:
  struct Faults {
    std::mutex mutex;
    int errno_of_puts = 0;
  };
  using Writer = Memory::Writer;

  explicit Failing(std::shared_ptr<Faults> faults) : faults_{std::move(faults)} {}

  Writer put_new(const std::string& name) {
    refuse(name);
    return memory_.put_new(name);
  }
  bool put_if_absent(const std::string& name, ByteView bytes) {
    refuse(name);
    return memory_.put_if_absent(name, bytes);
  }
  std::optional<std::uint64_t> size(const std::string& name) { return memory_.size(name); }
  void read_range(const std::string& name, std::uint64_t offset, std::span<std::byte> into) {
    memory_.read_range(name, offset, into);
  }
  std::vector<std::string> list(const std::string& folder) { return memory_.list(folder); }
  void remove(const std::string& name) { memory_.remove(name); }
  void sync_existing(const std::string& name) { memory_.sync_existing(name); }
  void remove_leftovers(const std::string& folder, const std::string& before) {
    memory_.remove_leftovers(folder, before);
  }

 private:
  void refuse(const std::string& name) const {
    std::lock_guard lock{faults_->mutex};
    if (faults_->errno_of_puts != 0)
      throw FileError{"injected", {.code = faults_->errno_of_puts, .path = name}};
  }

  Memory memory_;
  std::shared_ptr<Faults> faults_;
};
static_assert(Store<Failing>);

//! Parameters, a scalar, and a generator that only this rank has.
struct Model {
  std::vector<float> w = std::vector<float>(3000, 0.5f), g = std::vector<float>(3000);
  std::vector<double> b = std::vector<double>(3, 1), gb = std::vector<double>(3);
  double seen = 0;
  std::mt19937 random;
  TrainState state;

  Model(int rank, int copies) : random(7u + static_cast<unsigned>(rank)) {
    state.add("w", w, g).add("b", b, gb).add_scalar("seen", seen);
    state.add_generator("random", random, PerRank{copies});
  }
  float step(int rank) {
    const auto noise = static_cast<float>(random() % 1000) * 1e-3f;
    for (std::size_t i = 0; i < g.size(); ++i)
      g[i] = 0.01f * w[i] + noise + static_cast<float>(i % 7) + static_cast<float>(rank);
    for (double& x : gb) x = static_cast<double>(noise);
    seen += 1;
    return noise;
  }
};

//! What a job did.
struct Job {
  comm::Outcome outcome{};
  bool hung = false;
  std::map<int, Hash128> final{};
  std::map<int, std::int64_t> durable{};
  std::int64_t first = -1;  //!< the step that rank 0 began with last
  std::vector<comm::World::Trace> trace{};
  std::string error{};
};

struct Setup {
  int ranks = 3;
  std::int64_t last = 12;
  int copies = 1;
  bool replicas = true;
  bool early = false;
};

template <class S>
Job run(const S& store, Setup setup, std::vector<Fault> faults = {},
        const std::function<void(Step)>& in_step = {}) {
  Job job;
  std::mutex mutex;
  comm::WorldOptions world{.simulated = true, .chunk_bytes = 4096};
  world.faults = std::move(faults);
  comm::Threads cluster{{.ranks = setup.ranks, .max_restarts = 64, .poison = 40}, world};
  const auto train = [&](ThreadComm& comm, Model& model, auto& session) {
    bool began = false;
    session.train(setup.last, [&](Step s) {
      if (!std::exchange(began, true) && comm.rank() == 0) {
        std::lock_guard lock{mutex};
        job.first = s.value();
      }
      if (in_step) in_step(s);
      const float loss = model.step(comm.rank());
      if (setup.early) session.ready("w");
      return loss;
    });
    std::lock_guard lock{mutex};
    job.final[comm.rank()] = model.state.hash();
    job.durable[comm.rank()] = session.durable_step().value();
    if (comm.rank() == 0) job.error = session.checkpoint_error();
  };
  job.outcome = cluster.run([&](ThreadComm& comm) {
    Model model{comm.rank(), setup.copies};
    FullCheckpointer checkpointer{store, {.every = 5}};
    if (!setup.replicas) {
      Session session{model.state, Adam{.lr = 0.01}, comm, checkpointer};
      train(comm, model, session);
    } else if (setup.early) {
      Session session{model.state,       Adam{.lr = 0.01}, comm,
                      ReplicaRecovery{}, checkpointer,     ExactUndo{}};
      train(comm, model, session);
    } else {
      Session session{model.state, Adam{.lr = 0.01}, comm, ReplicaRecovery{}, checkpointer};
      train(comm, model, session);
    }
  });
  job.hung = cluster.world().hung();
  job.trace = cluster.world().trace();
  return job;
}

//! The operation at which a worker reaches a point in a step.
std::uint64_t operation_of(const Job& job, Incarnation who, const std::string& point, Step step) {
  std::int64_t at = -1;
  for (const auto& t : job.trace) {
    if (t.who != who) continue;
    if (t.point == "lambda") ++at;
    if (at == step.value() && t.point == point) return t.operation;
  }
  FAIL("nobody reached " << point);
  return 0;
}

}  // namespace

TEST_CASE("a job goes on from where the one before it ended") {
  Memory store, whole;
  const Job all = run(whole, {.last = 12});
  REQUIRE(all.outcome.finished);
  CHECK(all.first == 0);
  for (const auto& [rank, step] : all.durable) CHECK(step == 12);

  const Job half = run(store, {.last = 7});
  REQUIRE(half.outcome.finished);
  for (const auto& [rank, step] : half.durable) CHECK(step == 7);  // not 5: the end counts
  const Job rest = run(store, {.last = 12});
  REQUIRE_MESSAGE(rest.outcome.finished, rest.outcome.reason);
  CHECK(rest.first == 7);
  CHECK(rest.final == all.final);
  const Job nothing = run(store, {.last = 12});
  CHECK(nothing.outcome.finished);
  CHECK(nothing.first == -1);
  CHECK(nothing.final == all.final);
}

TEST_CASE("all workers die: the job begins anew at the last checkpoint, with the same bits") {
  Memory calm_store;
  const Job calm = run(calm_store, {});
  for (bool early : {false, true})
    for (const char* point : {"lambda", "bucket", "done", "updated", "committed"}) {
      CAPTURE(point);
      Memory store;
      std::vector<Fault> faults;
      for (Incarnation who : {1, 2, 3})
        faults.push_back({.who = who, .operation = operation_of(calm, who, point, Step{8})});
      const Job job = run(store, {.early = early}, faults);
      CHECK_MESSAGE(job.outcome.finished, job.outcome.reason);
      CHECK(!job.hung);
      if (!early) CHECK(job.first == 5);
      CHECK(job.final == calm.final);
    }
}

TEST_CASE("state that no other rank has: one death takes all back to the checkpoint") {
  Memory calm_store, store;
  const Setup setup{.copies = 0};
  const Job calm = run(calm_store, setup);
  const Job job =
      run(store, setup, {{.who = 2, .operation = operation_of(calm, 2, "reduced", Step{8})}});
  CHECK_MESSAGE(job.outcome.finished, job.outcome.reason);
  CHECK(job.final == calm.final);
}

TEST_CASE("two deaths that lose a copied state do, too") {
  Memory calm_store, store;
  const Job calm = run(calm_store, {});
  const Job job = run(store, {},
                      {{.who = 2, .operation = operation_of(calm, 2, "reduced", Step{8})},
                       {.who = 3, .operation = operation_of(calm, 3, "reduced", Step{8})}});
  CHECK_MESSAGE(job.outcome.finished, job.outcome.reason);
  CHECK(job.final == calm.final);
}

TEST_CASE("without replicas a death takes all back to the checkpoint") {
  Memory calm_store, store;
  const Setup setup{.replicas = false};
  const Job calm = run(calm_store, setup);
  for (std::int64_t step : {2, 8}) {
    Memory fresh;
    const Job job =
        run(fresh, setup, {{.who = 2, .operation = operation_of(calm, 2, "updated", Step{step})}});
    CHECK_MESSAGE(job.outcome.finished, job.outcome.reason);
    CHECK(job.final == calm.final);
  }
}

TEST_CASE("a death at any operation of a job with checkpoints") {
  Memory calm_store;
  const Setup setup{.ranks = 2, .last = 6};
  const Job calm = run(calm_store, setup);
  REQUIRE(calm.outcome.finished);
  std::uint64_t runs = 0;
  for (Incarnation who : {1, 2}) {
    std::uint64_t most = 0;
    for (const auto& t : calm.trace)
      if (t.who == who) most = std::max(most, t.operation);
    for (std::uint64_t operation = 1; operation <= most; operation += 3 * scale()) {
      CAPTURE(who);
      CAPTURE(operation);
      Memory store;
      const Job job = run(store, setup, {{.who = who, .operation = operation}});
      ++runs;
      CHECK(!job.hung);
      if (!job.outcome.finished) {  // a death after the last step is nobody's to recover
        CHECK(job.outcome.reason.find("after the last step") != std::string::npos);
        continue;
      }
      CHECK(job.final == calm.final);
      const Job next = run(store, {.ranks = 2, .last = 6});
      CHECK(next.final == calm.final);
    }
  }
  CHECK(runs > 20 / scale());
}

TEST_CASE("a full disk costs checkpoints and nothing else; the next attempt works") {
  Memory calm_store;
  const Job calm = run(calm_store, {.last = 22});
  const auto faults = std::make_shared<Failing::Faults>();
  Failing store{faults};
  const Job job = run(store, {.last = 22}, {}, [&](Step s) {
    std::lock_guard lock{faults->mutex};
    faults->errno_of_puts = s >= Step{8} && s < Step{18} ? ENOSPC : 0;
  });
  REQUIRE_MESSAGE(job.outcome.finished, job.outcome.reason);
  CHECK(job.final == calm.final);
  CHECK(job.error.find("No space left") != std::string::npos);
  for (const auto& [rank, step] : job.durable) CHECK(step == 22);

  // And at the very end: what is durable is told.
  Failing other{faults};
  const Job ended = run(other, {.last = 7}, {}, [&](Step s) {
    std::lock_guard lock{faults->mutex};
    faults->errno_of_puts = s == Step{6} ? EDQUOT : 0;
  });
  CHECK(ended.outcome.finished);
  for (const auto& [rank, step] : ended.durable) CHECK(step == 5);
  faults->errno_of_puts = 0;
  const Job again = run(other, {.last = 7});
  CHECK(again.first == 5);
}

TEST_CASE("another rank count: replicated state is restored, per-rank state is refused") {
  Memory store;
  REQUIRE(run(store, {.last = 7}).outcome.finished);
  const Job job = run(store, {.ranks = 2, .last = 12});
  CHECK(!job.outcome.finished);
  CHECK(job.outcome.reason.find("random") != std::string::npos);
}

TEST_CASE("a store that holds another model's state is refused, and not written to") {
  Memory store;
  REQUIRE(run(store, {.last = 7}).outcome.finished);
  const auto before = store.list("manifests/");
  std::vector<float> w(10), g(10);
  TrainState state;
  state.add("w", w, g);
  ThreadComm comm;
  Session session{state, Adam{}, comm, FullCheckpointer{store}};
  CHECK_THROWS_AS(session.train(1, [](Step) {}), StateError);
  CHECK(store.list("manifests/") == before);
}

TEST_CASE("numbers that cannot work are refused at once") {
  CHECK_THROWS_AS((FullCheckpointer{Memory{}, {.every = 0}}), OptionError);
  CHECK_THROWS_AS((FullCheckpointer{Memory{}, {.keep = 0}}), OptionError);
  CHECK_THROWS_AS((FullCheckpointer{Memory{}, {.keep_every = -1}}), OptionError);
}
