#include <mend/session/session.hpp>

#include <doctest/doctest.h>
#include <mend/kernel/host/reduce.hpp>
#include <mend/optim/sgd.hpp>
#include <mend/optim/skip_non_finite.hpp>
#include <mend/optim/undo/snapshot.hpp>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "session/support/cluster.hpp"

using namespace mend;
using namespace mend_test;
using mend::comm::CoordinatorOptions;
using mend::comm::Kind;
using mend::comm::ThreadComm;
using mend::comm::World;
using mend::comm::WorldOptions;

// The rules of docs/protocol.md, a test for each: it fails when the code breaks the rule. What only
// processes and sockets can show (leases of helper threads, reaping, signals) is in tests/comm.

namespace {

const WorldOptions simulated{.simulated = true, .chunk_bytes = 4096};

//! A trainer without secrets: two tensors with buckets of their own, two small ones that share one,
//! and a buffer. Gradients depend on parameters, step and rank.
struct Small {
  explicit Small(float start = 0.5f) : a(4096, start), b(4096, start), c(8, start), d(8, start) {
    state.add("a", a, ga).add("b", b, gb).add("c", c, gc).add("d", d, gd).add_buffer("seen", seen);
  }
  Small(const Small&) = delete;
  Small& operator=(const Small&) = delete;

  void gradients(Step step, int rank) {
    for (auto [value, gradient] : {std::pair{&a, &ga}, {&b, &gb}, {&c, &gc}, {&d, &gd}})
      for (std::size_t i = 0; i < value->size(); ++i)
        (*gradient)[i] = 0.1f * (*value)[i] + 0.01f * static_cast<float>(i % 5) +
                         static_cast<float>(rank) - 0.3f * static_cast<float>(step.value());
    seen[0] += 1;
  }

  std::vector<float> a, b, c, d;
  std::vector<float> ga = a, gb = b, gc = c, gd = d;
  std::vector<double> seen = {0};
  TrainState state;
};

//! What runs of a worker's function gave, by rank; written by threads.
template <class T>
class ByRank {
 public:
  void set(int rank, T value) {
    std::lock_guard lock{mutex_};
    values_.insert_or_assign(rank, std::move(value));
  }
  [[nodiscard]] std::map<int, T> take() {
    std::lock_guard lock{mutex_};
    return std::exchange(values_, {});
  }

 private:
  std::mutex mutex_;
  std::map<int, T> values_;
};

//! Where the lambda for a step begins and where the next one would, in a run without faults: kills
//! in between cut this step short.
std::vector<Fault> within_step(const Case& c, int step, std::uint64_t every = 1) {
  std::vector<Fault> all;
  std::map<Incarnation, int> lambdas;
  for (const auto& t : run(c).trace) {
    if (t.point == "lambda") ++lambdas[t.who];
    if (lambdas[t.who] == step + 1 && t.operation % every == 0)
      all.push_back({.who = t.who, .operation = t.operation});
  }
  return all;
}
//! The first time each worker passes this point in this step.
std::vector<Fault> at_point(const Case& c, int step, std::string_view point) {
  std::vector<Fault> all;
  std::map<Incarnation, int> lambdas;
  std::set<Incarnation> found;
  for (const auto& t : run(c).trace) {
    if (t.point == "lambda") ++lambdas[t.who];
    if (lambdas[t.who] == step + 1 && t.point == point && found.insert(t.who).second)
      all.push_back({.who = t.who, .operation = t.operation});
  }
  return all;
}

std::size_t count(const Result& r, Incarnation who, std::string_view point) {
  return static_cast<std::size_t>(std::ranges::count_if(
      r.trace, [&](const auto& t) { return t.who == who && t.point == point; }));
}
std::size_t count(const Result& r, std::string_view point) {
  return static_cast<std::size_t>(
      std::ranges::count_if(r.trace, [&](const auto& t) { return t.point == point; }));
}
std::size_t lambdas(const Result& r, std::int64_t step) {
  return static_cast<std::size_t>(std::ranges::count_if(
      r.notes, [&](const Note& n) { return n.what == Note::What::lambda && n.step == step; }));
}

//! A worker's link with a lease that ends when the test says so, and with what was posted leaving
//! one piece at a time, at polls, as a socket that takes little.
class NarrowLink {
 public:
  explicit NarrowLink(World::WorkerLink& link) : link_{link} {}
  [[nodiscard]] Time now() const { return link_.now(); }
  void enter(Generation generation, int rank, std::span<const Peer> peers) {
    posted_.clear();
    link_.enter(generation, rank, peers);
  }
  void post(int to, const Header& h, ByteView payload) { posted_.push_back({to, h, payload}); }
  [[nodiscard]] std::size_t backlog(int to) const {
    std::size_t bytes = 0;
    for (const Posted& p : posted_)
      if (p.to == to) bytes += sizeof(Header) + p.payload.size();
    return bytes;
  }
  std::optional<Frame> poll(Deadline deadline, bool drain) {
    if (!posted_.empty()) {
      Posted p = posted_.front();
      posted_.pop_front();
      link_.post(p.to, p.header, p.payload);
    }
    return link_.poll(posted_.empty() ? deadline : std::min(deadline, link_.now()), drain);
  }
  void hold(int rank, bool held) { link_.hold(rank, held); }
  void tell(const Header& h, ByteView payload) { link_.tell(h, payload); }
  void recycle(Payload payload) { link_.recycle(std::move(payload)); }
  void wake() { link_.wake(); }
  [[nodiscard]] bool concurrent() const { return link_.concurrent(); }
  void check() const {
    if (expired) throw CommError{"fenced: its lease expired"};
  }

  bool expired = false;

 private:
  struct Posted {
    int to;
    Header header;
    ByteView payload;
  };
  World::WorkerLink& link_;
  std::deque<Posted> posted_;
};
using NarrowComm = comm::Group<NarrowLink>;
NarrowComm narrow(ThreadComm& comm) {
  NarrowComm n{std::make_unique<NarrowLink>(comm.link()), comm.membership()};
  n.chunk_bytes = comm.chunk_bytes;
  n.on_crash_point = comm.on_crash_point;
  return n;
}

//! A hub that changes what a worker said, or what it is told.
struct BendingHub {
  World::WorkerHub& hub;
  std::function<void(HubEvent&)> said = [](HubEvent&) {};
  std::function<Bytes(Incarnation, const Header&, ByteView)> told = [](Incarnation, const Header&,
                                                                       ByteView payload) {
    return Bytes{payload.begin(), payload.end()};
  };

  [[nodiscard]] Time now() const { return hub.now(); }
  std::optional<HubEvent> poll(Deadline deadline) {
    std::optional<HubEvent> e = hub.poll(deadline);
    if (e) said(*e);
    return e;
  }
  void tell(Incarnation who, const Header& h, ByteView payload) {
    hub.tell(who, h, told(who, h, payload));
  }
  void start(Incarnation who, int rank, int size, bool replacement) {
    hub.start(who, rank, size, replacement);
  }
  void kill(Incarnation who) { hub.kill(who); }
  [[nodiscard]] Time last_heard(Incarnation who) const { return hub.last_heard(who); }
};
//! Three ranks of a small trainer for three steps, their hub bent.
template <class Bend>
comm::Outcome run_bent(std::vector<Fault> faults, Bend&& bend) {
  OneCore core{true};
  WorldOptions options = simulated;
  options.faults = std::move(faults);
  World world{options};
  return world.run(
      [](ThreadComm& comm) {
        Small model;
        Session session{model.state, Adam{}, comm, ReplicaRecovery{}};
        session.train(3, [&](Step s) { model.gradients(s, session.rank()); });
      },
      [&](World::WorkerHub& hub) {
        BendingHub bent{hub};
        bend(bent);
        return comm::Coordinator{bent, CoordinatorOptions{.ranks = 3}}.run();
      });
}

#define MEND_CHECK_RUN(c, r)                                     \
  do {                                                           \
    Verdict verdict = check_run(c, &(r));                        \
    CHECK_MESSAGE(verdict.complaint.empty(), verdict.complaint); \
    CHECK(!verdict.stopped);                                     \
  } while (false)

}  // namespace

TEST_CASE("rule 1: what a step needs lives until commit: no lambda before Done from all") {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    Case c;
    c.world.seed = seed;
    c.world.delay = 50ms;
    std::map<Incarnation, int> begun, reduced;
    bool early = false;
    for (const auto& t : run(c).trace) {
      if (t.point == "reduced") ++reduced[t.who];
      if (t.point != "lambda") continue;
      int step = begun[t.who]++;
      for (Incarnation other : {1u, 2u, 3u}) early = early || reduced[other] < step;
    }
    CHECK(!early);
  }
  // So whoever misses a reduced bucket gets it, and whoever went too far goes back.
  std::size_t fetched = 0, taken_back = 0;
  for (Flavour flavour :
       {Flavour::roll_forward, Flavour::snapshot, Flavour::exact, Flavour::ping_pong}) {
    Case c;
    c.flavour = flavour;
    for (const Fault& kill : within_step(c, 1, 2)) {
      Result r;
      MEND_CHECK_RUN(c.with({kill}), r);
      fetched += count(r, "fetch");
      bool updated = false;  // before it went back
      for (const auto& t : r.trace) {
        if (t.who == kill.who) continue;
        if (t.point == "lambda") updated = false;
        if (t.point == "update") updated = true;
        taken_back += t.point == "undo" && updated;
      }
    }
  }
  CHECK(fetched > 0);
  CHECK(taken_back > 0);
  // Also when `after` writes the gradients: whoever has them keeps them until others have them too.
  fetched = 0;
  ByRank<Hash128> final;
  auto attempt = [&](std::vector<Fault> faults) {
    WorldOptions world = simulated;
    world.faults = std::move(faults);
    return run_threads({.ranks = 3}, world, [&](ThreadComm& comm) {
      Small model;
      Session session{model.state, Adam{}, comm, ReplicaRecovery{}};
      session.train(
          3, [&](Step s) { model.gradients(s, session.rank()); },
          [&](const Committed&) {
            for (auto* g : {&model.ga, &model.gb, &model.gc, &model.gd})
              std::ranges::fill(*g, -7.0f);
          });
      final.set(session.rank(), hash_of(model.state));
    });
  };
  const Ran whole = attempt({});
  const std::map<int, Hash128> bits = final.take();
  REQUIRE(bits.size() == 3);
  std::map<Incarnation, int> begun;
  for (const auto& t : whole.trace) {
    begun[t.who] += t.point == "lambda";
    if (begun[t.who] != 2) continue;
    const Ran ran = attempt({{.who = t.who, .operation = t.operation}});
    CHECK(ran.outcome.finished);
    CHECK(final.take() == bits);
    fetched += static_cast<std::size_t>(
        std::ranges::count_if(ran.trace, [](const auto& x) { return x.point == "fetch"; }));
  }
  CHECK(fetched > 0);
}

TEST_CASE(
    "rule 2: survivors get buckets and never state; replacements are fed once all are whole") {
  Case c;
  c.copies = 2;
  const std::size_t most = 6;  // chunks in the buckets of a step, the closing one included
  for (const Fault& kill : within_step(c, 2, 3)) {
    Result r;
    MEND_CHECK_RUN(c.with({kill}), r);
    for (Incarnation who : {1u, 2u, 3u}) {
      CHECK(count(r, who, "fetched") <= most * count(r, who, "fetch"));
      CHECK(count(r, who, "restored") == 0);
    }
    CHECK(count(r, 4, "restored") == 1);
    CHECK(count(r, 4, "fetched") > 2 * most);
    std::set<Incarnation> whole;
    for (const auto& t : r.trace) {
      if (t.who == kill.who) continue;
      if (t.point == "view") whole.erase(t.who);
      if (t.point == "ready") whole.insert(t.who);
      if (t.point == "feed") CHECK(whole.size() == 2);
    }
  }
  // An interrupted transfer goes on where it ended: a source dies while the replacement receives,
  // and no piece comes twice.
  const Fault first = at_point(c, 2, "lambda").front();
  Result fed;
  MEND_CHECK_RUN(c.with({first}), fed);
  const std::size_t pieces = count(fed, 4, "fetched");
  REQUIRE(pieces > 10);
  std::size_t so_far = 0, interrupted = 0;
  for (const auto& t : fed.trace) {
    so_far += t.who == 4 && t.point == "fetched";
    if (t.who != 3 || so_far == 0 || so_far > pieces - 5) continue;
    Result r;
    MEND_CHECK_RUN(c.with({first, {.who = 3, .operation = t.operation}}), r);
    std::size_t before = 0;
    for (const auto& x : r.trace) {
      if (x.who == 4 && x.point == "view" && before > 0) break;
      before += x.who == 4 && x.point == "fetched";
    }
    if (before >= pieces - 1) continue;
    ++interrupted;
    CHECK(count(r, 4, "fetched") == pieces);
  }
  CHECK(interrupted > 3);
}

TEST_CASE("rule 3: recovery begins from what any member still holds, else from what is durable") {
  Case c;
  c.copies = 2;
  // Two die in the moment of commit. The third is enough, however far it is; what it committed is
  // not done again.
  std::size_t carried = 0;
  for (std::string_view point : {"bucket", "reduced", "done", "updated", "commit", "committed"})
    for (std::size_t survivor = 0; survivor < 3; ++survivor) {
      std::vector<Fault> kills = at_point(c, 1, point);
      REQUIRE(kills.size() == 3);
      std::erase_if(kills, [&](const Fault& f) { return f.who == survivor + 1; });
      Result r;
      MEND_CHECK_RUN(c.with(kills), r);
      CHECK(count(r, survivor + 1, "restored") == 0);
      CHECK(lambdas(r, 0) == 3);
      carried += lambdas(r, 1) == 3;
    }
  CHECK(carried > 3);
  // All die: nothing is held, and without a checkpoint version 0 is what is known for sure.
  std::vector<Fault> all = at_point(c, 2, "lambda");
  REQUIRE(all.size() == 3);
  Result r;
  MEND_CHECK_RUN(c.with(all), r);
  CHECK(lambdas(r, 0) == 6);
  // And the recovery itself may lose everybody who holds the state.
  const Fault first = at_point(c, 2, "lambda").front();
  Result one;
  MEND_CHECK_RUN(c.with({first}), one);
  std::size_t restarted = 0;
  for (const auto& t : one.trace)
    if (t.who == 4 && t.point == "fetched" && t.operation % 4 == 0) {
      auto same_time = [&](Incarnation who) {
        Fault f{.who = who};
        for (const auto& x : one.trace) {
          if (x.who == who) f.operation = x.operation;
          if (&x == &t) break;
        }
        ++f.operation;
        return f;
      };
      Result lost;
      MEND_CHECK_RUN(c.with({first, same_time(2), same_time(3)}), lost);
      restarted += lambdas(lost, 0) == 6;
    }
  CHECK(restarted > 0);
}

TEST_CASE("rule 4: norm and non-finite flag come from reduced data; clipping is in the rule") {
  // A roll-forward does not clip twice.
  Case c;
  c.flavour = Flavour::clip;
  for (const Fault& kill : within_step(c, 1, 3)) {
    Result r;
    MEND_CHECK_RUN(c.with({kill}), r);
  }
  // The gradients that `after` sees are the reduced ones, not scaled, and the norm is theirs.
  std::atomic<int> same{0};
  Ran ran = run_threads({.ranks = 3}, simulated, [&](ThreadComm& comm) {
    Small model;
    Session session{model.state, Adam{.lr = 1e-2f}, comm, ReplicaRecovery{}, ClipNorm{0.25f}};
    session.train(
        3, [&](Step s) { model.gradients(s, session.rank()); },
        [&](const Committed& done) {
          double squares = 0;
          for (auto* g : {&model.ga, &model.gb, &model.gc, &model.gd})
            squares +=
                kernel::sum_of_squares(DType::f32, std::as_bytes(std::span{*g}).data(), g->size());
          same += done.gradient_norm > 0.25f &&
                  std::abs(std::sqrt(squares) / static_cast<double>(done.gradient_norm) - 1) < 1e-6;
        });
  });
  CHECK(ran.outcome.finished);
  CHECK(same == 9);
  // One rank's NaN skips the step everywhere, also when a death cuts it short; the version
  // advances, the number of updates does not.
  auto skipping = [&](std::vector<Fault> faults) {
    ByRank<std::string> said;
    WorldOptions world = simulated;
    world.faults = std::move(faults);
    Ran r = run_threads({.ranks = 3}, world, [&](ThreadComm& comm) {
      Small model;
      std::string log;
      Session session{model.state, Adam{.lr = 1e-2f}, comm, ReplicaRecovery{}, SkipNonFinite{}};
      session.train(
          3,
          [&](Step s) {
            model.gradients(s, session.rank());
            if (s == Step{1} && session.rank() == 2)
              model.gb[7] = std::numeric_limits<float>::quiet_NaN();
          },
          [&](const Committed& done) {
            if (done.skipped) log = "skipped " + std::to_string(done.step.value());
          });
      said.set(session.rank(), log + ", " + std::to_string(model.state.step) + " steps, " +
                                   std::to_string(model.state.applied) + " updates, " +
                                   hash_of(model.state).to_hex());
    });
    CHECK(!r.hung);
    CHECK(
        (r.outcome.finished || r.outcome.reason.find("after the last step") != std::string::npos));
    return std::pair{said.take(), r.trace};
  };
  auto [whole, trace] = skipping({});
  REQUIRE(whole.size() == 3);
  CHECK(whole[0] == whole[2]);
  CHECK(whole[0].find("skipped 1, 3 steps, 2 updates") == 0);
  for (const auto& t : trace)
    if (t.operation % 5 == 0)
      for (const auto& [rank, text] : skipping({{.who = t.who, .operation = t.operation}}).first)
        // A replacement may have missed the skipped step; the state has not.
        CHECK(text.substr(text.find(", ")) == whole[0].substr(whole[0].find(", ")));
}

TEST_CASE("rule 5: copies of per-rank state change only at commit") {
  // The copies of the next version have come when the victim dies, and the step is taken back: its
  // replacement must get the older one. judge() compares it in every lambda.
  std::size_t taken_back = 0;
  for (Flavour flavour :
       {Flavour::roll_forward, Flavour::snapshot, Flavour::exact, Flavour::ping_pong})
    for (std::string_view point : {"copies", "closing", "during_reduce", "bucket", "reduced"})
      for (int step : {1, 2}) {
        Case c;
        c.flavour = flavour;
        for (const Fault& kill : at_point(c, step, point)) {
          Result r;
          MEND_CHECK_RUN(c.with({kill}), r);
          taken_back += lambdas(r, step) == 6 && count(r, "copies") > 3;
        }
      }
  CHECK(taken_back > 10);
}

TEST_CASE("rule 6: a bucket is updated during backward only after the trainer released it") {
  std::atomic<int> overlapped{0}, wrong{0};
  Ran ran = run_threads({.ranks = 3}, simulated, [&](ThreadComm& comm) {
    Small model;
    Session session{model.state, Sgd{.lr = 0.1f}, comm, ReplicaRecovery{}, SnapshotUndo{}};
    session.train(3, [&](Step s) {
      model.gradients(s, session.rank());
      const auto a = model.a, b = model.b, c = model.c, d = model.d;
      auto are = [&](bool other_a, bool other_b, bool other_small) {
        wrong += (model.a != a) != other_a || (model.b != b) != other_b ||
                 (model.c != c) != other_small || (model.d != d) != other_small;
      };
      are(false, false, false);
      session.ready("b");
      are(false, true, false);
      overlapped += model.b != b;
      session.ready("d");  // shares a bucket with "c", which the backward pass still needs
      are(false, true, false);
      session.ready("c");
      are(false, true, true);
      session.ready("a");
      are(true, true, true);
    });
  });
  CHECK(ran.outcome.finished);
  CHECK(overlapped == 9);
  CHECK(wrong == 0);
}

TEST_CASE("rule 7: after runs after commit, at most once per step in a process") {
  // In the log of a run, judge() finds a second call, and one for a step that is repeated later.
  for (Flavour flavour :
       {Flavour::roll_forward, Flavour::snapshot, Flavour::exact, Flavour::ping_pong}) {
    Case c;
    c.flavour = flavour;
    for (const Fault& kill : within_step(c, 1, 2)) {
      Result r;
      MEND_CHECK_RUN(c.with({kill}), r);
      for (std::int64_t step = 0; step < 4; ++step)
        CHECK(std::ranges::count_if(r.notes, [&](const Note& n) {
                return n.what == Note::What::committed && n.step == step;
              }) >= 2);
    }
  }
  // Not before Done from all, and the step is committed by then.
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    std::atomic<int> early{0}, calls{0};
    std::atomic<std::int64_t> said[3]{};  // steps of which a rank has said Done
    WorldOptions world = simulated;
    world.seed = seed;
    world.delay = 50ms;
    Ran ran = run_threads({.ranks = 3}, world, [&](ThreadComm& comm) {
      Small model;
      Session session{model.state, Adam{}, comm, ReplicaRecovery{}};
      comm.on_crash_point = [&, tell = comm.on_crash_point](const comm::CrashPoint& p) {
        if (p.name == "done") said[session.rank()] = session.step().value() + 1;
        tell(p);
      };
      session.train(
          6, [&](Step s) { model.gradients(s, session.rank()); },
          [&](const Committed& done) {
            ++calls;
            for (auto& steps : said) early += steps < done.step.value() + 1;
            early += session.step() != done.step.next();
          });
    });
    CHECK(ran.outcome.finished);
    CHECK(calls == 18);
    CHECK(early == 0);
  }
  // Whose lease is over has been given up, even where Done has come from all.
  std::atomic<int> acted{0}, others{0};
  Ran fenced = run_threads({.ranks = 3}, simulated, [&](ThreadComm& comm) {
    NarrowComm mine = narrow(comm);
    Small model;
    Session session{model.state, Adam{}, mine, ReplicaRecovery{}};
    const bool first = comm.membership().incarnation == 2;
    mine.on_crash_point = [&, tell = comm.on_crash_point](const comm::CrashPoint& p) {
      if (first && p.name == "commit" && session.step() == Step{1}) mine.link().expired = true;
      tell(p);
    };
    session.train(
        3, [&](Step s) { model.gradients(s, session.rank()); },
        [&](const Committed& done) {
          if (done.step == Step{1}) ++(first ? acted : others);
        });
  });
  CHECK(fenced.outcome.finished);
  CHECK(fenced.outcome.deaths == 1);
  CHECK(fenced.failures[2].find("fenced") == 0);
  CHECK(acted == 0);
  CHECK(others >= 2);
  // A worker that was stopped and given up does not call it when it wakes up.
  std::size_t woken = 0;
  Case c;
  c.steps = 12;
  c.world.zombies = true;
  c.world.delay = 50ms;  // so that the others are still at work when it does
  for (Fault stop : within_step(c, 1, 2)) {
    stop.kind = Fault::Kind::stop;
    stop.span = c.options.lease + 500ms;
    Result r;
    MEND_CHECK_RUN(c.with({stop}), r);
    bool given_up = false;
    for (const Note& n : r.notes) {
      given_up = given_up || n.what == Note::What::death;
      if (n.who != stop.who || !given_up) continue;
      CHECK(n.what != Note::What::committed);
      woken += n.what == Note::What::failed;
    }
  }
  CHECK(woken > 10);
}

TEST_CASE("rule 8: a version is (step, lineage); shrinking opens a lineage") {
  // The membership service says which one it is.
  std::mutex mutex;
  std::vector<std::string> views;
  WorldOptions world = simulated;
  world.faults = {{.who = 2, .operation = 8}};
  Ran ran =
      run_threads({.ranks = 3, .max_restarts = 0, .shrink = true}, world, [&](ThreadComm& comm) {
        auto wait_for = [&](Kind kind) {
          for (;;) {
            std::optional<Frame> f = comm.next_frame(mend::after(comm.now(), 60s));
            if (!f) throw std::runtime_error{"the coordinator says nothing"};
            if (comm.is(*f, Kind::view)) {
              comm.push_control(*std::move(f));
              return false;
            }
            if (comm.is(*f, kind)) return true;
          }
        };
        for (;;) {
          comm::View v = comm.await_view();
          comm.enter(v);
          {
            std::lock_guard lock{mutex};
            views.push_back(std::to_string(v.rank) + "/" + std::to_string(v.size()) + " lineage " +
                            std::to_string(v.lineage));
          }
          comm.tell(Kind::report, Step{}, encode(comm::Report{.has_state = true, .schema = "x"}));
          if (!wait_for(Kind::plan)) continue;
          comm.tell(Kind::ready, Step{});
          if (!wait_for(Kind::feed)) continue;
          comm.tell(Kind::ready, Step{});
          if (!wait_for(Kind::go)) continue;
          comm.tell(Kind::finished, Step{});
          if (wait_for(Kind::bye)) return;
        }
      });
  CHECK(ran.outcome.finished);
  CHECK(std::set<std::string>(views.begin(), views.end()) ==
        std::set<std::string>{"0/3 lineage 0", "1/3 lineage 0", "2/3 lineage 0", "0/2 lineage 1",
                              "1/2 lineage 1"});

  // It is part of the version that members compare.
  comm::Outcome split = run_bent({}, [](BendingHub& hub) {
    hub.told = [](Incarnation who, const Header& h, ByteView payload) {
      if (who != 2 || h.kind != static_cast<std::uint16_t>(Kind::view))
        return Bytes{payload.begin(), payload.end()};
      comm::View view = comm::decode_view(payload);
      view.lineage = 1;
      return encode(view);
    };
  });
  CHECK(!split.finished);
  CHECK(split.reason.find("rank 1 and rank 0 hold different bits") != std::string::npos);

  // A session goes on with fewer ranks; the result depends on the step at which that was, and on
  // nothing else.
  std::set<std::string> results;
  for (std::uint64_t seed : {1u, 2u, 3u, 4u}) {
    Case c;
    c.world.seed = seed;
    c.options.max_restarts = 0;
    c.options.shrink = true;
    std::vector<Fault> kills = at_point(c, 2, "lambda");
    std::erase_if(kills, [](const Fault& f) { return f.who != 2; });
    Result r = run(c.with(kills));
    CHECK(!r.hung);
    REQUIRE(r.outcome.finished);
    REQUIRE(r.final.size() == 2);
    results.insert(r.final[0].to_hex() + r.final[1].to_hex());
  }
  CHECK(results.size() == 1);
}

TEST_CASE(
    "rule 9: what a file would be named after, the step, is the state's only from commit on") {
  // There are no checkpoints yet; `save` writes state.step beside the tensors, and so will they.
  for (Flavour flavour :
       {Flavour::roll_forward, Flavour::snapshot, Flavour::exact, Flavour::ping_pong}) {
    std::atomic<int> wrong{0}, looked{0};
    auto attempt = [&](std::vector<Fault> faults) {
      WorldOptions world = simulated;
      world.faults = std::move(faults);
      return run_threads({.ranks = 3}, world, [&](ThreadComm& comm) {
        Small model;
        auto train = [&](auto... policies) {
          Session session{model.state, Adam{}, comm, ReplicaRecovery{}, policies...};
          comm.on_crash_point = [&, tell = comm.on_crash_point](const comm::CrashPoint& p) {
            // From the call of the lambda until all have said Done, whatever is updated already.
            if (p.name == "bucket" || p.name == "update" || p.name == "updated" ||
                p.name == "undo" || p.name == "roll_forward") {
              wrong += model.state.step != session.step().value() || model.state.step >= 3;
              wrong += model.state.applied != session.step().value();
              ++looked;
            }
            tell(p);
          };
          session.train(
              3,
              [&](Step s) {
                wrong += model.state.step != s.value();
                wrong += model.state.applied != s.value();
                model.gradients(s, session.rank());
              },
              [&](const Committed& done) {
                wrong += model.state.step != done.step.value() + 1;
                wrong += model.state.applied != done.step.value() + 1;
              });
        };
        if (flavour == Flavour::snapshot)
          train(SnapshotUndo{});
        else
          train();
      });
    };
    for (const auto& t : attempt({}).trace)
      if (t.operation % 4 == 0) CHECK(!attempt({{.who = t.who, .operation = t.operation}}).hung);
    CHECK(wrong == 0);
    CHECK(looked > 1000);
  }
}

TEST_CASE("rule 10: a suspect has ended before its replacement starts, or it fences itself") {
  for (bool zombies : {false, true}) {
    std::size_t suspects = 0, fenced_itself = 0;
    Case c;
    c.world.zombies = zombies;
    if (zombies) {  // the others are still at work when it wakes up
      c.steps = 12;
      c.world.delay = 50ms;
    }
    for (Fault stop : within_step(c, 1, 6)) {
      stop.kind = Fault::Kind::stop;
      stop.span = zombies ? c.options.lease + 500ms : Time{20s};
      Result r;
      MEND_CHECK_RUN(c.with({stop}), r);
      auto at = [&](Note::What what, auto&& who) {
        return std::ranges::find_if(r.notes,
                                    [&](const Note& n) { return n.what == what && who(n.who); }) -
               r.notes.begin();
      };
      auto born = at(Note::What::born, [](Incarnation who) { return who > 3; });
      REQUIRE(born < std::ssize(r.notes));
      if (!zombies) {
        CHECK(at(Note::What::killed, [&](Incarnation who) { return who == stop.who; }) < born);
      } else {
        // Nobody could reach it. It slept through its own replacement, and found out by itself.
        auto fenced = at(Note::What::failed, [&](Incarnation who) { return who == stop.who; });
        if (fenced < std::ssize(r.notes)) {
          CHECK(fenced > born);
          CHECK(r.notes[static_cast<std::size_t>(fenced)].text.find("fenced") == 0);
          ++fenced_itself;
        }
      }
      ++suspects;
    }
    CHECK(suspects > 10);
    CHECK((fenced_itself > 10) == zombies);
    // A short stop is nobody's business.
    Fault nap = at_point(c, 1, "reduce").front();
    nap.kind = Fault::Kind::stop;
    nap.span = 3s;
    Result r;
    MEND_CHECK_RUN(c.with({nap}), r);
    CHECK(r.outcome.deaths == 0);
  }
}

namespace {

struct Vanished {};
//! A hub whose user is gone after so many events: a launcher that died without a word.
struct Vanishing {
  World::WorkerHub& hub;
  int left;

  [[nodiscard]] Time now() const { return hub.now(); }
  std::optional<HubEvent> poll(Deadline deadline) {
    std::optional<HubEvent> e = hub.poll(deadline);
    if (e && left-- == 0) throw Vanished{};
    return e;
  }
  void tell(Incarnation who, const Header& h, ByteView payload) { hub.tell(who, h, payload); }
  void start(Incarnation who, int rank, int size, bool replacement) {
    hub.start(who, rank, size, replacement);
  }
  void kill(Incarnation who) { hub.kill(who); }
  [[nodiscard]] Time last_heard(Incarnation who) const { return hub.last_heard(who); }
};

}  // namespace

TEST_CASE("rule 11: workers end by themselves when the launcher is gone, and obey no other") {
  // The signals and leases of processes are tested in tests/comm; here, that no wait is for ever:
  // as far as the coordinator comes, its workers give up within their deadlines.
  for (int events = 0; events < 16; ++events) {
    OneCore core{true};
    World world{simulated};
    const Time timeout = 30s;
    std::size_t ends = 0;
    world.run(
        [&](ThreadComm& comm) {
          Small model;
          Session session{model.state, Adam{}, comm, ReplicaRecovery{}};
          session.train(50, [&](Step s) { model.gradients(s, session.rank()); });
        },
        [&](World::WorkerHub& hub) {
          Vanishing vanishing{hub, events};
          try {
            comm::Coordinator{vanishing, CoordinatorOptions{.ranks = 3, .timeout = timeout}}.run();
          } catch (const Vanished&) {
          }
          // Whatever else is said now comes from nobody whom the workers know.
          for (Deadline deadline = mend::after(hub.now(), 20 * timeout);
               ends < 3 && hub.now() < deadline;)
            if (std::optional<HubEvent> e = hub.poll(deadline); e && e->ended) ++ends;
          return 0;
        });
    CHECK(!world.hung());
    CHECK(ends == 3);
    CHECK(world.failures().size() == 3);
    for (const auto& [who, error] : world.failures())
      CHECK_THROWS_AS(std::rethrow_exception(error), CommError);
  }
}

TEST_CASE("rule 12: a broken link is reported: first the same members again, then one goes") {
  Case c;
  c.copies = 2;
  std::size_t same = 0, removed = 0;
  for (Fault cut : within_step(c, 1, 4)) {
    cut.kind = Fault::Kind::cut;
    cut.peer = static_cast<int>(cut.who % 3);
    Result r;
    MEND_CHECK_RUN(c.with({cut}), r);
    CHECK(r.outcome.deaths == 0);
    CHECK(r.outcome.restarts == 0);
    if (r.outcome.generations == 1) continue;  // all was through
    CHECK(r.outcome.generations == 2);
    ++same;
    // The same link again before anything was committed.
    auto entered = std::ranges::find_if(r.trace, [&](const auto& t) {
      return t.who == cut.who && t.operation > cut.operation && t.point == "go";
    });
    REQUIRE(entered != r.trace.end());
    Fault again = cut;
    again.operation = entered->operation + 1;
    MEND_CHECK_RUN(c.with({cut, again}), r);
    if (r.outcome.generations == 2) continue;
    CHECK(r.outcome.deaths == 1);
    ++removed;
  }
  CHECK(same > 10);
  CHECK(removed > 5);
  // The same link again after some commits is as good as another one.
  c.steps = 16;
  c.world.delay = 50ms;
  Fault cut = at_point(c, 1, "during_reduce").front();
  cut.kind = Fault::Kind::cut;
  cut.peer = static_cast<int>(cut.who % 3);
  Result once;
  MEND_CHECK_RUN(c.with({cut}), once);
  REQUIRE(once.outcome.generations == 2);
  int begun = 0;
  Fault later = cut;
  for (const auto& t : once.trace) {
    if (t.who != cut.who) continue;
    begun += t.point == "lambda";
    if (begun < 12 || t.point != "during_reduce") continue;
    later.operation = t.operation;
    break;
  }
  REQUIRE(later.operation > cut.operation);
  Result twice;
  MEND_CHECK_RUN(c.with({cut, later}), twice);
  CHECK(twice.outcome.generations == 3);
  CHECK(twice.outcome.deaths == 0);
}

TEST_CASE("rule 12: a lambda that throws reaches that rank's caller; the others are told at once") {
  for (int thrower = 0; thrower < 3; ++thrower) {
    ByRank<Hash128> final;
    std::atomic<int> thrown{0};
    auto attempt = [&](bool once) {
      return run_threads({.ranks = 3}, simulated, [&](ThreadComm& comm) {
        Small model;
        Session session{model.state, Adam{}, comm, ReplicaRecovery{}};
        try {
          session.train(4, [&](Step s) {
            model.gradients(s, session.rank());
            if (once && s == Step{2} && session.rank() == thrower && !comm.membership().replacement)
              throw std::domain_error{"no such batch"};
          });
        } catch (const std::domain_error&) {
          ++thrown;
          throw;
        }
        final.set(session.rank(), hash_of(model.state));
      });
    };
    Ran ran = attempt(true);
    std::map<int, Hash128> with = final.take();
    REQUIRE(attempt(false).outcome.finished);
    CHECK(ran.outcome.finished);
    CHECK(ran.outcome.deaths == 1);
    CHECK(thrown == 1);
    CHECK(with == final.take());
    CHECK(ran.failures[static_cast<Incarnation>(thrower) + 1] == "no such batch");

    // They are told by the session, not by the end of the process: that may linger.
    std::atomic<std::int64_t> since{0};
    const CoordinatorOptions options{.ranks = 3};
    ran = run_threads(
        options, simulated,
        [&](ThreadComm& comm) {
          Small model;
          Session session{model.state, Adam{}, comm, ReplicaRecovery{}};
          try {
            session.train(4, [&](Step s) {
              model.gradients(s, session.rank());
              if (s == Step{2} && session.rank() == thrower && !comm.membership().replacement)
                throw std::domain_error{"no such batch"};
            });
          } catch (const std::domain_error&) {
            since = comm.now().count();
            for (;;) (void)comm.link().poll(mend::never, false);
          }
        },
        [&](const trace::Event& e) {
          if (e.name == "death") CHECK(e.time < Time{since} + options.lease + 1s);
        });
    CHECK(ran.outcome.finished);
    CHECK(ran.outcome.deaths == 1);
  }
}

TEST_CASE("rule 13: a View is obeyed, and state written, only between lambdas") {
  // A rank dies while the others are in their lambdas, which learn it in ready(): until they
  // return, nobody but they touches parameters or buffers, however far the next generation is.
  std::atomic<int> changed{0}, cut_short{0};
  auto attempt = [&](std::vector<Fault> faults) {
    WorldOptions world = simulated;
    world.faults = std::move(faults);
    return run_threads({.ranks = 3}, world, [&](ThreadComm& comm) {
      Small model;
      Session session{model.state, Adam{}, comm, ReplicaRecovery{}};
      session.train(3, [&](Step s) {
        const std::uint32_t generation = comm.generation().value();
        model.gradients(s, session.rank());
        const auto a = model.a, b = model.b;
        const double seen = model.seen[0];
        for (const char* name : {"b", "a", "c", "d"}) {
          session.ready(name);
          changed += model.a != a || model.b != b || model.seen[0] != seen ||
                     comm.generation().value() != generation;
        }
        // Once the death has come through, what is left of the lambda still runs to its end.
        if (comm.watch(comm.now())) ++cut_short;
      });
    });
  };
  for (const auto& t : attempt({}).trace)
    if (t.operation % 3 == 0) CHECK(!attempt({{.who = t.who, .operation = t.operation}}).hung);
  CHECK(changed == 0);
  CHECK(cut_short > 50);
}

TEST_CASE(
    "rule 13: progress has a deadline of its own, and a long lambda is no reason to be killed") {
  // Real time: nobody renews a lease but the link. The lambda takes three leases; all is well.
  CoordinatorOptions options{.ranks = 2, .lease = 60ms, .timeout = 5s};
  auto train = [](ThreadComm& comm, Time lambda) {
    Small model;
    Session session{model.state, Adam{}, comm, ReplicaRecovery{}};
    session.train(2, [&](Step s) {
      if (session.rank() == 1) std::this_thread::sleep_for(lambda);
      model.gradients(s, session.rank());
    });
  };
  Ran ran = run_threads(options, {}, [&](ThreadComm& comm) { train(comm, 200ms); });
  CHECK(ran.outcome.finished);
  CHECK(ran.outcome.deaths == 0);
  // It renews its lease for ever and never comes back: the run stops and says why.
  options.timeout = 150ms;
  ran = run_threads(options, {}, [&](ThreadComm& comm) { train(comm, 1500ms); });
  CHECK(!ran.outcome.finished);
  CHECK_MESSAGE(ran.outcome.reason.find("no step was committed within 300 ms after step 0") == 0,
                ran.outcome.reason);
}

TEST_CASE(
    "rule 14: deaths at one step without a commit in between stop the run and name the step") {
  // A batch that kills whoever works on it.
  for (int bad : {0, 1, 2, 4})
    for (bool throws : {true, false}) {
      std::atomic<int> calls{0};
      Ran ran = run_threads({.ranks = 3, .max_restarts = 50, .poison = 3}, simulated,
                            [&](ThreadComm& comm) {
                              Small model;
                              Session session{model.state, Adam{}, comm, ReplicaRecovery{}};
                              session.train(6, [&](Step s) {
                                model.gradients(s, session.rank());
                                if (s != Step{bad} || session.rank() != 1) return;
                                ++calls;
                                if (throws) throw std::domain_error{"bad record 17"};
                                throw comm::Killed{};
                              });
                            });
      CHECK(!ran.hung);
      CHECK(!ran.outcome.finished);
      CHECK(calls == 3);
      CHECK(ran.outcome.deaths == 3);
      CHECK(ran.outcome.step == Step{bad});
      CHECK(ran.outcome.reason.find("a poison step: 3 failures at step " + std::to_string(bad)) ==
            0);
      if (throws) CHECK(ran.outcome.reason.find("bad record 17") != std::string::npos);
      for (Incarnation other : {1u, 3u}) CHECK(ran.failures[other].find("a poison step") == 0);
    }
  // Where nobody is left each time, the run begins anew, and comes to that step again.
  for (int ranks : {1, 3}) {
    std::atomic<int> calls{0};
    Ran ran = run_threads(
        {.ranks = ranks, .max_restarts = 50, .poison = 3}, simulated, [&](ThreadComm& comm) {
          Small model;
          Session session{model.state, Adam{}, comm, ReplicaRecovery{}};
          session.train(6, [&](Step s) {
            model.gradients(s, session.rank());
            if (s != Step{4}) return;
            ++calls;
            throw std::domain_error{"bad record " + std::to_string(session.rank())};
          });
        });
    CHECK(!ran.hung);
    CHECK(!ran.outcome.finished);
    CHECK(calls >= 3);
    CHECK(calls <= 3 * ranks);
    CHECK(ran.outcome.step == Step{4});
    CHECK(ran.outcome.reason.find("a poison step: ") == 0);
    CHECK(ran.outcome.reason.find("failures at step 4") != std::string::npos);
  }
  // Replacements that end before they say what they have count as well.
  std::atomic<int> born{0};
  Ran dying =
      run_threads({.ranks = 3, .max_restarts = 50, .poison = 3}, simulated, [&](ThreadComm& comm) {
        if (comm.membership().replacement) {
          ++born;
          throw comm::Killed{};
        }
        Small model;
        Session session{model.state, Adam{}, comm, ReplicaRecovery{}};
        session.train(6, [&](Step s) {
          model.gradients(s, session.rank());
          if (s == Step{2} && session.rank() == 1) throw comm::Killed{};
        });
      });
  CHECK(!dying.outcome.finished);
  CHECK(born == 2);
  CHECK(dying.outcome.reason.find("a poison step: 3 failures at step 2") == 0);
  // Killed without a word, it leaves the step to the survivors to report.
  for (int bad : {1, 2, 3}) {
    Case silent;
    silent.options.poison = 2;
    std::vector<Fault> twice = at_point(silent, bad, "lambda");
    std::erase_if(twice, [](const Fault& f) { return f.who != 2; });
    REQUIRE(twice.size() == 1);
    const Result one = run(silent.with(twice));
    auto again = std::ranges::find_if(
        one.trace, [](const auto& t) { return t.who == 4 && t.point == "lambda"; });
    REQUIRE(again != one.trace.end());
    twice.push_back({.who = 4, .operation = again->operation});
    const Result stopped = run(silent.with(twice));
    CHECK(!stopped.outcome.finished);
    CHECK(stopped.outcome.step == Step{bad});
    CHECK(stopped.outcome.reason.find("a poison step: 2 failures at step " + std::to_string(bad)) ==
          0);
  }
  // As many deaths with a commit after each are none of its business.
  Case c;
  c.steps = 8;
  c.options.poison = 2;
  std::vector<Fault> kills;
  for (int step = 1; step < 8; ++step) {
    Result so_far = run(c.with(kills));
    std::map<Incarnation, int> rank, begun;
    for (const Note& n : so_far.notes) {
      rank[n.who] = n.rank;
      if (n.what == Note::What::lambda && n.rank == 1 && n.step == step) begun[n.who] = 1;
    }
    // Whoever is rank 1 in that step dies in its lambda.
    std::map<Incarnation, std::int64_t> at;
    for (const Note& n : so_far.notes)
      if (n.what == Note::What::lambda && n.rank == 1 && !at.contains(n.who)) at[n.who] = n.step;
    REQUIRE(!begun.empty());
    Incarnation who = begun.rbegin()->first;
    std::int64_t passed = at[who];
    for (const auto& t : so_far.trace)
      if (t.who == who && t.point == "lambda" && passed++ == step) {
        kills.push_back({.who = who, .operation = t.operation});
        break;
      }
  }
  REQUIRE(kills.size() == 7);
  Result r;
  MEND_CHECK_RUN(c.with(kills), r);
  CHECK(r.outcome.deaths == 7);
}

TEST_CASE(
    "rule 15: version 0 is compared at the start; a replacement's initial values never count") {
  Ran differs = run_threads({.ranks = 3}, simulated, [&](ThreadComm& comm) {
    Small model;
    if (comm.rank() == 2) model.b[77] += 1e-6f;
    Session session{model.state, Adam{}, comm, ReplicaRecovery{}};
    session.train(3, [&](Step s) { model.gradients(s, session.rank()); });
  });
  CHECK(!differs.outcome.finished);
  CHECK(differs.outcome.reason.find("initial values differ: rank 2 and rank 0") == 0);
  CHECK(differs.outcome.reason.find("first in tensor 'b'") != std::string::npos);

  ByRank<Hash128> final;
  auto attempt = [&](std::vector<Fault> faults, float replacements) {
    WorldOptions world = simulated;
    world.faults = std::move(faults);
    Ran ran = run_threads({.ranks = 3}, world, [&](ThreadComm& comm) {
      Small model{comm.membership().replacement ? replacements : 0.5f};
      Session session{model.state, Adam{}, comm, ReplicaRecovery{}};
      session.train(3, [&](Step s) { model.gradients(s, session.rank()); });
      final.set(session.rank(), hash_of(model.state));
    });
    return std::pair{ran, final.take()};
  };
  auto [whole, bits] = attempt({}, 0.5f);
  REQUIRE(bits.size() == 3);
  std::size_t replaced = 0;
  for (const auto& t : whole.trace)
    if (t.operation % 3 == 0) {
      auto [ran, same] = attempt({{.who = t.who, .operation = t.operation}}, -9.0f);
      if (!ran.outcome.finished) continue;  // killed after the last step, or before it existed
      replaced += ran.outcome.deaths > 0 && ran.outcome.generations > 1;
      CHECK(same == bits);
    }
  CHECK(replaced > 30);
  // When all are gone, replacements may begin anew, from the values that were known, not from
  // others.
  std::map<Incarnation, Fault> late;
  for (const auto& t : whole.trace)
    if (t.point == "reduce") late[t.who] = {.who = t.who, .operation = t.operation};
  REQUIRE(late.size() == 3);
  CHECK(attempt({late[1], late[2], late[3]}, 0.5f).second == bits);
  CHECK(attempt({late[1], late[2], late[3]}, -9.0f)
            .first.outcome.reason.find("their replacements start from other initial values") !=
        std::string::npos);
}

TEST_CASE("rule 16: a hash mismatch never continues and never votes") {
  // One bit of one rank flips after an update. The slices of Done come by.
  auto attempt = [&](std::vector<Fault> faults, int steps, std::size_t index) {
    WorldOptions world = simulated;
    world.faults = std::move(faults);
    return run_threads({.ranks = 3}, world, [&, steps, index](ThreadComm& comm) {
      Small model;
      Session session{model.state, Sgd{.lr = 0.0f}, comm, ReplicaRecovery{}};
      session.train(steps, [&](Step s) {
        model.gradients(s, session.rank());
        // Of all ranks' lambdas this is the one with a stray pointer.
        if (s == Step{1} && session.rank() == 1) {
          auto bits = std::bit_cast<std::uint32_t>(model.b[index]);
          model.b[index] = std::bit_cast<float>(bits ^ 1);
        }
      });
    });
  };
  const std::size_t late = 4000;
  Ran silent = attempt({}, 40, late);
  CHECK(!silent.outcome.finished);
  CHECK(silent.outcome.reason.find("replicas diverged silently") != std::string::npos);
  CHECK(silent.outcome.step > Step{1});    // not at once: its slice was not due
  CHECK(silent.outcome.step <= Step{20});  // but the whole state comes by every few steps
  for (Incarnation who : {1u, 2u, 3u})
    CHECK(silent.failures[who].find("replicas diverged silently") != std::string::npos);
  // A recovery compares everything, before anybody goes on.
  for (const auto& t : silent.trace)
    if (t.who == 1 && t.point == "reduce") {
      Ran ran = attempt({{.who = 1, .operation = t.operation}}, 40, late);
      CHECK(!ran.outcome.finished);
      CHECK(ran.outcome.reason.find("diverged") != std::string::npos);
      if (ran.outcome.reason.find("hold different bits") != std::string::npos)
        CHECK(ran.outcome.reason.find("first in tensor 'b'") != std::string::npos);
    }
  // Before Go all are compared again: a replacement that is not what it was fed.
  std::size_t gos = 0;
  comm::Outcome fed = run_bent({{.who = 1, .operation = 150}}, [&](BendingHub& hub) {
    hub.said = [](HubEvent& e) {
      if (e.who > 3 && e.frame.header.kind == static_cast<std::uint16_t>(Kind::ready))
        e.frame.payload.data()[0] ^= std::byte{1};
    };
    hub.told = [&](Incarnation, const Header& h, ByteView payload) {
      gos += h.kind == static_cast<std::uint16_t>(Kind::go);
      return Bytes{payload.begin(), payload.end()};
    };
  });
  CHECK(!fed.finished);
  CHECK(fed.deaths == 1);
  CHECK(fed.reason.find("hold different bits") != std::string::npos);
  CHECK(gos == 3);
  // Done also says how far each rank is to train.
  Ran longer = run_threads({.ranks = 3}, simulated, [&](ThreadComm& comm) {
    Small model;
    Session session{model.state, Adam{}, comm, ReplicaRecovery{}};
    session.train(comm.rank() == 1 ? 5 : 4, [&](Step s) { model.gradients(s, session.rank()); });
  });
  CHECK(!longer.outcome.finished);
  CHECK(longer.outcome.step == Step{0});
  for (Incarnation who : {1u, 2u, 3u})
    CHECK(longer.failures[who].find("rank 1 is to train until step 5") != std::string::npos);
}

TEST_CASE("rule 17: an all-reduce says which buckets are fully reduced, and of no others") {
  constexpr int ranks = 4;
  constexpr std::size_t buckets = 5, size = 3000;
  std::atomic<int> whole{0}, partial{0}, wrong{0};
  auto attempt = [&](std::vector<Fault> faults) {
    WorldOptions world = simulated;
    world.faults = std::move(faults);
    return run_threads({.ranks = ranks, .max_restarts = 0}, world, [&](ThreadComm& comm) {
      const int rank = comm.rank();
      std::vector<std::vector<float>> data(buckets, std::vector<float>(size));
      std::vector<comm::Buffer> buffers;
      for (std::size_t b = 0; b < buckets; ++b) {
        for (std::size_t i = 0; i < size; ++i)
          data[b][i] = static_cast<float>((rank + 1) * static_cast<int>(b * 7 + i % 11 + 1));
        buffers.push_back(comm::Buffer::of(std::span{data[b]}, comm::Reduction::sum));
        buffers.back().tag = static_cast<std::uint32_t>(b);
      }
      std::size_t reported = 0;
      auto done = [&](std::size_t b) {
        ++reported;
        for (std::size_t i = 0; i < size; ++i)
          wrong += data[b][i] != static_cast<float>(10 * static_cast<int>(b * 7 + i % 11 + 1));
      };
      try {
        comm.all_reduce(buffers, done);
        ++whole;
        wrong += reported != buckets;
      } catch (const comm::Interrupted&) {
        partial += reported > 0 && reported < buckets;
        throw;
      } catch (const comm::PeerLost&) {
        partial += reported > 0 && reported < buckets;
        throw;
      }
    });
  };
  for (const auto& t : attempt({}).trace)
    if (t.operation % 2 == 0) CHECK(!attempt({{.who = t.who, .operation = t.operation}}).hung);
  CHECK(wrong == 0);
  CHECK(whole > 100);
  CHECK(partial > 20);
  // It returns once all is passed on: whoever calls it may write the buffers at once.
  std::atomic<int> left{0}, differ{0};
  Ran ran = run_threads({.ranks = ranks}, simulated, [&](ThreadComm& comm) {
    NarrowComm mine = narrow(comm);
    std::vector<float> data(4 * size, static_cast<float>(comm.rank()));
    mine.all_reduce(std::span{data}, comm::Reduction::sum);
    for (int r = 0; r < ranks; ++r) left += mine.link().backlog(r) != 0;
    for (float x : data) differ += x != 6;
    std::ranges::fill(data, -1.0f);
    mine.barrier();
  });
  CHECK(left == 0);
  CHECK(differ == 0);
}

TEST_CASE("rule 18: the purity check finds what a repeated step would get wrong") {
  for (const char* secret : {"none", "gradient", "buffer"}) {
    Ran ran = run_threads({.ranks = 2, .poison = 2}, simulated, [&](ThreadComm& comm) {
      Small model;
      int calls = 0;
      Session session{model.state, Adam{}, comm, ReplicaRecovery{}, PurityCheck{.steps = 2}};
      session.train(4, [&](Step s) {
        model.gradients(s, session.rank());
        ++calls;  // kept outside of what is registered
        if (secret == std::string_view{"gradient"}) model.gc[3] += static_cast<float>(calls);
        if (secret == std::string_view{"buffer"}) model.seen[0] += calls;
      });
      CHECK(calls == 6);  // two of four steps were called twice
    });
    bool found = ran.outcome.reason.find("the step function is impure") != std::string::npos;
    CHECK(found == (secret != std::string_view{"none"}));
    CHECK(ran.outcome.finished != found);
    if (secret == std::string_view{"gradient"})
      CHECK(ran.outcome.reason.find("'c' differs between two calls") != std::string::npos);
    if (secret == std::string_view{"buffer"})
      CHECK(ran.outcome.reason.find("'seen' differs between two calls") != std::string::npos);
  }
  // It changes nothing for a pure one, however stateful.
  std::map<std::string, int> bits;
  for (int steps : {0, 3}) {
    ByRank<Hash128> final;
    Ran ran = run_threads({.ranks = 2}, simulated, [&](ThreadComm& comm) {
      Trainer trainer{comm.rank(), {}};
      Session session{trainer.state, Adam{}, comm, ReplicaRecovery{}, PurityCheck{.steps = steps}};
      session.train(4, [&](Step s) {
        return trainer.step(s, [&](std::string_view name) { session.ready(name); });
      });
      final.set(session.rank(), hash_of(trainer.state));
    });
    CHECK(ran.outcome.finished);
    for (const auto& [rank, hash] : final.take()) ++bits[std::to_string(rank) + hash.to_hex()];
  }
  CHECK(bits.size() == 2);
}

// ---- the ways in which trainers run and runs end ------------------------------------------------

TEST_CASE(
    "two train() calls, the open form, a wish to stop, an own update: a kill at any operation") {
  std::vector<Case> cases(5);
  cases[0].loop = Loop::twice;
  cases[1].loop = Loop::open;
  cases[2].loop = Loop::asked;
  cases[3].flavour = Flavour::own_update;
  cases[4].loop = Loop::twice;
  cases[4].flavour = Flavour::snapshot;
  cases[4].ready = true;
  for (const Case& c : cases) {
    std::size_t stopped = 0, runs = 0;
    const Result whole = run(c);
    REQUIRE(judge(c, whole).complaint.empty());
    if (c.loop == Loop::asked) CHECK(whole.outcome.step == Step{3});
    for (const auto& t : whole.trace) {
      if ((t.operation + c.world.seed) % (3 * test_scale()) != 0) continue;
      Verdict v = check_run(c.with({{.who = t.who, .operation = t.operation}}));
      CHECK_MESSAGE(v.complaint.empty(), v.complaint);
      stopped += v.stopped;
      ++runs;
    }
    CHECK(stopped * 20 < runs);
  }
}

TEST_CASE("no replacement is left: the run stops, or shrinks if it may, and size() says so") {
  for (bool shrink : {false, true}) {
    ByRank<int> sizes;
    WorldOptions world = simulated;
    world.faults = {
        {.who = 1, .operation = 150}, {.who = 4, .operation = 200}, {.who = 3, .operation = 260}};
    Ran ran = run_threads({.ranks = 4, .max_restarts = 1, .shrink = shrink, .poison = 9}, world,
                          [&](ThreadComm& comm) {
                            Small model;
                            Session session{model.state, Adam{}, comm, ReplicaRecovery{}};
                            session.train(12, [&](Step s) { model.gradients(s, session.rank()); });
                            sizes.set(session.rank(), session.size());
                          });
    CHECK(!ran.hung);
    CHECK(ran.outcome.restarts == 1);
    CHECK(ran.outcome.finished == shrink);
    if (shrink) {
      CHECK(sizes.take() == std::map<int, int>{{0, 2}, {1, 2}});
      CHECK(ran.outcome.deaths == 3);
    } else {
      CHECK(ran.outcome.reason.find("no replacement is left") == 0);
      CHECK(std::ranges::count_if(ran.failures, [](const auto& f) {
              return f.second.find("no replacement is left") == 0;
            }) == 3);
    }
  }
}

TEST_CASE(
    "ranks that registered different things stop before the first step, the difference named") {
  using Change = std::function<void(TrainState&, std::vector<float>&, std::vector<float>&)>;
  const std::pair<Change, std::string> changes[] = {
      {[](TrainState& s, auto& x, auto& g) { s.add("other", x, g); },
       "rank 0 has tensor 'extra' F32 [6]"},
      {[](TrainState& s, auto& x, auto& g) {
         s.add("extra", x, g, {.shape = {2, 3}});
       },
       "rank 1 has tensor 'extra' F32 [2, 3]"},
      {[](TrainState& s, auto& x, auto&) { s.add_buffer("extra", x); }, "buffer 'extra'"},
      {[](TrainState&, auto&, auto&) {}, "rank 1 has slot 'a.m'"},
  };
  for (const auto& [change, named] : changes) {
    std::atomic<int> calls{0};
    Ran ran = run_threads({.ranks = 3}, simulated, [&, change = change](ThreadComm& comm) {
      Small model;
      std::vector<float> x(6), g(6);
      if (comm.rank() == 1)
        change(model.state, x, g);
      else
        model.state.add("extra", x, g);
      Session session{model.state, Adam{}, comm, ReplicaRecovery{}};
      session.train(3, [&](Step s) {
        ++calls;
        model.gradients(s, session.rank());
      });
    });
    CHECK(calls == 0);
    CHECK(!ran.outcome.finished);
    CHECK(ran.outcome.reason.find("ranks registered different state") == 0);
    CHECK_MESSAGE(ran.outcome.reason.find(named) != std::string::npos, ran.outcome.reason);
    CHECK(ran.failures.size() == 3);
  }
}

namespace {

//! A trainer's own reduction: blocks until all ranks of a generation have brought their gradients
//! for a step, then everybody takes the mean in rank order. abort() makes a blocked rank throw.
class Meeting {
 public:
  void reduce(std::uint32_t generation, std::int64_t step, int rank, int size,
              std::vector<float>& gradient, const std::atomic<bool>& aborted) {
    std::unique_lock lock{mutex_};
    Table& table = tables_[{generation, step}];
    table[rank] = gradient;
    changed_.notify_all();
    changed_.wait(lock, [&] { return aborted || static_cast<int>(table.size()) == size; });
    if (aborted) throw std::runtime_error{"the reduction was aborted"};
    std::fill(gradient.begin(), gradient.end(), 0.0f);
    for (const auto& [r, g] : table)
      for (std::size_t i = 0; i < g.size(); ++i) gradient[i] += g[i];
    for (float& x : gradient) x /= static_cast<float>(size);
  }
  void abort(std::atomic<bool>& flag) {
    std::lock_guard lock{mutex_};
    flag = true;
    changed_.notify_all();
  }

 private:
  using Table = std::map<int, std::vector<float>>;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<std::uint32_t, std::int64_t>, Table> tables_;
};

}  // namespace

TEST_CASE(
    "OwnReduction: a lost member wakes those who are blocked in it, and the bits are the same") {
  auto attempt = [](std::vector<Fault> faults) {
    Meeting meeting;
    ByRank<Hash128> final;
    std::atomic<int> aborts{0};
    WorldOptions world;
    world.faults = std::move(faults);
    Ran ran = run_threads(
        {.ranks = 3, .poison = 10, .lease = 300ms, .timeout = 10s, .grace = 20ms}, world,
        [&](ThreadComm& comm) {
          std::vector<float> w(5000, 1.0f), g(5000);
          std::uint64_t rng = 7 + static_cast<std::uint64_t>(comm.rank());
          TrainState state;
          state.add("w", w, g).add_scalar("rng", rng, PerRank{.copies = 2});
          std::atomic<bool> aborted{false};
          std::atomic<int> size{0};
          Session session{state, Adam{.lr = 0.1f}, comm, ReplicaRecovery{},
                          OwnReduction{.abort =
                                           [&] {
                                             ++aborts;
                                             meeting.abort(aborted);
                                           },
                                       .rebuild =
                                           [&](int, int n) {
                                             aborted = false;
                                             size = n;
                                           }}};
          session.train(6, [&](Step s) {
            rng = mend::detail::mix(rng + 1);
            for (std::size_t i = 0; i < g.size(); ++i)
              g[i] =
                  w[i] * 0.3f + static_cast<float>(rng >> 50) * 1e-4f + static_cast<float>(i % 3);
            meeting.reduce(comm.generation().value(), s.value(), session.rank(), size, g, aborted);
          });
          final.set(session.rank(), hash_of(state));
        });
    return std::tuple{ran, final.take(), aborts.load()};
  };
  auto [whole, bits, none] = attempt({});
  REQUIRE(whole.outcome.finished);
  REQUIRE(bits.size() == 3);
  CHECK(none == 0);
  int aborted = 0, died = 0;
  Random random{5};
  for (int i = 0; i < 40; ++i) {
    auto [ran, same, aborts] = attempt({{.who = 1 + random(4), .operation = 10 + random(120)}});
    aborted += aborts;
    died += ran.outcome.deaths;
    if (!ran.outcome.finished) {
      CHECK(ran.outcome.reason.find("after the last step") != std::string::npos);
      continue;
    }
    CHECK(same == bits);
  }
  CHECK(died > 10);
  MESSAGE(aborted << " blocked reductions were woken");  // how many depends on the machine's load
}
