#include <mend/session/session.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/system.hpp"
#include "session/support/cluster.hpp"

using namespace mend_test;

// Every rank is killed at every place. The simulated cluster numbers what a worker does (crash
// points of the session, sends, waits), and a seed fixes the order of everything; so a run without
// faults lists all moments there are, and each of them gets a run of its own. After each: the bits
// of the uninterrupted run, or the one stop that was allowed, as judge() says.
//
//   MEND_TEST_SCALE=n   every n-th case, for builds that are n times slower
//   MEND_TEST_FULL=1    all cases where otherwise a sample is taken (minutes)

namespace {

//! What a session calls its crash points. Each of them must be struck somewhere in this matrix.
constexpr std::array<std::string_view, 25> points{
    "lambda",  "reduce",    "during_reduce", "bucket", "closing",
    "copies",  "reduced",   "done",          "update", "updated",
    "commit",  "committed", "finished",      "view",   "report",
    "plan",    "undo",      "roll_forward",  "fetch",  "feed",
    "fetched", "restored",  "ready",         "served", "go"};

bool is_point(std::string_view name) { return std::ranges::find(points, name) != points.end(); }

//! Everything that a cluster takes is given back.
struct NoLeaks {
  NoLeaks() = default;
  NoLeaks(const NoLeaks&) = delete;
  NoLeaks& operator=(const NoLeaks&) = delete;
  ~NoLeaks() {
    CHECK(open_descriptors() == descriptors);
    CHECK(eventually([this] { return running_threads() == threads; }));  // the kernel's list lags
  }
  std::size_t descriptors = open_descriptors(), threads = running_threads();
};

//! Runs cases, counts them, and ends a test that has failed often enough to be understood.
struct Matrix {
  std::size_t runs = 0, stops = 0, complaints = 0;
  std::map<std::string, std::size_t> struck{};  //!< by point

  Verdict add(const Case& c, Result* result = nullptr) {
    Result r;
    Verdict v = check_run(c, &r);
    CHECK_MESSAGE(v.complaint.empty(), v.complaint);
    if (!v.complaint.empty() && ++complaints == 5) FAIL("and so on");
    ++runs;
    stops += v.stopped;
    for (const Fault& f : c.world.faults)
      if (std::string at = r.struck(f); !at.empty()) ++struck[at];
    if (result != nullptr) *result = std::move(r);
    return v;
  }
  void say(std::string_view what) const {
    MESSAGE(std::string{what} << ": " << runs << " runs, " << stops << " stopped as they may");
  }
};

//! Lets every n-th case pass, times what the build needs.
class Sample {
 public:
  explicit Sample(std::uint64_t n)
      : every_{environment("MEND_TEST_FULL", 0) != 0 ? 1 : n * test_scale()} {}
  bool operator()() { return count_++ % every_ == 0; }

 private:
  std::uint64_t every_, count_ = 0;
};

//! The ways in which sessions differ that matter to recovery.
std::vector<Case> flavours() {
  std::vector<Case> all(7);
  all[1].flavour = Flavour::snapshot;
  all[2].ready = true;
  all[3].flavour = Flavour::snapshot;
  all[3].ready = true;
  all[4].flavour = Flavour::clip;
  all[5].flavour = Flavour::exact;
  all[5].ready = true;
  all[6].flavour = Flavour::ping_pong;
  all[6].ready = true;
  return all;
}

//! Where a worker is in a run: the step whose lambda it called last (-1: none yet), and the point.
struct Place {
  std::string point;
  int step;
  Fault fault;
};

//! The first time that each worker passes each named point of each step, in a run without faults.
std::vector<Place> places(const Case& c) {
  std::vector<Place> all;
  std::map<Incarnation, int> step;
  std::set<std::tuple<Incarnation, std::string, int>> seen;
  for (const auto& t : run(c).trace) {
    if (t.point == "lambda") ++step[t.who];
    int s = step[t.who] - 1;
    if (is_point(t.point) && seen.insert({t.who, t.point, s}).second)
      all.push_back({t.point, s, {.who = t.who, .operation = t.operation}});
  }
  return all;
}

//! By point and step, one place for each rank.
std::map<std::pair<int, std::string>, std::vector<Fault>> by_point(const Case& c) {
  std::map<std::pair<int, std::string>, std::vector<Fault>> all;
  for (const Place& p : places(c)) all[{p.step, p.point}].push_back(p.fault);
  return all;
}

//! Kills of `ranks` at one point of one step. Where a worker stands when another one died is
//! another matter than without that death, so each is looked up in a run with those before it; one
//! that cannot get there any more is struck where it would have been.
std::vector<Fault> together(const Case& c, const std::pair<int, std::string>& point,
                            const std::vector<Fault>& alone) {
  std::vector<Fault> faults;
  for (Fault f : alone) {
    if (!faults.empty())
      for (const Place& p : places(c.with(faults)))
        if (p.fault.who == f.who && p.step == point.first && p.point == point.second) f = p.fault;
    faults.push_back(f);
  }
  return faults;
}

//! Kills `first`, then, in a run of its own each, whoever is alive at every operation of the
//! recovery: the survivors and the replacement, until they call the lambda again.
void kill_during_recovery(Matrix& matrix, Sample& sample, const Case& c, const Fault& first) {
  const std::vector<mend::comm::World::Trace> trace = run(c.with({first})).trace;
  auto at = std::ranges::find_if(
      trace, [&](const auto& t) { return t.who == first.who && t.operation == first.operation; });
  std::set<Incarnation> told_go, recovered;
  for (; at != trace.end(); ++at) {
    if (at->who == first.who || recovered.contains(at->who)) continue;
    if (at->point == "go") told_go.insert(at->who);
    if (at->point == "lambda" && told_go.contains(at->who)) recovered.insert(at->who);
    if (sample()) matrix.add(c.with({first, {.who = at->who, .operation = at->operation}}));
  }
}

}  // namespace

TEST_CASE("a rank that is killed at any operation does not matter") {
  NoLeaks none;
  Matrix matrix;
  Sample sample{1};
  for (const Case& c : flavours()) {
    const Result whole = run(c);
    REQUIRE(judge(c, whole).complaint.empty());  // the same bits, whatever the policies
    std::map<Incarnation, std::size_t> operations;
    for (const auto& t : whole.trace) ++operations[t.who];
    REQUIRE(operations.size() == 3);
    for (const auto& t : whole.trace)
      if (sample()) {
        Result r;
        Verdict v = matrix.add(c.with({{.who = t.who, .operation = t.operation}}), &r);
        // One death is always survived, but for one after all is done.
        if (v.stopped) CHECK(r.outcome.reason.find("after the last step") != std::string::npos);
        CHECK(r.outcome.deaths <= 1);  // none where it had said good-bye already
      }
  }
  matrix.say("one kill, anywhere");
  CHECK(matrix.stops * 50 < matrix.runs);
}

TEST_CASE("two ranks killed at the same point, with one copy of per-rank state and with two") {
  NoLeaks none;
  Matrix safe, single;
  Sample sample{1};
  std::size_t both = 0;
  for (Case c : flavours())
    for (int copies : {2, 1}) {
      if (copies == 1 && c.flavour != Flavour::roll_forward) continue;
      c.copies = copies;
      for (const auto& [key, faults] : by_point(c)) {
        REQUIRE(faults.size() == 3);
        for (std::size_t a = 0; a < 3; ++a) {
          if (!sample()) continue;
          const Case two = c.with(together(c, key, {faults[a], faults[(a + 1) % 3]}));
          Result r;
          Verdict v = (copies == 2 ? safe : single).add(two, &r);
          both += r.struck(two.world.faults[0]) == key.second &&
                  r.struck(two.world.faults[1]) == key.second;
          // With two copies, two deaths never stop a run of three.
          if (v.stopped && copies == 2)
            CHECK(r.outcome.reason.find("after the last step") != std::string::npos);
        }
      }
    }
  safe.say("two kills at one point, two copies");
  single.say("two kills at one point, one copy");
  MESSAGE(both << " exactly there");  // one may wait for the other to get there at all
  CHECK(both * 2 > safe.runs + single.runs);
  CHECK(safe.stops * 50 < safe.runs);
  // Of any two neighbours among three ranks one holds the other's only copy: from step 1 on that is
  // lost, and only then.
  CHECK(single.stops > single.runs / 2);
}

TEST_CASE("all ranks killed at the same point begin again, and end with the same bits") {
  NoLeaks none;
  Matrix matrix;
  Sample sample{1};
  std::vector<Case> cases = flavours();
  for (Loop loop : {Loop::twice, Loop::open, Loop::open_twice}) {
    cases.push_back({});
    cases.back().loop = loop;
  }
  for (const Case& c : cases)
    for (const auto& [key, faults] : by_point(c)) {
      if (!sample()) continue;
      Result r;
      if (matrix.add(c.with(together(c, key, faults)), &r).stopped) continue;
      CHECK(r.outcome.restarts >= 3);  // more where half-fed replacements had to end too
    }
  matrix.say("all killed at one point");
}

TEST_CASE("a second kill at every operation of a recovery, the replacement's too") {
  NoLeaks none;
  Matrix matrix;
  for (bool all : {true, false})
    for (const Case& c : flavours()) {
      // First kills: at each named point, of step 1 with all second ones, of the others with some.
      const bool densest = c.flavour == Flavour::roll_forward && !c.ready;
      if (all && !densest) continue;
      Sample sample{all ? 1u : densest ? 25u : 40u};
      std::size_t turn = 0;
      for (const auto& [key, faults] : by_point(c))
        if (all == (key.first == 1 && densest))
          kill_during_recovery(matrix, sample, c, faults[turn++ % 3]);
    }
  matrix.say("two kills, the second in the recovery from the first");
  std::string table;
  for (const auto& [point, times] : matrix.struck)
    if (is_point(point)) table += " " + point + " " + std::to_string(times);
  MESSAGE("struck:" << table);
  if (test_scale() == 1)
    for (std::string_view point : points)
      CHECK_MESSAGE(matrix.struck.contains(std::string{point}), point << " was never struck");
}

TEST_CASE("a link that breaks at any operation, and a worker that stops at any") {
  NoLeaks none;
  Matrix matrix;
  Sample cuts{9}, stops{9};
  for (const Case& c : flavours())
    for (const auto& t : run(c).trace) {
      if (cuts())
        for (int peer = 0; peer < 3; ++peer)
          if (static_cast<Incarnation>(peer) + 1 != t.who)
            matrix.add(c.with({{.kind = Fault::Kind::cut,
                                .who = t.who,
                                .operation = t.operation,
                                .peer = peer}}));
      if (!stops()) continue;
      Case stopped = c.with({{.kind = Fault::Kind::stop,
                              .who = t.who,
                              .operation = t.operation,
                              .span = 20s}});  // the lease is 5 s
      matrix.add(stopped);
      stopped.world.zombies = true;  // and nobody can reach it: it wakes up and goes on
      matrix.add(stopped);
    }
  matrix.say("one broken link or stopped worker");
  CHECK(matrix.stops * 50 < matrix.runs);
}

TEST_CASE("a reduction that fails half-way commits its step on all ranks or on none") {
  NoLeaks none;
  Matrix matrix;
  Sample sample{2};
  std::size_t repeated = 0, finished_by_all = 0, fetched = 0;
  for (const Case& c : flavours()) {
    std::map<Incarnation, int> step;
    std::map<Incarnation, bool> within;
    for (const auto& t : run(c).trace) {
      if (t.point == "lambda") ++step[t.who];
      // From the first byte that travels to the last vote: with ready() that is in the lambda.
      if (t.point == "lambda" || t.point == "commit")
        within[t.who] = t.point == "lambda" && step[t.who] == 2;
      if (!within[t.who] || !sample()) continue;
      for (Fault::Kind kind : {Fault::Kind::kill, Fault::Kind::cut}) {
        Result r;
        matrix.add(c.with({{.kind = kind,
                            .who = t.who,
                            .operation = t.operation,
                            .peer = static_cast<int>(t.who % 3)}}),
                   &r);
        // judge() found no step that one living rank committed and another one repeated; here both
        // ends must come up, or the injection is none.
        std::map<Incarnation, int> calls;
        for (const Note& n : r.notes)
          if (n.what == Note::What::lambda && n.step == 1) ++calls[n.who];
        bool again = std::ranges::any_of(calls, [](const auto& x) { return x.second > 1; });
        (again ? repeated : finished_by_all) += 1;
        fetched += std::ranges::any_of(r.trace, [](const auto& x) { return x.point == "fetch"; });
      }
    }
  }
  matrix.say("killed or cut in a reduction or in its vote");
  MESSAGE(repeated << " repeated by all, " << finished_by_all << " finished by all, " << fetched
                   << " with missing buckets fetched");
  CHECK(repeated > 0);
  CHECK(finished_by_all > 0);
  if (test_scale() == 1) CHECK(fetched > 0);
}

TEST_CASE("larger clusters, random kills") {
  NoLeaks none;
  Matrix matrix;
  Sample sample{1};
  Random random{2024};
  for (int i = 0; i < 250; ++i) {
    Case c;
    c.ranks = 4 + static_cast<int>(random(3));
    c.extra = static_cast<int>(random(3));  // up to six buckets
    c.steps = 5 + static_cast<int>(random(4));
    c.copies = 1 + static_cast<int>(random(3));
    c.flavour = static_cast<Flavour>(random(5));
    c.ready = random(2) == 0;
    c.world.seed = 1 + random(1000);
    std::vector<Fault> faults;
    for (std::uint64_t n = 1 + random(4); n > 0; --n)
      faults.push_back({.who = 1 + random(static_cast<std::uint64_t>(c.ranks) + 4),
                        .operation = random(faults.empty() ? 500 : 800)});
    if (sample()) matrix.add(c.with(faults));
  }
  matrix.say("random kills in larger clusters");
  CHECK(matrix.stops * 4 < matrix.runs);
}

TEST_CASE("real threads in real time: kills, broken links and stops") {
  NoLeaks none;
  Matrix matrix;
  Sample sample{1};
  Random random{7};
  for (int i = 0; i < 60; ++i) {
    Case c = flavours()[static_cast<std::size_t>(i) % 5];
    c.world.simulated = false;
    c.options.lease = 300ms;
    c.options.grace = 50ms;
    c.options.timeout = 20s;
    c.ranks = 2 + static_cast<int>(random(3));
    c.copies = 2;
    std::vector<Fault> faults;
    for (std::uint64_t n = 1 + random(2); n > 0; --n) {
      std::uint64_t kind = random(8);
      faults.push_back({.kind = kind < 6   ? Fault::Kind::kill
                                : kind < 7 ? Fault::Kind::cut
                                           : Fault::Kind::stop,
                        .who = 1 + random(static_cast<std::uint64_t>(c.ranks) + 1),
                        .operation = random(350),
                        .span = std::chrono::milliseconds{100 + random(600)},
                        .peer = static_cast<int>(random(static_cast<std::uint64_t>(c.ranks)))});
    }
    if (sample()) matrix.add(c.with(faults));
  }
  matrix.say("free running");
}
