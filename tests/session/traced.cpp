#include <mend/session/traced.hpp>

#include <mend/comm/threads.hpp>
#include <mend/optim/sgd.hpp>
#include <mend/session/session.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

namespace {

using namespace mend;
using namespace std::chrono_literals;
using comm::ThreadComm;
using trace::EventKind;

static_assert(Is<Traced, kind::trace>);
static_assert(!std::is_constructible_v<Traced, trace::Recorder>);  // a temporary
static_assert(std::is_constructible_v<Traced, trace::Recorder&>);

std::map<EventKind, int> counts(const trace::Recorder& recorder) {
  std::map<EventKind, int> n;
  for (const trace::Event& e : recorder.events()) ++n[e.kind];
  return n;
}

TEST_CASE("every step leaves its call, reduction, update and commit, in order, with their times") {
  std::vector<float> w(3), g(3);
  TrainState state;
  state.add("w", w, g);
  ThreadComm comm;
  trace::Recorder recorder;
  Session session{state, Sgd{}, comm, Traced{recorder}};
  session.train(2, [&](Step) { g.assign(3, 1); });
  std::vector<trace::Event> events = recorder.events();
  REQUIRE(events.size() == 8);
  const EventKind kinds[] = {EventKind::step, EventKind::reduce, EventKind::update,
                             EventKind::commit};
  for (std::size_t i = 0; i < 8; ++i) {
    CHECK(events[i].kind == kinds[i % 4]);
    CHECK(events[i].step == Step{i / 4});
    CHECK(events[i].rank == Rank{0});
    CHECK(events[i].duration >= Time{0});
    if (i > 0) CHECK(events[i].time >= events[i - 1].time);
  }
}

TEST_CASE("a recorder that is off costs nothing and keeps nothing") {
  std::vector<float> w(3), g(3);
  TrainState state;
  state.add("w", w, g);
  ThreadComm comm;
  trace::Recorder recorder{ByteCount{1 << 20}, false};
  Session session{state, Sgd{}, comm, Traced{recorder}};
  session.train(2, [&](Step) { g.assign(3, 1); });
  CHECK(recorder.events().empty());
}

TEST_CASE("a recovery is on record: how long it took, and how much the replacement received") {
  std::mutex mutex;
  std::map<Incarnation, std::unique_ptr<trace::Recorder>> recorders;
  comm::Threads cluster{{.ranks = 3}, {.simulated = true}};
  comm::Outcome outcome = cluster.run([&](ThreadComm& comm) {
    std::vector<float> w(5000), g(5000);
    TrainState state;
    state.add("w", w, g);
    trace::Recorder* recorder = nullptr;
    {
      std::lock_guard lock{mutex};
      auto& mine = recorders[comm.membership().incarnation];
      mine = std::make_unique<trace::Recorder>();
      recorder = mine.get();
    }
    Session session{state, Sgd{}, comm, ReplicaRecovery{}, Traced{*recorder}};
    session.train(4, [&](Step s) {
      if (s == Step{2} && comm.rank() == 1 && !comm.membership().replacement) throw comm::Killed{};
      g.assign(5000, 1);
    });
  });
  REQUIRE(outcome.finished);
  REQUIRE(recorders.size() == 4);
  std::map<EventKind, int> survivor = counts(*recorders[1]), fresh = counts(*recorders[4]);
  CHECK(survivor[EventKind::recovery] == 2);  // into the first generation, and into the second
  CHECK(survivor[EventKind::transfer] == 0);
  CHECK(survivor[EventKind::commit] == 4);
  CHECK(survivor[EventKind::step] == 5);  // one of them twice
  CHECK(fresh[EventKind::recovery] == 1);
  REQUIRE(fresh[EventKind::transfer] == 1);
  CHECK(fresh[EventKind::commit] == 2);
  for (const trace::Event& e : recorders[4]->events()) {
    if (e.kind == EventKind::transfer) CHECK(e.bytes.value() >= 20000);
    if (e.kind == EventKind::recovery) CHECK(e.duration > Time{0});
    CHECK(e.rank == Rank{1});
    if (e.kind == EventKind::commit) CHECK(e.generation == Generation{2});
  }
}

}  // namespace
