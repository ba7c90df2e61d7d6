#pragma once

#include <sched.h>

#include <mend/comm/threads.hpp>
#include <mend/optim/adam.hpp>
#include <mend/optim/clip_norm.hpp>
#include <mend/optim/own_update.hpp>
#include <mend/optim/undo/snapshot.hpp>
#include <mend/session/session.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "session/support/trainer.hpp"

//! A cluster of the stateful trainer in one process, what happened in it, and the judge of it.
//!
//! MEND_TEST_SCALE=n   every n-th case of each enumeration, for builds that are n times slower
namespace mend_test {

using namespace std::chrono_literals;
using mend::Incarnation;
using Fault = mend::comm::Fault;

//! A number from the environment.
inline std::uint64_t environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}
//! 1, or how many cases a slow build may pass over for each one that it runs.
inline std::uint64_t test_scale() {
  static const std::uint64_t n = std::max<std::uint64_t>(environment("MEND_TEST_SCALE", 1), 1);
  return n;
}

//! How a session is put together.
enum class Flavour : std::uint8_t {
  roll_forward,
  snapshot,
  exact,
  ping_pong,
  clip,
  own_update,
  approximate  //!< not the same bits: a case of its own
};
//! Updates begin as soon as a bucket is reduced, and change no bits against roll_forward.
constexpr bool overlapped(Flavour f) {
  return f == Flavour::snapshot || f == Flavour::exact || f == Flavour::ping_pong;
}
//! How the trainer runs its steps: one train(), two of them, the open form with next(), two such
//! loops, or a train() in which one rank asks to stop in step 2.
enum class Loop : std::uint8_t { train, twice, open, open_twice, asked };

//! One run: its shape, its policies, what goes wrong.
struct Case {
  int ranks = 3;
  int extra = 0;  //!< large tensors beside the three that are always there
  int steps = 4;
  int copies = 1;
  Flavour flavour = Flavour::roll_forward;
  Loop loop = Loop::train;
  bool ready = false;  //!< gradients are released one by one while the lambda runs
  mend::comm::WorldOptions world{.simulated = true, .chunk_bytes = 4096};
  //! Deaths never make a poison step of a case that is about something else.
  mend::comm::CoordinatorOptions options{.max_restarts = 32, .poison = 20};

  [[nodiscard]] Case with(std::vector<Fault> faults) const {
    Case c = *this;
    c.world.faults = std::move(faults);
    return c;
  }
  [[nodiscard]] std::string text() const {
    static constexpr std::string_view flavours[] = {
        "roll_forward", "snapshot", "exact", "ping_pong", "clip", "own_update", "approximate"};
    static constexpr std::string_view loops[] = {"", ", two train()s", ", next()",
                                                 ", two loops of next()", ", asked to stop"};
    std::string s = "seed " + std::to_string(world.seed) + ", " + std::to_string(ranks) +
                    " ranks, " + std::to_string(extra) + " extra tensors, " +
                    std::to_string(steps) + " steps, " + std::to_string(copies) + " copies, " +
                    std::string{flavours[static_cast<std::size_t>(flavour)]} +
                    std::string{loops[static_cast<std::size_t>(loop)]} +
                    (ready ? ", ready()" : "") + (world.simulated ? "" : ", free running") +
                    (world.zombies ? ", zombies" : "") + ", delay " +
                    std::to_string(world.delay.count()) + " ns, faults:";
    for (const Fault& f : world.faults) {
      static constexpr std::string_view kinds[] = {"kill", "stop", "cut"};
      s += " " + std::string{kinds[static_cast<std::size_t>(f.kind)]} + " " +
           std::to_string(f.who) + "@" + std::to_string(f.operation);
      if (f.kind == Fault::Kind::stop)
        s += " for " + std::to_string(std::chrono::milliseconds{f.span / 1ms}.count()) + " ms";
      if (f.kind == Fault::Kind::cut) s += " from rank " + std::to_string(f.peer);
    }
    return s;
  }
};

//! Something that happened, in the order in which it did.
struct Note {
  enum class What : std::uint8_t {
    born,
    lambda,
    committed,
    finished,
    killed,
    failed,
    death,  //!< the coordinator notices one
    go,     //!< the coordinator lets a generation train
    stop    //!< the coordinator ends the run
  };
  What what;
  Incarnation who;
  int rank;
  std::int64_t step = 0;
  mend::Hash128 hash{};         //!< lambda: of the whole state as the lambda finds it
  mend::Committed committed{};  //!< committed
  std::string text{};           //!< failed, stop: why
};

struct Result {
  mend::comm::Outcome outcome;
  bool hung = false;
  std::vector<mend::comm::World::Trace> trace;
  std::vector<Note> notes;
  //! By rank, of workers whose train() returned: the hash of every entry, and of all together.
  std::map<int, std::vector<std::pair<std::string, mend::Hash128>>> entries;
  std::map<int, mend::Hash128> final;

  //! The operation at which a fault struck, by its name; empty when the run never came there.
  [[nodiscard]] std::string struck(const Fault& f) const {
    for (const auto& t : trace)
      if (t.who == f.who && t.operation == f.operation) return t.point;
    return {};
  }
};

//! Keeps this thread, and those that it starts, on one core: where one thread runs at a time,
//! handing on the turn is much cheaper there.
class OneCore {
 public:
  explicit OneCore(bool wanted) {
    int core = ::sched_getcpu();
    wanted_ = wanted && core >= 0 && ::sched_getaffinity(0, sizeof before_, &before_) == 0;
    if (!wanted_) return;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(core), &one);
    ::sched_setaffinity(0, sizeof one, &one);
  }
  OneCore(const OneCore&) = delete;
  OneCore& operator=(const OneCore&) = delete;
  ~OneCore() {
    if (wanted_) ::sched_setaffinity(0, sizeof before_, &before_);
  }

 private:
  cpu_set_t before_;
  bool wanted_;
};

//! A cluster of threads of any kind, run to its end.
struct Ran {
  mend::comm::Outcome outcome;
  bool hung = false;
  std::vector<mend::comm::World::Trace> trace;
  std::vector<mend::trace::Event> events;
  std::map<Incarnation, std::string> failures;  //!< what left the worker's function
};
template <class Worker>
Ran run_threads(mend::comm::CoordinatorOptions options, const mend::comm::WorldOptions& world,
                Worker&& worker, std::function<void(const mend::trace::Event&)> on_event = {}) {
  OneCore core{world.simulated};
  Ran ran;
  mend::comm::Threads cluster{options, world};
  cluster.on_event = [&](const mend::trace::Event& e) {
    if (on_event) on_event(e);
    ran.events.push_back(e);
  };
  ran.outcome = cluster.run(std::ref(worker));
  ran.hung = cluster.world().hung();
  ran.trace = cluster.world().trace();
  for (const auto& [who, error] : cluster.world().failures()) try {
      std::rethrow_exception(error);
    } catch (const std::exception& e) {
      ran.failures[who] = e.what();
    }
  return ran;
}

//! Runs it to its end.
Result run(const Case& c);

//! What a run of this shape gives when nothing fails; run once.
struct Reference {
  std::map<int, mend::Hash128> final;
  std::map<int, std::vector<std::pair<std::string, mend::Hash128>>> entries;
  std::map<std::pair<int, std::int64_t>, mend::Hash128> lambda;  //!< by rank and step
  std::vector<mend::Committed> committed;                        //!< by step

  static const Reference& of(const Case& c) {
    // How a half-done update is made whole, and ready(), change no bits: one reference for them.
    const Flavour flavour = overlapped(c.flavour) ? Flavour::roll_forward : c.flavour;
    static std::map<std::tuple<int, int, int, int, Flavour, Loop>, Reference> known;
    auto [at, fresh] =
        known.try_emplace({c.ranks, c.extra, c.steps, c.copies, flavour, c.loop}, Reference{});
    if (fresh) {
      Case plain{.ranks = c.ranks, .extra = c.extra, .steps = c.steps, .copies = c.copies};
      plain.flavour = flavour;
      plain.loop = c.loop;
      Result r = run(plain);
      Reference& ref = at->second;
      if (r.outcome.finished && !r.hung) ref.final = r.final;
      ref.entries = r.entries;
      for (const Note& n : r.notes) {
        if (n.what == Note::What::lambda) ref.lambda[{n.rank, n.step}] = n.hash;
        if (n.what == Note::What::committed && n.rank == 0) ref.committed.push_back(n.committed);
      }
    }
    return at->second;
  }
};

//! What became of a run: complaint is empty when every promise was kept. stopped: it ended before
//! its last step on every rank, in one of the ways in which it may.
struct Verdict {
  std::string complaint{};
  bool stopped = false;
};

namespace detail {

//! True when a rank and all partners that held its per-rank state died at once: no Go came after
//! the one death was noticed and before the other. From Go on every rank has its partners again.
inline bool copies_were_lost(const Case& c, const Result& r) {
  struct Death {
    int rank;
    std::size_t at, noticed = ~std::size_t{0};  // in the order of notes
  };
  std::vector<Death> deaths;
  std::vector<std::size_t> gos;
  for (std::size_t i = 0; i < r.notes.size() && r.notes[i].what != Note::What::stop; ++i) {
    const Note& n = r.notes[i];
    if (n.what == Note::What::go) gos.push_back(i);
    if (n.what == Note::What::killed || n.what == Note::What::failed) deaths.push_back({n.rank, i});
    if (n.what == Note::What::death) {
      auto unnoticed = std::ranges::find_if(
          deaths, [&](const Death& d) { return d.rank == n.rank && d.noticed > r.notes.size(); });
      if (unnoticed != deaths.end())
        unnoticed->noticed = i;
      else  // a zombie: given up while it is stopped, and it does not know yet
        deaths.push_back({n.rank, i, i});
    }
  }
  // Real threads write their notes a little late.
  const std::size_t slack = c.world.simulated ? 0 : 1;
  auto at_once = [&](const Death& a, const Death& b) {
    const Death &first = a.at < b.at ? a : b, &second = a.at < b.at ? b : a;
    auto between = std::ranges::count_if(
        gos, [&](std::size_t go) { return go > first.noticed && go < second.at; });
    return static_cast<std::size_t>(between) <= slack;
  };
  return std::ranges::any_of(deaths, [&](const Death& d) {
    for (int k = 1; k <= std::min(c.copies, c.ranks - 1); ++k)
      if (std::ranges::none_of(deaths, [&](const Death& p) {
            return p.rank == (d.rank + k) % c.ranks && at_once(d, p);
          }))
        return false;
    return true;
  });
}

//! True when a worker died after it had told that it finished, and nobody else needed it.
inline bool died_after_the_last_step(const Case& c, const Result& r) {
  std::map<Incarnation, bool> told;
  for (const auto& t : r.trace) {
    if (t.point == "finished" || t.point == "lambda") told[t.who] = t.point == "finished";
    for (const Fault& f : c.world.faults)
      if (f.who == t.who && f.operation == t.operation && f.kind != Fault::Kind::cut && told[t.who])
        return true;
  }
  return !c.world.simulated;  // no trace: the coordinator's word must do
}

}  // namespace detail

//! Judges a run by what mend promises, whatever went wrong in it.
inline Verdict judge(const Case& c, const Result& r) {
  using What = Note::What;
  const Reference& ref = Reference::of(c);
  if (ref.final.size() != static_cast<std::size_t>(c.ranks))
    return {"the uninterrupted run did not end: no reference"};
  if (r.hung) return {"hung"};

  // Each life: commits in order, at most one for a step, equal to those of the uninterrupted run;
  // no lambda for a step that is committed; every lambda finds the state that belongs to its step.
  std::map<Incarnation, std::int64_t> reached;  // of the living: steps committed
  std::map<Incarnation, bool> zombie, stopped;
  for (const Fault& f : c.world.faults)
    if (f.kind == Fault::Kind::stop && f.span > c.options.lease) {
      stopped[f.who] = true;  // it may find out by itself that it has no lease any more
      zombie[f.who] = c.world.zombies;
    }
  for (const Note& n : r.notes) {
    std::string where = ", worker " + std::to_string(n.who) + " (rank " + std::to_string(n.rank) +
                        ") at step " + std::to_string(n.step);
    if (n.what == What::stop) break;
    if (n.what == What::killed || n.what == What::failed) reached.erase(n.who);
    if (n.what == What::failed && n.text.find("received half of a state") == std::string::npos &&
        !(stopped[n.who] && n.text.find("fenced") == 0))
      return {"an exception left train(): " + n.text + where};
    if (n.what == What::committed) {
      auto [at, first] = reached.try_emplace(n.who, n.step + 1);
      if (!first && std::exchange(at->second, n.step + 1) != n.step)
        return {"commits out of order" + where};
      const mend::Committed& is = n.committed;
      const mend::Committed& was = ref.committed.at(static_cast<std::size_t>(n.step));
      if (std::bit_cast<std::uint32_t>(is.loss) != std::bit_cast<std::uint32_t>(was.loss) ||
          std::bit_cast<std::uint32_t>(is.gradient_norm) !=
              std::bit_cast<std::uint32_t>(was.gradient_norm) ||
          is.learning_rate != was.learning_rate || is.skipped != was.skipped)
        return {"Committed differs" + where};
    }
    if (n.what == What::lambda) {
      for (auto [who, steps] : reached)
        if (steps > n.step && !zombie[who])
          return {"a step that worker " + std::to_string(who) + " committed is repeated" + where};
      if (n.hash != ref.lambda.at({n.rank, n.step})) return {"the lambda finds other bits" + where};
    }
  }

  for (const auto& [rank, hash] : r.final) {
    if (hash == ref.final.at(rank)) continue;
    std::string names;
    for (std::size_t i = 0; i < r.entries.at(rank).size(); ++i)
      if (r.entries.at(rank)[i] != ref.entries.at(rank).at(i))
        names += " '" + r.entries.at(rank)[i].first + "'";
    return {"other bits at the end, rank " + std::to_string(rank) + ":" + names};
  }
  if (r.outcome.finished) {
    if (r.final.size() != ref.final.size()) return {"finished without all ranks"};
    return {};
  }
  const std::string& reason = r.outcome.reason;
  if (reason.find("lost together with all its copies") != std::string::npos) {
    if (detail::copies_were_lost(c, r)) return {{}, true};
    return {"stopped for lost copies, but a partner of every dead rank lived: " + reason};
  }
  if (reason.find("after the last step") != std::string::npos) {
    if (detail::died_after_the_last_step(c, r)) return {{}, true};
    return {"stopped as after the last step, but nobody was killed there: " + reason};
  }
  return {"stopped: " + reason};
}

//! Runs and judges; a failing case says how to see it again.
inline Verdict check_run(const Case& c, Result* result = nullptr) {
  Result r = run(c);
  Verdict v = judge(c, r);
  if (!v.complaint.empty()) v.complaint += "\n  in: " + c.text();
  if (result != nullptr) *result = std::move(r);
  return v;
}

}  // namespace mend_test
