#include <mend/comm/membership/coordinator.hpp>

#include <doctest/doctest.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using namespace mend;
using namespace mend::comm;
using namespace std::chrono_literals;
using Lines = std::vector<std::string>;

//! The script ended while the coordinator waits for more: where most tests stop it.
struct ScriptOver {};

std::string joined(const std::vector<int>& list) {
  std::string text;
  for (int x : list) text += (text.empty() ? "" : ",") + std::to_string(x);
  return text;
}
std::string text_of(ByteView b) { return {reinterpret_cast<const char*>(b.data()), b.size()}; }
Bytes bytes_of(std::string_view text) {
  ByteView v = std::as_bytes(std::span{text});
  return {v.begin(), v.end()};
}
//! What a Ready carries: one hash per schema line, of meta and of all of it.
Bytes hashes(std::vector<std::uint64_t> values) {
  ByteWriter w;
  for (std::uint64_t v : values) w.put(Hash128{v, v});
  return std::move(w).take();
}

//! Plays the workers from a script, in virtual time and in one thread; writes down what the
//! coordinator does.
class Script {
 public:
  // ---- the script -------------------------------------------------------------------------------

  Script& join(Incarnation who, std::string_view version = library_version) {
    Bytes payload = encode(Join{std::string{version}, "at " + std::to_string(who)});
    return frame(who, Kind::join, Step{0}, std::move(payload));
  }
  Script& report(Incarnation who, Step step, Report r = {.has_state = true}) {
    return frame(who, Kind::report, step, encode(r));
  }
  Script& ready(Incarnation who, Bytes hash = hashes({1, 2, 3})) {
    return frame(who, Kind::ready, Step{0}, std::move(hash));
  }
  Script& finished(Incarnation who, Step step) { return frame(who, Kind::finished, step); }
  Script& broken(Incarnation who, int peer) {
    return frame(who, Kind::broken_link, Step{0}, {}, static_cast<std::uint32_t>(peer));
  }
  Script& failed(Incarnation who, Step step, std::string_view why) {
    return frame(who, Kind::failed, step, bytes_of(why));
  }
  Script& frame(Incarnation who, Kind kind, Step step = {}, Bytes payload = {},
                std::uint32_t tag = 0) {
    return item([=, this] {
      HubEvent e;
      e.who = who;
      e.frame.header.kind = static_cast<std::uint16_t>(kind);
      e.frame.header.generation = stale_ != 0 ? std::exchange(stale_, 0) : generation_;
      e.frame.header.step = step.value();
      e.frame.header.tag = tag;
      e.frame.payload = Payload{payload};
      return e;
    });
  }
  //! The next frame is of this generation, not of the newest one.
  Script& of(std::uint32_t generation) {
    items_.push_back({.act = [=, this] { stale_ = generation; }});
    return *this;
  }
  Script& ends(Incarnation who, int status = -9) {
    return item([=] {
      HubEvent e;
      e.who = who;
      e.ended = true;
      e.status = status;
      return e;
    });
  }
  //! Time goes by, in as many polls as the coordinator's deadlines ask for.
  Script& wait(Time span) {
    items_.push_back({.pass = span});
    return *this;
  }
  //! From now on nothing is heard of it.
  Script& silent(Incarnation who) {
    items_.push_back({.act = [=, this] { silent_[who] = now_; }});
    return *this;
  }
  //! Marks a place in the log.
  Script& note(std::string text) {
    items_.push_back({.act = [this, text] { log.push_back(text); }});
    return *this;
  }

  // ---- Hub --------------------------------------------------------------------------------------

  [[nodiscard]] Time now() const { return now_; }
  std::optional<HubEvent> poll(Deadline deadline) {
    if (++polls_ > 100000) throw std::logic_error{"the coordinator spins"};
    while (!items_.empty()) {
      Item& next = items_.front();
      if (next.pass > Time{0}) {
        if (now_ + next.pass > deadline) {
          Time step = std::max(deadline - now_, Time{0});
          now_ += step;
          next.pass -= step;
          return {};
        }
        now_ += next.pass;
        items_.pop_front();
        return {};
      }
      Item taken = std::move(next);
      items_.pop_front();
      if (taken.act) taken.act();
      if (taken.event) return taken.event();
    }
    throw ScriptOver{};
  }
  void tell(Incarnation who, const Header& h, ByteView payload) {
    std::string line = std::to_string(who) + " <- ";
    switch (static_cast<Kind>(h.kind)) {
      case Kind::view: {
        View v = decode_view(payload);
        generation_ = v.generation.value();
        line += "view " + std::to_string(generation_) + (v.first ? " first" : "") + " rank " +
                std::to_string(v.rank) + " of";
        for (const Peer& p : v.peers) {
          line += " " + std::to_string(p.incarnation);
          if (p.heir_of != p.incarnation) line += "/" + std::to_string(p.heir_of);
          if (p.address != "at " + std::to_string(p.incarnation)) line += " at a wrong address";
        }
        if (v.lineage != 0) line += " lineage " + std::to_string(v.lineage);
        break;
      }
      case Kind::plan: {
        Plan p = decode_plan(payload);
        line += "plan " + std::to_string(h.step) + (p.restore ? " restore" : "") + " from " +
                joined(p.sources);
        if (!p.bucket_holders.empty()) line += " buckets " + joined(p.bucket_holders);
        if (p.bucket_fetchers != 0) line += " for " + std::to_string(p.bucket_fetchers);
        for (const auto& [rank, holders] : p.copy_holders)
          line += " copies of " + std::to_string(rank) + " at " + joined(holders);
        break;
      }
      case Kind::feed: line += "feed"; break;
      case Kind::go: line += "go " + std::to_string(h.step); break;
      case Kind::bye: line += "bye"; break;
      case Kind::stop: line += "stop: " + text_of(payload); break;
      default: line += "kind " + std::to_string(h.kind); break;
    }
    if (h.generation != generation_) line += " of generation " + std::to_string(h.generation);
    log.push_back(line);
  }
  void start(Incarnation who, int rank, int size, bool replacement) {
    if (who >= first_that_fails && who <= last_that_fails)
      throw CommError{"no more processes", {.code = EAGAIN}};
    log.push_back("start " + std::to_string(who) + " as rank " + std::to_string(rank) + " of " +
                  std::to_string(size) + (replacement ? ", a replacement" : ""));
  }
  void kill(Incarnation who) { log.push_back("kill " + std::to_string(who)); }
  [[nodiscard]] Time last_heard(Incarnation who) const {
    auto it = silent_.find(who);
    return it == silent_.end() ? now_ : it->second;
  }

  // ---- what was seen ----------------------------------------------------------------------------

  Incarnation first_that_fails = 1000, last_that_fails = 1000;  // starts that throw
  Lines log;
  std::vector<trace::Event> events;

  //! Runs a coordinator over the script; nullopt when the script was over first.
  std::optional<Outcome> run(CoordinatorOptions options) {
    Coordinator coordinator{*this, options};
    coordinator.on_event = [this](const trace::Event& e) { events.push_back(e); };
    try {
      return coordinator.run();
    } catch (const ScriptOver&) {
      return {};
    }
  }
  //! The log after the note.
  [[nodiscard]] Lines since(const std::string& note) const {
    auto at = std::ranges::find(log, note);
    REQUIRE(at != log.end());
    return {at + 1, log.end()};
  }
  [[nodiscard]] bool says(std::string_view part) const {
    return std::ranges::any_of(log, [&](const auto& l) { return l.find(part) != l.npos; });
  }

 private:
  struct Item {
    std::function<HubEvent()> event{};
    std::function<void()> act{};
    Time pass{};
  };
  Script& item(std::function<HubEvent()> event) {
    items_.push_back({.event = std::move(event)});
    return *this;
  }

  std::deque<Item> items_;
  Time now_ = 1s;
  std::map<Incarnation, Time> silent_;
  std::uint32_t generation_ = 0, stale_ = 0;
  int polls_ = 0;
};
static_assert(Hub<Script>);

CoordinatorOptions three() { return {.ranks = 3, .lease = 5s, .timeout = 60s, .grace = 500ms}; }

//! Ranks 0 to n - 1, incarnations 1 to n, until Go of generation 1.
void begin(Script& s, int n = 3) {
  auto last = static_cast<Incarnation>(n);
  for (Incarnation w = 1; w <= last; ++w) s.join(w);
  for (Incarnation w = 1; w <= last; ++w) s.report(w, 0);
  for (int whole = 0; whole < 2; ++whole)  // by themselves, and with the copies of their partners
    for (Incarnation w = 1; w <= last; ++w) s.ready(w);
}
//! A generation until Go: these hold `step`, and those are new.
void recover(Script& s, Step step, const std::vector<Incarnation>& survivors,
             const std::vector<Incarnation>& fresh = {}) {
  for (Incarnation w : survivors) s.report(w, step);
  for (Incarnation w : fresh) s.report(w, 0, {});
  for (Incarnation w : survivors) s.ready(w);
  for (Incarnation w : survivors) s.ready(w);
  for (Incarnation w : fresh) s.ready(w);
}

// ---- the ordinary run ---------------------------------------------------------------------------

TEST_CASE("a run without failures: start, view, plan, feed, go, bye") {
  Script s;
  s.join(1).join(3).note("two of three").join(2).note("joined");
  s.report(2, 0).report(1, 0).report(3, 0).note("reported");
  s.ready(3).ready(1).ready(2).note("whole").ready(1).ready(3).ready(2).note("ready");
  s.finished(1, 10).finished(2, 10).note("two have finished").finished(3, 10).note("finished");
  s.ends(1, 0).ends(2, 0).ends(3, 0);
  std::optional<Outcome> o = s.run(three());
  REQUIRE(o);
  CHECK(s.log == Lines{"start 1 as rank 0 of 3",
                       "start 2 as rank 1 of 3",
                       "start 3 as rank 2 of 3",
                       "two of three",
                       "1 <- view 1 first rank 0 of 1 2 3",
                       "2 <- view 1 first rank 1 of 1 2 3",
                       "3 <- view 1 first rank 2 of 1 2 3",
                       "joined",
                       "1 <- plan 0 from 0,1,2",
                       "2 <- plan 0 from 0,1,2",
                       "3 <- plan 0 from 0,1,2",
                       "reported",
                       "1 <- feed",
                       "2 <- feed",
                       "3 <- feed",
                       "whole",
                       "1 <- go 0",
                       "2 <- go 0",
                       "3 <- go 0",
                       "ready",
                       "two have finished",
                       "1 <- bye",
                       "2 <- bye",
                       "3 <- bye",
                       "finished"});
  CHECK(o->finished);
  CHECK(o->reason == "");
  CHECK(o->status == 0);
  CHECK(o->restarts == 0);
  CHECK(o->deaths == 0);
  CHECK(o->generations == 1);
  CHECK(o->step == Step{10});
}

TEST_CASE("what happens is told to whoever listens") {
  Script s;
  begin(s, 1);
  s.finished(1, 4).ends(1, 0);
  REQUIRE(s.run({.ranks = 1}));
  Lines names;
  for (const trace::Event& e : s.events) names.push_back(e.name);
  CHECK(names == Lines{"start", "joined", "view", "plan", "feed", "go", "bye"});
  CHECK(s.events[2].kind == trace::EventKind::view);
  CHECK(s.events[2].generation == Generation{1});
  CHECK(s.events[2].text == "1 members");
  CHECK(s.events[0].time == 1s);
}

TEST_CASE("an empty group is refused at once") {
  for (int ranks : {0, -1}) {
    Script s;
    std::optional<Outcome> o = s.run({.ranks = ranks});
    REQUIRE(o);
    CHECK(!o->finished);
    CHECK(o->reason == "a run needs at least one rank");
    CHECK(s.log.empty());
  }
}

// ---- joining ------------------------------------------------------------------------------------

TEST_CASE("a worker built from another version stops the run, and all are told why") {
  Script s;
  s.join(1).note("now").join(2, "9.9.9").ends(1, 0).ends(2, 0).ends(3, 0);
  std::optional<Outcome> o = s.run(three());
  REQUIRE(o);
  std::string why = "rank 1 was built from mend 9.9.9, the launcher from " +
                    std::string{library_version} + "; rebuild one of them";
  CHECK(!o->finished);
  CHECK(o->reason == why);
  CHECK(s.since("now") == Lines{"1 <- stop: " + why, "2 <- stop: " + why, "3 <- stop: " + why});
}

TEST_CASE("a worker that does not join in time is killed and another one started") {
  Script s;
  s.join(1).join(2).wait(59s).note("almost").wait(2s).note("late").ends(3).note("ended");
  CHECK(!s.run(three()));
  CHECK(s.since("almost") == Lines{"kill 3", "late", "start 4 as rank 2 of 3", "ended"});
}

TEST_CASE("a death before the first generation is not a replacement: nobody has state yet") {
  Script s;
  s.join(1).ends(2, 1).note("dead").join(3).join(4);
  CHECK(!s.run(three()));
  CHECK(s.since("dead") == Lines{"1 <- view 1 first rank 0 of 1 4 3",
                                 "4 <- view 1 first rank 1 of 1 4 3",
                                 "3 <- view 1 first rank 2 of 1 4 3"});
  CHECK(s.says("start 4 as rank 1 of 3"));
  CHECK(!s.says("a replacement"));
}

TEST_CASE("ranks that registered different state stop before the first step, and say where") {
  auto attempt = [](std::string first, std::string second) {
    Script s;
    s.join(1).join(2);
    s.report(1, 0, {.has_state = true, .schema = first});
    s.report(2, 0, {.has_state = true, .schema = second});
    s.ends(1, 1).ends(2, 1);
    std::optional<Outcome> o = s.run({.ranks = 2});
    REQUIRE(o);
    CHECK(!o->finished);
    CHECK(!s.says("plan"));
    return o->reason;
  };
  CHECK(attempt("tensor 'w' F32 [3,]\nbuffer 'b'\n", "tensor 'w' F32 [4,]\nbuffer 'b'\n") ==
        "ranks registered different state: rank 0 has tensor 'w' F32 [3,] where rank 1 has "
        "tensor 'w' F32 [4,]");
  CHECK(attempt("a\nb\n", "a\n") ==
        "ranks registered different state: rank 0 has b where rank 1 has nothing more");
  CHECK(attempt("a\n", "a\nc\n") ==
        "ranks registered different state: rank 0 has nothing more where rank 1 has c");
}

TEST_CASE("ranks that begin at different steps loaded different files") {
  Script s;
  s.join(1).join(2).report(1, 7).report(2, 5).ends(1, 1).ends(2, 1);
  std::optional<Outcome> o = s.run({.ranks = 2});
  REQUIRE(o);
  CHECK(o->reason ==
        "rank 1 begins at step 5 and another rank at step 7; load files of one step on all ranks");
}

TEST_CASE("a schema is told once per process; a replacement's is compared too") {
  Script s;
  begin(s, 2);
  s.ends(2).join(3).note("new generation");
  s.report(1, 4).report(3, 0, {.schema = "x\n"}).note("x").ends(1, 1).ends(3, 1);
  Script with;  // the same with a schema in the first generation
  with.join(1).join(2);
  for (Incarnation w : {1, 2}) with.report(w, 0, {.has_state = true, .schema = "y\n"});
  for (Incarnation w : {1, 2, 1, 2}) with.ready(w);
  with.ends(2).join(3).report(1, 4).report(3, 0, {.schema = "x\n"}).ends(1, 1).ends(3, 1);
  CHECK(!s.run({.ranks = 2}));
  CHECK(s.since("new generation")[0] == "1 <- plan 4 from 0");  // there was nothing to compare with
  std::optional<Outcome> o = with.run({.ranks = 2});
  REQUIRE(o);
  CHECK(o->reason == "ranks registered different state: rank 0 has y where rank 1 has x");
}

TEST_CASE("different initial values stop the run and name the entry") {
  Script s;
  s.join(1).join(2);
  for (Incarnation w : {1, 2})
    s.report(w, 0, {.has_state = true, .schema = "tensor 'a'\nbuffer 'b'\n"});
  for (int whole = 0; whole < 2; ++whole)
    s.ready(1, hashes({10, 20, 5, 77})).ready(2, hashes({10, 21, 5, 78}));
  s.ends(1, 1).ends(2, 1);
  std::optional<Outcome> o = s.run({.ranks = 2});
  REQUIRE(o);
  CHECK(o->reason ==
        "initial values differ: rank 1 and rank 0 hold different bits at step 0, first in buffer "
        "'b'; derive initial values from one seed on all ranks");
}

TEST_CASE("after a recovery differing hashes mean that replicas diverged") {
  Script s;
  begin(s, 2);
  s.ends(2).join(3).report(1, 6).report(3, 0, {});
  s.ready(1, hashes({1})).ready(1, hashes({1})).ready(3, hashes({2}));
  s.ends(1, 1).ends(3, 1);
  std::optional<Outcome> o = s.run({.ranks = 2});
  REQUIRE(o);
  CHECK(o->reason.find("replicas diverged: rank 1 and rank 0 hold different bits at step 6") == 0);
  CHECK(!s.says("go 6"));
}

// ---- plans --------------------------------------------------------------------------------------

TEST_CASE("the target is the highest version that anybody holds or can reach") {
  auto plan = [](std::vector<std::pair<int, Report>> reports) {  // of ranks 0 and 1; rank 2 is new
    Script s;
    begin(s);
    s.ends(3).join(4);
    for (std::size_t r = 0; r < reports.size(); ++r)
      s.report(static_cast<Incarnation>(r + 1), reports[r].first, reports[r].second);
    s.note("last").report(4, 0, {});
    (void)s.run(three());
    return s.since("last").front();
  };
  Report cut{.has_state = true}, whole{.has_state = true, .all_reduced = true};
  CHECK(plan({{5, cut}, {5, cut}}) == "1 <- plan 5 from 0,1");
  CHECK(plan({{5, whole}, {5, cut}}) == "1 <- plan 6 from 0 buckets 0 for 1");
  CHECK(plan({{5, cut}, {5, whole}}) == "1 <- plan 6 from 1 buckets 1 for 1");
  CHECK(plan({{5, whole}, {5, whole}}) == "1 <- plan 6 from 0,1 buckets 0,1");
  CHECK(plan({{6, cut}, {5, whole}}) == "1 <- plan 6 from 0,1 buckets 1");
}

TEST_CASE("survivors are whole before a replacement may fetch") {
  Script s;
  begin(s);
  s.ends(2).join(4).report(1, 5).report(3, 5).report(4, 0, {}).note("plan");
  s.ready(1).note("one").ready(3).note("both").ready(3).ready(4).note("copies").ready(1).note(
      "all");
  CHECK(!s.run(three()));
  CHECK(s.since("plan") == Lines{"one", "1 <- feed", "4 <- feed", "3 <- feed", "both", "copies",
                                 "1 <- go 5", "4 <- go 5", "3 <- go 5", "all"});
}

TEST_CASE("per-rank state goes to the heir, from those who hold a copy of the target version") {
  Script s;
  begin(s);
  s.ends(2).join(4);
  s.report(1, 5, {.has_state = true, .copies = {{2, {5, 6}}, {3, {5}}}, .copies_wanted = 1});
  s.report(3, 5, {.has_state = true, .copies = {{2, {6}}, {1, {5}}}, .copies_wanted = 1});
  s.note("last").report(4, 0, {.copies_wanted = 1});
  CHECK(!s.run(three()));
  CHECK(s.since("last").front() == "1 <- plan 5 from 0,2 copies of 1 at 0");
}

TEST_CASE("per-rank state that died with its copies stops the run and says so") {
  Script s;
  begin(s);
  s.ends(2).join(4);
  s.report(1, 5, {.has_state = true, .copies = {{2, {4}}}, .copies_wanted = 1});
  s.report(3, 5, {.has_state = true, .copies_wanted = 1});
  s.report(4, 0, {.copies_wanted = 1}).ends(1, 1).ends(3, 1).ends(4, 1);
  std::optional<Outcome> o = s.run(three());
  REQUIRE(o);
  CHECK(o->reason ==
        "the per-rank state of a dead rank was lost together with all its copies, at step 5; "
        "PerRank{.copies = 2} survives two deaths at once. rank 1 ended with signal 9");
}

TEST_CASE("copies bear the name of the first in a place, whoever takes it later") {
  Script s;
  begin(s);
  s.ends(2).join(4).report(1, 5).report(3, 5).report(4, 0, {}).ready(1).ready(3);
  s.ends(4).note("died while fetching").join(5).note("joined");
  CHECK(!s.run(three()));
  CHECK(s.since("died while fetching").front() == "1 <- view 3 rank 0 of 1 5/2 3");
  Script whole;
  begin(whole);
  whole.ends(2).join(4);
  recover(whole, 5, {1, 3}, {4});
  whole.ends(4).note("died whole").join(5);
  CHECK(!whole.run(three()));
  CHECK(whole.since("died whole").front() == "1 <- view 3 rank 0 of 1 5/2 3");
}

TEST_CASE("when all that trained are gone, the replacements begin anew, from the same values") {
  auto attempt = [](Bytes later) {
    Script s;
    begin(s, 2);
    s.finished(1, 8);  // so far it had come
    s.ends(1).ends(2).join(3).join(4).note("joined");
    s.report(3, 0, {}).report(4, 0, {}).note("reported");
    s.ready(3, later).ready(4, later).ready(3, later).ready(4, later).note("ready").ends(3, 1).ends(
        4, 1);
    std::optional<Outcome> o = s.run({.ranks = 2, .poison = 10});
    std::vector<std::string> log = s.since("joined");
    return std::pair{o ? o->reason : std::string{}, log};
  };
  auto [none, log] = attempt(hashes({1, 2, 3}));
  CHECK(none == "");
  CHECK(log[0] == "3 <- plan 0 restore from ");
  CHECK(std::ranges::count(log, "3 <- go 0") == 1);
  auto [reason, other] = attempt(hashes({1, 2, 4}));
  CHECK(reason.find("all members that held the state died, and their replacements start from "
                    "other initial values") == 0);
}

TEST_CASE("a committed step that nobody holds any more stops the run") {
  Script s;
  begin(s);
  s.finished(1, 8).ends(1).join(4).report(2, 7).report(3, 7).report(4, 0, {});
  s.ends(2, 1).ends(3, 1).ends(4, 1);
  std::optional<Outcome> o = s.run(three());
  REQUIRE(o);
  CHECK(o->reason == "a committed step would be lost: step 8 was committed and nobody holds it");
}

// ---- deaths -------------------------------------------------------------------------------------

TEST_CASE("a death in any phase opens a generation with a replacement once it has joined") {
  // Until here, and then rank 1 dies.
  std::vector<std::pair<std::string, std::function<void(Script&)>>> phases{
      {"collect",
       [](Script& s) {
         for (Incarnation w : {1, 2, 3}) s.join(w);
         s.report(1, 0);
       }},
      {"plan",
       [](Script& s) {
         for (Incarnation w : {1, 2, 3}) s.join(w);
         for (Incarnation w : {1, 2, 3}) s.report(w, 0);
         s.ready(3);
       }},
      {"run", [](Script& s) { begin(s); }},
      {"finishing",
       [](Script& s) {
         begin(s);
         s.finished(1, 10).finished(3, 10);
       }},
  };
  for (const auto& phase : phases) {
    CAPTURE(phase.first);
    Script s;
    phase.second(s);
    s.note("alive").ends(2).note("dead").join(4).note("joined");
    CHECK(!s.run(three()));
    CHECK(s.since("alive") ==
          Lines{"start 4 as rank 1 of 3, a replacement", "dead", "1 <- view 2 rank 0 of 1 4/2 3",
                "4 <- view 2 rank 1 of 1 4/2 3", "3 <- view 2 rank 2 of 1 4/2 3", "joined"});
  }
}

TEST_CASE("a death while the replacements are fed starts the generation anew") {
  Script s;
  begin(s);
  s.ends(2).join(4).report(1, 5).report(3, 5).report(4, 0, {}).ready(1).ready(3).note("fed");
  s.ends(1).note("a source died").join(5).note("joined");
  s.report(3, 5).report(4, 0, {}).report(5, 0, {}).note("planned");
  CHECK(!s.run(three()));
  CHECK(s.since("fed") == Lines{"start 5 as rank 0 of 3, a replacement", "a source died",
                                "5 <- view 3 rank 0 of 5/1 4/2 3",
                                "4 <- view 3 rank 1 of 5/1 4/2 3",
                                "3 <- view 3 rank 2 of 5/1 4/2 3", "joined", "5 <- plan 5 from 2",
                                "4 <- plan 5 from 2", "3 <- plan 5 from 2", "planned"});
}

TEST_CASE("two deaths at once, and a death while the other's replacement is on its way") {
  Script s;
  begin(s);
  s.note("go").ends(1).ends(2).note("dead").join(4).ends(3).join(5).join(6).note("joined");
  CHECK(!s.run(three()));
  CHECK(s.since("go") ==
        Lines{"start 4 as rank 0 of 3, a replacement", "start 5 as rank 1 of 3, a replacement",
              "dead", "start 6 as rank 2 of 3, a replacement", "4 <- view 2 rank 0 of 4/1 5/2 6/3",
              "5 <- view 2 rank 1 of 4/1 5/2 6/3", "6 <- view 2 rank 2 of 4/1 5/2 6/3", "joined"});
}

TEST_CASE("a replacement that dies before it joins is replaced too") {
  Script s;
  begin(s);
  s.note("go").ends(3).ends(4, 127).join(5).note("joined");
  CHECK(!s.run(three()));
  CHECK(s.since("go") == Lines{"start 4 as rank 2 of 3, a replacement",
                               "start 5 as rank 2 of 3, a replacement",
                               "1 <- view 2 rank 0 of 1 2 5/3", "2 <- view 2 rank 1 of 1 2 5/3",
                               "5 <- view 2 rank 2 of 1 2 5/3", "joined"});
}

TEST_CASE("what an incarnation says after it was given up has no effect") {
  Script s;
  begin(s);
  s.ends(2).join(4).note("joined").report(2, 9, {.has_state = true}).finished(2, 99);
  s.frame(2, Kind::refused, 0, bytes_of("no")).ends(2).broken(2, 0).wait(1s).note("end");
  CHECK(!s.run(three()));
  CHECK(s.since("joined") == Lines{"end"});
}

TEST_CASE("messages of an older generation have no effect") {
  Script s;
  begin(s);
  s.ends(2).join(4).note("generation 2");
  s.of(1).report(1, 7).of(1).report(3, 7).of(1).report(4, 7).note("old reports");
  s.report(1, 7).report(3, 7).report(4, 0, {}).note("reports");
  s.of(1).ready(1).of(1).ready(3).note("old readies").ready(1).ready(3).note("fed");
  s.of(1).ready(1).of(1).ready(3).of(1).ready(4).note("more of them").ready(1).ready(3).ready(4);
  s.note("gone on");
  for (Incarnation w : {1, 3, 4}) s.of(1).finished(w, 9);
  s.of(1).broken(1, 2).of(1).frame(1, Kind::progress, 99).wait(2s).note("end");
  CHECK(!s.run(three()));
  CHECK(s.since("generation 2").front() == "old reports");
  CHECK(s.since("old reports").front() == "1 <- plan 7 from 0,2");
  CHECK(s.since("reports").front() == "old readies");
  CHECK(s.since("old readies").front() == "1 <- feed");
  CHECK(s.since("fed").front() == "more of them");
  CHECK(s.since("more of them").front() == "1 <- go 7");
  CHECK(s.since("gone on") == Lines{"end"});
}

// ---- suspicion ----------------------------------------------------------------------------------

TEST_CASE("a worker that is silent for longer than its lease is killed, reaped, then replaced") {
  Script s;
  begin(s);
  s.note("go").silent(2).wait(4900ms).note("lease").wait(200ms).note("over").wait(50s).note(
      "later");
  s.ends(2).note("reaped");
  CHECK(!s.run(three()));
  CHECK(s.since("go") == Lines{"lease", "kill 2", "over", "later",
                               "start 4 as rank 1 of 3, a replacement", "reaped"});
}

TEST_CASE("nothing is decided between a kill and the end that it leads to") {
  Script s;
  begin(s);
  s.silent(2).wait(6s).note("killed").ends(1).note("another died").ends(2).note("reaped");
  CHECK(!s.run(three()));
  CHECK(s.since("killed") == Lines{"another died", "start 4 as rank 0 of 3, a replacement",
                                   "start 5 as rank 1 of 3, a replacement", "reaped"});
}

TEST_CASE("a worker that answers but does not report in time is killed") {
  Script s;
  begin(s);
  s.ends(3).join(4).report(1, 5).report(4, 0, {}).note("waiting").wait(59s).note("almost").wait(2s);
  s.note("late");
  CHECK(!s.run(three()));
  CHECK(s.since("waiting") == Lines{"almost", "kill 2", "late"});
}

TEST_CASE("a survivor that does not become whole in time is killed") {
  Script s;
  begin(s);
  s.ends(3).join(4).report(1, 5).report(2, 5).report(4, 0, {}).ready(1).note("plan").wait(61s);
  s.note("late");
  CHECK(!s.run(three()));
  CHECK(s.since("plan") == Lines{"kill 2", "late"});
}

TEST_CASE("a replacement that is not fed in time is killed") {
  Script s;
  begin(s);
  s.ends(3).join(4).report(1, 5).report(2, 5).report(4, 0, {}).ready(1).ready(2).note("feed");
  s.ready(1).wait(61s).note("late");  // rank 1 waits for the copies of the new one
  CHECK(!s.run(three()));
  CHECK(s.since("feed") == Lines{"kill 4", "late"});
}

TEST_CASE("a transfer that makes progress has as much time as it takes") {
  Script s;
  begin(s);
  s.ends(3).join(4).report(1, 5).report(2, 5).report(4, 0, {}).ready(1).ready(2).ready(1).ready(2);
  s.note("feed");
  for (int i = 0; i < 10; ++i) s.wait(50s).frame(4, Kind::progress, 0);
  s.note("slow").wait(61s).note("stuck");
  CHECK(!s.run(three()));
  CHECK(s.since("feed") == Lines{"slow", "kill 4", "stuck"});
}

TEST_CASE("a run in which no step is committed for too long is stopped, and says so") {
  Script s;
  begin(s);
  s.note("go").wait(110s).frame(2, Kind::progress, 3).wait(110s).note("slow").wait(20s);
  s.ends(1, 1).ends(2, 1).ends(3, 1);
  std::optional<Outcome> o = s.run(three());
  REQUIRE(o);
  CHECK(s.since("go").front() == "slow");
  CHECK(o->reason ==
        "no step was committed within 120 s after step 3: a step function hangs, or --timeout is "
        "too short for it");
  CHECK(o->step == Step{3});
}

TEST_CASE("after Bye nobody is judged: what a worker does then is its own affair") {
  Script s;
  begin(s);
  for (Incarnation w : {1, 2, 3}) s.finished(w, 10);
  s.note("bye").silent(1).wait(24h).note("a day later").ends(1, 0).ends(2, 0).ends(3, 0);
  std::optional<Outcome> o = s.run(three());
  REQUIRE(o);
  CHECK(s.since("bye") == Lines{"a day later"});
  CHECK(o->finished);
}

TEST_CASE("one that was killed and does not end is not waited for for ever") {
  Script s;
  begin(s);
  s.silent(2).wait(6s).note("killed").wait(61s).note("given up").ends(1, 1).ends(3, 1);
  std::optional<Outcome> o = s.run(three());
  REQUIRE(o);
  CHECK(o->reason == "rank 1 was killed and does not end");
  CHECK(s.since("killed").front() == "1 <- stop: rank 1 was killed and does not end");
}

// ---- broken links -------------------------------------------------------------------------------

TEST_CASE("a broken link waits for the death behind it") {
  Script s;
  begin(s);
  s.note("go").broken(1, 1).broken(3, 1).wait(400ms).note("in time").ends(2).wait(10s).note("dead");
  CHECK(!s.run(three()));
  CHECK(s.since("go") == Lines{"in time", "start 4 as rank 1 of 3, a replacement", "dead"});
}

TEST_CASE("a broken link between the living: the same members again, one end goes on repetition") {
  for (bool same_end : {true, false}) {  // whichever end tells first the second time
    Script s;
    begin(s);
    s.note("go").broken(1, 1).wait(400ms).note("patience").wait(200ms).note("grace");
    recover(s, 0, {1, 2, 3});
    s.note("again");
    if (same_end)
      s.broken(1, 1);
    else
      s.broken(2, 0);
    s.wait(600ms).note("repeated");
    CHECK(!s.run(three()));
    CHECK(s.since("go")[0] == "patience");
    CHECK(s.since("patience")[0] == "1 <- view 2 rank 0 of 1 2 3");
    Lines last = s.since("again");
    CHECK(last == Lines{same_end ? "kill 2" : "kill 1", "repeated"});
  }
}

TEST_CASE("another link that breaks, or the same one after a commit, is another matter") {
  for (bool other : {true, false}) {
    Script s;
    begin(s);
    s.broken(1, 1).wait(600ms);
    recover(s, 0, {1, 2, 3});
    if (!other) s.frame(3, Kind::progress, 1);
    s.note("again").broken(other ? 2 : 1, other ? 2 : 1).wait(600ms).note("other");
    CHECK(!s.run(three()));
    CHECK(s.since("again")[0] == "1 <- view 3 rank 0 of 1 2 3");
  }
}

TEST_CASE("generations without a commit in between have an end") {
  Script s;
  begin(s);
  for (int i = 0; i < 20; ++i) {  // never the same link twice
    s.broken(i % 2 == 0 ? 1 : 3, 1).wait(600ms);
    recover(s, 0, {1, 2, 3});
  }
  s.ends(1, 1).ends(2, 1).ends(3, 1);
  std::optional<Outcome> o = s.run(three());
  REQUIRE(o);
  CHECK(o->reason ==
        "17 generations without a commit after step 0: workers cannot keep their connections with "
        "each other");
}

TEST_CASE("a link to a rank that does not exist takes nobody away") {
  Script s;
  begin(s);
  for (int round = 0; round < 3; ++round) {
    s.broken(1, -1).wait(600ms);
    recover(s, 0, {1, 2, 3});
  }
  s.broken(1, 1000).wait(600ms).note("end");
  CHECK(!s.run(three()));
  CHECK(!s.says("kill"));
}

// ---- exceptions ---------------------------------------------------------------------------------

TEST_CASE("a worker whose step function threw gets a lease to end, then it is killed") {
  Script quick;
  begin(quick);
  quick.note("go").failed(2, 5, "no more data").wait(4s).ends(2, 1).wait(10s).note("end");
  CHECK(!quick.run(three()));
  CHECK(quick.since("go") == Lines{"start 4 as rank 1 of 3, a replacement", "end"});

  Script slow;
  begin(slow);
  slow.note("go").failed(2, 5, "no more data").wait(5100ms).note("dragging").ends(2).note("end");
  CHECK(!slow.run(three()));
  CHECK(slow.since("go") ==
        Lines{"kill 2", "dragging", "start 4 as rank 1 of 3, a replacement", "end"});
}

TEST_CASE("the same words from all ranks stop the run at once, wherever each says it stood") {
  Script s;
  begin(s);
  s.failed(1, 5, "called twice (on rank 0, step 5)")
      .failed(2, 5, "called twice (on rank 1, step 5)");
  s.failed(3, 5, "called twice (on rank 2, step 5)").ends(1, 1).ends(2, 1).ends(3, 1);
  std::optional<Outcome> o = s.run(three());
  REQUIRE(o);
  CHECK(o->reason == "all ranks threw at step 5: called twice");
}

TEST_CASE("its words are the reason when nobody can replace it") {
  Script s;
  begin(s);
  s.failed(2, 5, "no more data").ends(2, 3).ends(1, 0).ends(3, 0);
  CoordinatorOptions options = three();
  options.max_restarts = 0;
  std::optional<Outcome> o = s.run(options);
  REQUIRE(o);
  CHECK(o->reason ==
        "no replacement is left (--max-restarts 0). rank 1 threw at step 5: no more data");
  CHECK(o->status == 3);
}

TEST_CASE("a worker with which the run cannot go on stops it in its own words") {
  Script s;
  begin(s);
  s.note("go").frame(3, Kind::refused, 4, bytes_of("replicas diverged silently"));
  s.ends(1, 1).ends(2, 1).ends(3, 1);
  std::optional<Outcome> o = s.run(three());
  REQUIRE(o);
  CHECK(o->reason == "rank 2: replicas diverged silently");
  CHECK(s.since("go")[0] == "1 <- stop: rank 2: replicas diverged silently");
}

TEST_CASE("a message that cannot be read stops the run; kinds that nobody knows are nothing") {
  Script s;
  s.join(1).join(2).join(3);
  s.frame(1, static_cast<Kind>(999)).frame(1, Kind::chunk).note("nothing");
  s.frame(2, Kind::report, 0, Bytes(3)).ends(1, 1).ends(2, 1).ends(3, 1);
  std::optional<Outcome> o = s.run(three());
  REQUIRE(o);
  CHECK(o->reason.find("rank 1 sent a message that cannot be read: a message is shorter") == 0);
}

// ---- limits -------------------------------------------------------------------------------------

TEST_CASE("who misses a rank that has done all its steps says so, and nobody is killed for it") {
  Script s;
  begin(s);
  s.finished(1, 20)
      .note("go")
      .frame(2, Kind::broken_link, 20, Bytes(1, std::byte{1}))
      .ends(1, 1)
      .ends(2, 1)
      .ends(3, 1);
  std::optional<Outcome> o = s.run(three());
  REQUIRE(o);
  CHECK(o->reason ==
        "rank 0 had its last step at step 20 and rank 1 goes on; give train() or next() the same "
        "last step on all ranks");
  CHECK(o->deaths == 0);
}

TEST_CASE("who ends without having joined is told from who leaves a loop early") {
  Script s;
  s.join(1).join(2).ends(3, 0).ends(1, 1).ends(2, 1);
  std::optional<Outcome> o = s.run(three());
  REQUIRE(o);
  CHECK(o->reason.find("rank 2 ended without having joined, and others wait for it") == 0);
}

TEST_CASE("workers that end before the first step are no poison step") {
  Script s;
  s.join(1).join(2).join(3);
  s.ends(1, -6).ends(2, -6).ends(3, -6);
  CoordinatorOptions options = three();
  options.poison = 1;
  std::optional<Outcome> o = s.run(options);
  REQUIRE(o);
  CHECK(o->reason.find("workers ended before the first step began; their own output") !=
        std::string::npos);
}

TEST_CASE("deaths at one step without a commit in between are a poison step") {
  Script s;
  begin(s);
  s.finished(1, 7);  // the last commit that is known
  Incarnation dying = 2, next = 4;
  for (int death = 0; death < 3; ++death, dying = next++) {
    s.ends(dying, -11).join(next);
    recover(s, 7, {1, 3}, {next});
  }
  // Whether it died before or after a commit, the survivors must tell.
  s.ends(dying, -11).join(next).report(1, 7).report(3, 7).note("known").report(next, 0, {});
  s.ends(1, 1).ends(3, 1).ends(next, 1);
  CoordinatorOptions options = three();
  options.poison = 4;
  std::optional<Outcome> o = s.run(options);
  REQUIRE(o);
  CHECK(!o->finished);
  CHECK(o->reason ==
        "a poison step: 4 failures at step 7, which was not committed. rank 1 ended with "
        "signal 11");
  CHECK(o->deaths == 4);
  CHECK(o->restarts == 4);
  CHECK(o->status == -11);
  CHECK(o->step == Step{7});
  CHECK(s.since("known")[0].find("1 <- stop: a poison step") == 0);
}

TEST_CASE("a death after a commit that only the survivors know of is not one at the step before") {
  Script s;
  begin(s);
  Incarnation dying = 2, next = 4;
  for (int step : {7, 7, 8, 8}) {
    s.ends(dying).join(next);
    recover(s, step, {1, 3}, {next});
    dying = next++;
  }
  s.note("alive").wait(1s).note("end");
  CoordinatorOptions options = three();
  options.poison = 3;
  CHECK(!s.run(options));
  CHECK(s.since("alive") == Lines{"end"});
}

TEST_CASE("deaths with commits in between are not") {
  Script s;
  begin(s);
  Incarnation dying = 2, next = 4;
  for (int step = 1; step < 9; ++step, dying = next++) {
    s.ends(dying).join(next);
    recover(s, step, {1, 3}, {next});
  }
  s.note("alive").wait(1s).note("end");
  CoordinatorOptions options = three();
  options.poison = 2;
  CHECK(!s.run(options));
  CHECK(s.since("alive") == Lines{"end"});
}

TEST_CASE("no more replacements than allowed") {
  Script s;
  begin(s);
  s.ends(2).join(4);
  recover(s, 5, {1, 3}, {4});
  s.note("recovered").ends(4, -11).note("stopped");
  s.ends(1, 1).ends(3, 1);
  CoordinatorOptions options = three();
  options.max_restarts = 1;
  std::optional<Outcome> o = s.run(options);
  REQUIRE(o);
  CHECK(o->reason == "no replacement is left (--max-restarts 1). rank 1 ended with signal 11");
  CHECK(o->restarts == 1);
  CHECK(o->deaths == 2);
}

TEST_CASE("a replacement that cannot be started counts as one that died at once") {
  Script s;
  begin(s);
  s.first_that_fails = 4;
  s.last_that_fails = 5;
  s.note("go").ends(2).note("tried").join(6);
  CHECK(!s.run(three()));
  CHECK(s.since("go") == Lines{"start 6 as rank 1 of 3, a replacement", "tried",
                               "1 <- view 2 rank 0 of 1 6/2 3", "6 <- view 2 rank 1 of 1 6/2 3",
                               "3 <- view 2 rank 2 of 1 6/2 3"});
  Script never;
  begin(never);
  never.first_that_fails = 4;
  never.ends(2).ends(1, 1).ends(3, 1);
  CoordinatorOptions options = three();
  options.max_restarts = 2;
  std::optional<Outcome> o = never.run(options);
  REQUIRE(o);
  CHECK(o->restarts == 2);
  CHECK(o->reason.find("no replacement is left (--max-restarts 2). rank 1 ended with exit status 1 "
                       "(no more processes") == 0);
}

TEST_CASE("a first worker that cannot be started is the caller's error") {
  Script s;
  s.first_that_fails = 2;
  CHECK_THROWS_AS((void)s.run(three()), CommError);
}

TEST_CASE("shrinking: fewer ranks, numbered anew, in a lineage of their own") {
  Script s;
  begin(s);
  s.note("go").ends(1).note("dead");
  recover(s, 5, {2, 3});
  s.note("on").ends(3).note("alone");
  recover(s, 9, {2});
  s.finished(2, 12).ends(2, 0);
  CoordinatorOptions options = three();
  options.max_restarts = 0;
  options.shrink = true;
  std::optional<Outcome> o = s.run(options);
  CHECK(s.since("go")[0] == "2 <- view 2 rank 0 of 2 3 lineage 1");
  CHECK(s.since("go")[1] == "3 <- view 2 rank 1 of 2 3 lineage 1");
  CHECK(s.since("on")[0] == "2 <- view 3 rank 0 of 2 lineage 2");
  REQUIRE(o);
  CHECK(o->finished);
  CHECK(o->restarts == 0);
  CHECK(o->deaths == 2);
  CHECK(o->step == Step{12});
}

TEST_CASE("shrinking ends with the last rank") {
  Script s;
  begin(s, 2);
  s.ends(1);
  recover(s, 5, {2});
  s.ends(2, -6);
  std::optional<Outcome> o = s.run({.ranks = 2, .max_restarts = 0, .shrink = true});
  REQUIRE(o);
  CHECK(!o->finished);
  CHECK(o->reason == "no replacement is left (--max-restarts 0). rank 0 ended with signal 6");
}

// ---- the end ------------------------------------------------------------------------------------

TEST_CASE("a death after Bye is not recovered, but the outcome tells of it") {
  for (int status : {0, 3, -9}) {
    Script s;
    begin(s);
    for (Incarnation w : {1, 2, 3}) s.finished(w, 10);
    s.note("bye").ends(1, 0).ends(2, status).ends(3, 0);
    std::optional<Outcome> o = s.run(three());
    REQUIRE(o);
    CHECK(s.since("bye").empty());
    CHECK(o->finished == (status == 0));
    CHECK(o->status == status);
    if (status != 0)
      CHECK(o->reason == "rank 1 ended with " +
                             std::string{status == 3 ? "exit status 3" : "signal 9"} +
                             " after the last step, when nothing is recovered any more");
  }
}

TEST_CASE("a death before Bye is, even when the others have finished") {
  Script s;
  begin(s);
  s.finished(1, 10).finished(3, 10).ends(2).join(4);
  recover(s, 10, {1, 3}, {4});
  s.note("whole");
  s.finished(1, 10).finished(3, 10).finished(4, 10).note("bye");
  s.ends(1, 0).ends(3, 0).ends(4, 0);
  std::optional<Outcome> o = s.run(three());
  REQUIRE(o);
  CHECK(o->finished);
  CHECK(o->generations == 2);
  CHECK(s.since("whole") == Lines{"1 <- bye", "4 <- bye", "3 <- bye", "bye"});
}

TEST_CASE("another train(): deaths count again, also the one of a worker that had ended badly") {
  Script s;
  begin(s);
  for (Incarnation w : {1, 2, 3}) s.finished(w, 10);
  s.note("bye").ends(2, -9).note("dead").frame(1, Kind::again, 10).note("again");
  s.frame(3, Kind::again, 10).join(4).note("joined");
  recover(s, 12, {1, 3}, {4});
  for (Incarnation w : {1, 4, 3}) s.finished(w, 20);
  s.ends(1, 0).ends(3, 0).ends(4, 0);
  std::optional<Outcome> o = s.run(three());
  REQUIRE(o);
  CHECK(s.since("bye")[0] == "dead");
  CHECK(s.since("dead")[0] == "start 4 as rank 1 of 3, a replacement");
  CHECK(s.says("4 <- view 2 rank 1 of 1 4/2 3"));
  CHECK(o->finished);
  CHECK(o->step == Step{20});
}

TEST_CASE("a replacement that asks for a Bye which was said long ago gets it") {
  Script s;
  begin(s);
  for (Incarnation w : {1, 2, 3}) s.finished(w, 10);
  for (Incarnation w : {1, 2, 3}) s.frame(w, Kind::again, 10);
  s.ends(2).join(4);
  recover(s, 10, {1, 3}, {4});
  s.note("whole").finished(4, 10).note("bye").frame(4, Kind::again, 10).wait(1s).note("end");
  CHECK(!s.run(three()));
  CHECK(s.since("whole") == Lines{"4 <- bye", "bye", "end"});
}

TEST_CASE("workers that end well before the last step are let go, if all of them do") {
  for (bool trained : {false, true}) {
    Script s;
    if (trained)
      begin(s);
    else
      s.join(1).join(2).join(3);
    s.note("go").ends(2, 0).wait(10s).ends(1, 0).wait(10s).ends(3, 0);
    std::optional<Outcome> o = s.run(three());
    REQUIRE(o);
    CHECK(o->finished);
    CHECK(o->deaths == 0);
  }
}

TEST_CASE("one that ends well while others want it stops the run") {
  std::string why =
      "rank 1 ended before the last step while others went on; break out of a training loop on "
      "all ranks or on none";
  // The others find its link broken, or finish, or die, or wait for it in a generation.
  for (int way = 0; way < 4; ++way) {
    CAPTURE(way);
    Script s;
    if (way == 3)
      s.join(1).join(2).join(3).report(1, 0);
    else
      begin(s);
    s.note("go").ends(2, 0).note("left");
    if (way == 0) s.broken(1, 1);
    if (way == 1) s.finished(1, 10);
    if (way == 2) s.ends(1, -9);
    s.note("wanted").ends(1, 1).ends(3, 1);
    std::optional<Outcome> o = s.run(three());
    REQUIRE(o);
    CHECK(!o->finished);
    CHECK(o->reason == why);
  }
}

TEST_CASE("those who do not obey a Stop within the lease are killed") {
  Script s;
  begin(s);
  s.frame(1, Kind::refused, 0, bytes_of("no")).ends(1, 1).note("stop").wait(4900ms).note("lease");
  s.wait(200ms).note("over").ends(2).ends(3);
  std::optional<Outcome> o = s.run(three());
  REQUIRE(o);
  CHECK(s.since("stop") == Lines{"lease", "kill 2", "kill 3", "over"});
  CHECK(o->reason == "rank 0: no");
}

TEST_CASE("a worker that ends badly while the run stops changes neither reason nor counts") {
  Script s;
  begin(s);
  s.frame(1, Kind::refused, 0, bytes_of("first reason")).ends(1, 4).failed(2, 0, "second reason");
  s.ends(2, 5).join(3, "9.9").ends(3, 6);
  std::optional<Outcome> o = s.run(three());
  REQUIRE(o);
  CHECK(o->reason == "rank 0: first reason");
  CHECK(o->deaths == 0);
}

}  // namespace
