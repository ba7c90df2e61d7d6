#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mend/comm/membership/messages.hpp"
#include "mend/config.hpp"
#include "mend/core/hash.hpp"
#include "mend/core/link.hpp"
#include "mend/core/step.hpp"
#include "mend/trace/event.hpp"

namespace mend::comm {

//! What a run may spend on going on.
struct CoordinatorOptions {
  int ranks = 1;
  int max_restarts = 16;  //!< replacements in the whole run
  bool shrink = false;  //!< when none is left: go on with fewer ranks (not the same bits any more)
  int poison = 4;       //!< deaths at one step, with no commit in between, that stop the run
  Time lease = std::chrono::seconds{5};      //!< a worker silent for longer is killed and replaced
  Time timeout = std::chrono::seconds{300};  //!< longest start of a worker, longest lambda
  Time grace =
      std::chrono::milliseconds{500};  //!< how long a broken link may wait for the death behind it
};

//! How a run ended.
struct Outcome {
  bool finished = false;
  std::string reason{};  //!< why not
  int status = 0;        //!< exit status of the worker that caused it: n, or -signal; 0 unknown
  int restarts = 0;
  int deaths = 0;
  std::uint32_t generations = 0;
  Step step{};  //!< the last one known to be committed
};

//! The session protocol's membership service (docs/protocol.md), over any Hub:
//! Collect -> Plan -> Feed -> Run, one generation after the other. Runs in one thread; run() blocks
//! until all workers have ended.
template <Hub H>
class Coordinator {
 public:
  Coordinator(H& hub, CoordinatorOptions options) : hub_{hub}, options_{options} {}

  //! Everything that it sees and decides, for progress lines and timelines.
  std::function<void(const trace::Event&)> on_event{};

  Outcome run() {
    if (options_.ranks < 1) {
      outcome_.reason = "a run needs at least one rank";
      return outcome_;
    }
    ranks_ = options_.ranks;
    for (int r = 0; r < ranks_; ++r) {
      members_.emplace_back();
      start_member(members_.back(), r, true);
    }
    while (!over()) {
      std::optional<HubEvent> event = hub_.poll(next_deadline());
      if (event) take(*event);
      judge();
      advance();
    }
    outcome_.generations = generation_.value();
    return outcome_;
  }

 private:
  enum class Phase : std::uint8_t { Gather, Collect, Plan, Feed, Run };

  struct Member {
    Incarnation who = 0;
    int rank = 0;
    Incarnation heir_of = 0;  //!< the first in its place, whose name its per-rank copies bear
    std::string address{};
    bool joined = false, gone = false, killed = false, failed = false, left = false;
    int status = 0;
    Time started{}, failed_at{}, killed_at{};
    std::optional<Report> report{};
    Step reported{};
    std::optional<Bytes> ready{};
    Step ready_at{};
    std::optional<Step> finished{};
    bool bye = false;

    [[nodiscard]] bool dying() const { return killed && !gone; }
  };

  // ---- events ----------------------------------------------------------------------------------

  void take(const HubEvent& e) {
    Member* m = find(e.who);
    if (m == nullptr) return;  // an incarnation that was given up
    if (e.ended) return died(*m, e.status);
    const Header& h = e.frame.header;
    ByteView payload = e.frame.payload.view();
    try {
      take(*m, static_cast<Kind>(h.kind), h, payload);
    } catch (const CommError& error) {
      stop("rank " + std::to_string(m->rank) +
           " sent a message that cannot be read: " + error.what());
    }
  }

  void take(Member& m, Kind kind, const Header& h, ByteView payload) {
    if (kind == Kind::join) {
      Join join = decode_join(payload);
      if (join.version != library_version)
        return stop("rank " + std::to_string(m.rank) + " was built from mend " + join.version +
                    ", the launcher from " + std::string{library_version} +
                    "; rebuild one of them");
      m.address = join.address;
      m.joined = true;
      trace(trace::EventKind::replacement, "joined", &m);
      return;
    }
    if (kind == Kind::again) {
      m.bye = false;
      return;
    }
    if (kind == Kind::refused || kind == Kind::failed) note_commit(Step{h.step});
    if (kind == Kind::refused)
      return stop("rank " + std::to_string(m.rank) + ": " +
                  std::string{reinterpret_cast<const char*>(payload.data()), payload.size()});
    if (kind == Kind::failed) {
      // Its process may need a moment to end; it gets as long as a lease, then it is killed.
      m.failed = true;
      m.failed_at = hub_.now();
      const std::string text{reinterpret_cast<const char*>(payload.data()), payload.size()};
      failure_ = "rank " + std::to_string(m.rank) + " threw at step " + std::to_string(h.step) +
                 (text.empty() ? "" : ": " + text);
      // The same on every rank is no accident, and beginning anew would only lead there again.
      const std::string what = text.substr(0, text.rfind(" (on rank "));  // which differs
      threw_[m.rank] = {h.step, what};
      if (members_.size() > 1 && threw_.size() == members_.size() && !what.empty() &&
          std::ranges::all_of(threw_, [&](const auto& t) { return t.second == threw_[m.rank]; }))
        stop("all ranks threw at step " + std::to_string(h.step) + ": " + what);
      return;
    }
    if (h.generation != generation_.value()) return;  // of an older generation: no effect
    switch (kind) {
      case Kind::report:
        if (phase_ == Phase::Collect) {
          m.report = decode_report(payload);
          m.reported = Step{h.step};
        }
        break;
      case Kind::progress:
        note_commit(Step{h.step});
        phase_deadline_ = after(hub_.now(), phase_limit());
        break;
      case Kind::ready:
        m.ready = Bytes{payload.begin(), payload.end()};
        m.ready_at = Step{h.step};
        break;
      case Kind::finished:
        m.finished = Step{h.step};
        note_commit(Step{h.step});
        if (bye_ && *m.finished <= *bye_) {
          tell(m, Kind::bye);
          m.finished.reset();
        }
        break;
      case Kind::broken_link:
        // It is in a step (what the payload says) that another rank was not asked for.
        for (const Member& other : members_)
          if (!payload.empty() && payload[0] != std::byte{} && phase_ == Phase::Run &&
              other.finished == Step{h.step} && &other != &m)
            return stop("rank " + std::to_string(other.rank) + " had its last step at step " +
                        std::to_string(h.step) + " and rank " + std::to_string(m.rank) +
                        " goes on; give train() or next() the same last step on all ranks");
        if (!broken_)
          broken_ = Broken{m.who, h.tag < members_.size() ? members_[h.tag].who : 0, hub_.now()};
        break;
      default: break;
    }
  }

  void died(Member& m, int status) {
    if (m.gone) return;
    m.gone = true;
    m.status = status;
    if (stopping_ || m.bye) return;  // open_if_needed looks again when others go on after Bye
    if (status == 0 && !m.killed && !m.failed) {
      m.left = true;  // it ended on purpose before the last step: nobody is put in its place
      return;
    }
    count_death(m);
  }
  void count_death(const Member& m) {
    ++outcome_.deaths;
    deaths_new_ = std::max(deaths_new_, ++struck_[m.rank]);  // those at one time count as one
    last_death_ = "rank " + std::to_string(m.rank) + " ended with " + describe(m.status);
    outcome_.status = m.status;
    trace(trace::EventKind::death, "death", &m, describe(m.status));
  }

  // ---- judging ---------------------------------------------------------------------------------

  void judge() {
    Time now = hub_.now();
    for (Member& m : members_) {
      if (m.gone || m.killed) continue;
      bool silent = m.joined && !m.bye && now - hub_.last_heard(m.who) > options_.lease;
      bool late = !m.joined && now - m.started > options_.timeout;
      bool dragging = m.failed && now - m.failed_at > options_.lease;
      if (silent) suspect(m, "silent for longer than its lease: killed");
      if (late && !silent) suspect(m, "did not join in time: killed");
      if (dragging && !silent && !late) suspect(m, "threw and did not end: killed");
    }
    for (Member& m : members_)
      if (m.dying() && now - m.killed_at > options_.timeout) {
        m.gone = true;  // stuck in the kernel, say: nobody waits for it any longer
        stop("rank " + std::to_string(m.rank) + " was killed and does not end");
      }
    if (stopping_ && now > stop_deadline_) {
      stop_deadline_ = after(now, options_.lease);
      for (Member& m : members_)
        if (!m.gone && !m.killed) suspect(m, "did not end when the run stopped: killed");
    }
    if (now <= phase_deadline_) return;
    phase_deadline_ = after(now, phase_limit());
    if (phase_ == Phase::Run &&
        std::ranges::any_of(members_, [](const Member& m) { return !m.bye && !m.gone; }))
      return stop("no step was committed within " + seconds(phase_limit()) + " after step " +
                  std::to_string(committed_.value()) +
                  ": a step function hangs, or --timeout is too short for it");
    // Survivors wait for copies of the new members' state: those go first.
    bool starved = phase_ == Phase::Feed && std::ranges::any_of(members_, [](const Member& m) {
                     return !m.ready && !m.report->has_state;
                   });
    for (Member& m : members_) {
      bool silent =
          (phase_ == Phase::Collect && !m.report) ||  // it hears us, but its lambda never ends
          (phase_ == Phase::Plan && !m.ready && m.report->has_state) ||
          (phase_ == Phase::Feed && !m.ready && !(starved && m.report->has_state));
      if (silent && !m.gone && !m.killed)
        suspect(m, phase_ == Phase::Collect ? "its step function does not end: killed"
                                            : "its recovery does not end: killed");
    }
  }

  void suspect(Member& m, std::string why) {
    m.killed = true;
    m.killed_at = hub_.now();
    trace(trace::EventKind::death, "suspect", &m, std::move(why));
    hub_.kill(m.who);
  }

  Deadline next_deadline() const {
    Deadline d = never;
    for (const Member& m : members_) {
      if (m.gone || m.killed) continue;
      if (m.joined && m.bye) continue;
      d = std::min(d, m.joined ? after(hub_.last_heard(m.who), options_.lease)
                               : after(m.started, options_.timeout));
      if (m.failed) d = std::min(d, after(m.failed_at, options_.lease));
    }
    if (stopping_) d = std::min(d, stop_deadline_);
    if (broken_ && !stopping_ && std::ranges::none_of(members_, &Member::dying))
      d = std::min(d, after(broken_->at, options_.grace));
    if (phase_ != Phase::Gather) d = std::min(d, phase_deadline_);
    for (const Member& m : members_)
      if (m.dying()) d = std::min(d, after(m.killed_at, options_.timeout));
    return d == never ? d : d + std::chrono::milliseconds{1};
  }

  // ---- phases ----------------------------------------------------------------------------------

  void advance() {
    if (stopping_) return;
    if (open_if_needed()) return;
    switch (phase_) {
      case Phase::Gather:
        if (all([](const Member& m) { return m.joined; })) open();
        break;
      case Phase::Collect:
        if (all([](const Member& m) { return m.report.has_value(); })) make_plan();
        break;
      case Phase::Plan:
        if (all([](const Member& m) { return m.ready || !m.report->has_state; })) {
          if (!same_bits()) return;  // else a replacement would be fed from both
          phase(Phase::Feed);
          for (Member& m : members_)
            m.ready.reset();  // each says so again once partners have its copies
          tell_all(Kind::feed);
          trace(trace::EventKind::recovery, "feed");
          advance();
        }
        break;
      case Phase::Feed:
        if (all([](const Member& m) { return m.ready.has_value(); })) go();
        break;
      case Phase::Run:
        if (all([](const Member& m) { return m.finished.has_value(); })) {
          bye_ = std::min_element(
                     members_.begin(), members_.end(),
                     [](const Member& a, const Member& b) { return *a.finished < *b.finished; })
                     ->finished;
          for (Member& m : members_) m.bye = true;
          tell_all(Kind::bye);
          trace(trace::EventKind::commit, "bye");
          for (Member& m : members_) m.finished.reset();
        }
        break;
    }
  }

  //! Replaces the dead, answers broken links; true when a new generation is under way.
  bool open_if_needed() {
    // Reap first: a replacement starts after the one before it has ended.
    if (std::ranges::any_of(members_, &Member::dying)) return true;
    if (std::ranges::any_of(members_, [](const Member& m) { return !m.gone && !m.bye; }))
      for (Member& m : members_)
        if (m.gone && m.bye) {  // others began another train(): its end matters after all
          m.bye = false;
          if (m.status == 0)
            m.left = true;
          else
            count_death(m);
        }
    if (std::ranges::any_of(members_, &Member::left)) {
      bool others_wait =
          broken_ || std::ranges::any_of(members_, [this](const Member& m) {
            return !m.left && (m.gone || m.finished || (m.report && phase_ != Phase::Run));
          });
      if (others_wait) {
        const Member& m = *std::ranges::find_if(members_, &Member::left);
        stop("rank " + std::to_string(m.rank) +
             (m.joined
                  ? " ended before the last step while others went on; break out of a training "
                    "loop on all ranks or on none"
                  : " ended without having joined, and others wait for it; each rank calls "
                    "mend::comm::join_tcp() and trains"));
      }
      return true;
    }
    std::vector<Member*> dead;
    for (Member& m : members_)
      if (m.gone && !m.bye) dead.push_back(&m);
    if (dead.empty()) {
      if (!broken_ || hub_.now() < after(broken_->at, options_.grace)) return false;
      Broken b = *broken_;
      broken_.reset();
      std::pair<Incarnation, Incarnation> link = std::minmax(b.who, b.peer);
      if (std::exchange(last_broken_, link) == link && b.peer != 0)
        suspect(
            *find(b.peer),
            "its connection with a peer broke twice: killed");  // the same link again: one end goes
      else
        gather();
      return true;
    }
    broken_.reset();
    if (phase_ == Phase::Plan || phase_ == Phase::Feed) place_deaths();
    if (poisoned(std::max(deaths_at_[committed_.value()], deaths_new_))) return true;
    for (Member* m : dead) {
      int rank = m->rank;
      Incarnation heir_of = m->heir_of;
      while (m->gone && outcome_.restarts < options_.max_restarts) {
        ++outcome_.restarts;
        *m = Member{};
        start_member(*m, rank, generation_.value() == 0);
        if (generation_.value() > 0) m->heir_of = heir_of;
      }
      if (!m->gone) continue;
      if (options_.shrink && std::ranges::any_of(members_, [](const Member& x) { return !x.gone; }))
        continue;
      stop("no replacement is left (--max-restarts " + std::to_string(options_.max_restarts) +
           "). " + (failure_.empty() ? last_death_ : failure_));
      return true;
    }
    std::size_t before = members_.size();
    std::erase_if(members_, [](const Member& m) { return m.gone; });
    if (members_.size() != before) {
      ++lineage_;
      for (std::size_t i = 0; i < members_.size(); ++i) members_[i].rank = static_cast<int>(i);
    }
    gather();
    return true;
  }

  //! Whether the deaths of Run came before or after the last commit, Reports tell.
  void place_deaths() {
    deaths_at_[committed_.value()] += std::exchange(deaths_new_, 0);
    struck_.clear();
    threw_.clear();
  }

  bool poisoned(int deaths) {
    if (deaths < options_.poison) return false;
    std::string why = failure_.empty() ? last_death_ : failure_;
    stop(trained_ ? "a poison step: " + std::to_string(deaths) + " failures at step " +
                        std::to_string(committed_.value()) + ", which was not committed. " + why
                  : std::to_string(deaths) +
                        " workers ended before the first step began; their own output may say "
                        "why. " +
                        why);
    return true;
  }

  //! A new generation opens when all its members have joined.
  void gather() {
    phase(Phase::Gather);
    if (all([](const Member& m) { return m.joined; })) open();
  }

  void open() {
    bool first = generation_.value() == 0;
    generation_ = generation_.next();
    if (++generations_here_ > 4 * options_.poison)
      return stop(std::to_string(generations_here_) + " generations without a commit after step " +
                  std::to_string(committed_.value()) +
                  ": workers cannot keep their connections with each other");
    phase(Phase::Collect);
    broken_.reset();
    View view;
    view.generation = generation_;
    view.lineage = lineage_;
    view.first = first;
    for (Member& m : members_) {
      m.report.reset();
      m.ready.reset();
      m.finished.reset();
      view.peers.push_back({m.who, m.address, m.heir_of});
    }
    for (Member& m : members_) {
      view.rank = m.rank;
      tell(m, Kind::view, encode(view));
    }
    trace(trace::EventKind::view, "view", nullptr, std::to_string(members_.size()) + " members");
  }

  void make_plan() {
    if (!schemas_agree()) return;
    std::optional<Step> target;
    for (const Member& m : members_)
      if (m.report->has_state) {
        Step reach = m.report->all_reduced ? m.reported.next() : m.reported;
        target = target ? std::max(*target, reach) : reach;
      }
    for (const Member& m : members_)
      if (!trained_ && m.report->has_state && m.reported != *target)
        return stop("rank " + std::to_string(m.rank) + " begins at step " +
                    std::to_string(m.reported.value()) + " and another rank at step " +
                    std::to_string(target->value()) + "; load files of one step on all ranks");
    Plan plan;
    bool lost = false;
    if (target) {
      for (const Member& m : members_) {
        if (!m.report->has_state) {
          lost = lost || m.report->alone || !holders_of_copies(m, *target, plan);
        } else if (m.reported == *target) {
          plan.sources.push_back(m.rank);
        } else if (m.report->all_reduced) {
          plan.sources.push_back(m.rank);
          plan.bucket_holders.push_back(m.rank);
        } else {
          ++plan.bucket_fetchers;
        }
      }
    }
    if (lost && std::ranges::all_of(members_, [](const Member& m) { return m.report->restores; })) {
      plan = {};
      target.reset();  // all go back to a checkpoint
    } else if (lost) {
      return stop(
          "the per-rank state of a dead rank was lost together with all its copies, at step " +
          std::to_string(target->value()) + "; PerRank{.copies = 2} survives two deaths at once. " +
          last_death_);
    }
    plan.restore = !target;
    target_ = plan.restore ? members_.front().reported : *target;
    if (plan.restore)
      for (const Member& m : members_)
        if (m.reported != target_ && !m.report->restores)
          return stop(
              "all members that held the state died, and their replacements begin at "
              "different steps: rank " +
              std::to_string(m.rank) + " at step " + std::to_string(m.reported.value()) +
              ", rank " + std::to_string(members_.front().rank) + " at step " +
              std::to_string(target_.value()) + "; load files of one step on all ranks");
    // What a member reports as its step it has committed; a target above may still be taken back
    // when those who reach it die before they pass it on.
    for (const Member& m : members_)
      if (m.report->has_state) note_commit(m.reported);
    place_deaths();
    if (poisoned(deaths_at_[committed_.value()])) return;
    if (plan.restore) {
      committed_ = outcome_.step = target_;
      bye_.reset();
    }
    if (!plan.restore && target_ < committed_)
      return stop("a committed step would be lost: step " + std::to_string(committed_.value()) +
                  " was committed and nobody holds it");
    restore_ = plan.restore;
    phase(Phase::Plan);
    for (Member& m : members_) tell(m, Kind::plan, encode(plan), target_);
    if (restore_)
      for (Member& m : members_) m.report->has_state = true;  // each restores by itself
    trace(trace::EventKind::plan, restore_ ? "restore" : "plan");
  }

  bool holders_of_copies(const Member& m, Step target, Plan& plan) const {
    int wanted = 0;
    for (const Member& o : members_) wanted = std::max(wanted, o.report->copies_wanted);
    if (wanted == 0 || target == Step{0}) return true;
    std::vector<int> holders;
    for (const Member& o : members_)
      for (const auto& [whose, versions] : o.report->copies)
        if (whose == m.heir_of && std::ranges::find(versions, target.value()) != versions.end())
          holders.push_back(o.rank);
    plan.copy_holders.emplace_back(m.rank, holders);
    return !holders.empty();
  }

  bool schemas_agree() {
    for (const Member& m : members_) {
      const std::string& schema = m.report->schema;
      if (schema.empty()) continue;  // said before, by the same process
      if (schema_.empty()) {
        schema_ = schema;
        schema_rank_ = m.rank;
      }
      if (schema == schema_) continue;
      std::string_view a{schema_}, b{schema};
      while (true) {
        std::string_view x = a.substr(0, a.find('\n')), y = b.substr(0, b.find('\n'));
        if (x != y || (a.empty() && b.empty())) {
          stop("ranks registered different state: rank " + std::to_string(schema_rank_) + " has " +
               (x.empty() ? "nothing more" : std::string{x}) + " where rank " +
               std::to_string(m.rank) + " has " + (y.empty() ? "nothing more" : std::string{y}));
          return false;
        }
        a = a.find('\n') == a.npos ? std::string_view{} : a.substr(a.find('\n') + 1);
        b = b.find('\n') == b.npos ? std::string_view{} : b.substr(b.find('\n') + 1);
      }
    }
    return true;
  }

  //! Of those who are Ready; else it is over.
  bool same_bits() {
    const Member* first = nullptr;
    for (const Member& m : members_) {
      if (!m.ready) continue;
      if (first == nullptr) first = &m;
      if (*m.ready == *first->ready) continue;
      stop(std::string{generation_.value() == 1 ? "initial values differ" : "replicas diverged"} +
           ": rank " + std::to_string(m.rank) + " and rank " + std::to_string(first->rank) +
           " hold different bits at step " + std::to_string(target_.value()) +
           first_difference(*first->ready, *m.ready) +
           (generation_.value() == 1 ? "; derive initial values from one seed on all ranks" : ""));
      return false;
    }
    return true;
  }

  void go() {
    if (!same_bits()) return;
    if (restore_) {  // to what the members found, which the coordinator does not know
      target_ = members_.front().ready_at;
      for (const Member& m : members_)
        if (m.ready_at != target_)
          return stop("rank " + std::to_string(m.rank) + " restored step " +
                      std::to_string(m.ready_at.value()) + " and rank " +
                      std::to_string(members_.front().rank) + " step " +
                      std::to_string(target_.value()));
      committed_ = outcome_.step = target_;
    }
    const Bytes& first = *members_.front().ready;
    if (target_ == Step{0}) {
      if (!initial_hash_) initial_hash_ = first;
      if (restore_ && *initial_hash_ != first)
        return stop(
            "all members that held the state died, and their replacements start from other "
            "initial values; derive them from one seed, or add a checkpointer");
    }
    trained_ = true;
    note_commit(target_);
    phase(Phase::Run);
    tell_all(Kind::go);
    trace(trace::EventKind::recovery, "go");
  }

  //! Ready carries one Hash128 per schema line, in its order, and the whole state's last.
  std::string first_difference(const Bytes& a, const Bytes& b) const {
    std::string_view rest{schema_};
    for (std::size_t at = 0; at + 2 * sizeof(Hash128) <= std::min(a.size(), b.size());
         at += sizeof(Hash128)) {
      std::string_view line = rest.substr(0, rest.find('\n'));
      rest = rest.find('\n') == rest.npos ? std::string_view{} : rest.substr(rest.find('\n') + 1);
      if (std::memcmp(a.data() + at, b.data() + at, sizeof(Hash128)) != 0)
        return ", first in " + std::string{line};
    }
    return {};
  }

  // ---- the end ---------------------------------------------------------------------------------

  void stop(std::string reason) {
    if (stopping_) return;
    stopping_ = true;
    outcome_.reason = std::move(reason);
    stop_deadline_ = after(hub_.now(), options_.lease);
    for (Member& m : members_)
      if (!m.gone) tell(m, Kind::stop, std::as_bytes(std::span{outcome_.reason}));
    trace(trace::EventKind::stop, "stop", nullptr, outcome_.reason);
  }

  bool over() {
    if (!std::ranges::all_of(members_, &Member::gone)) return false;
    if (stopping_) return true;
    if (std::ranges::any_of(members_, [](const Member& m) { return !m.bye && !m.left; }))
      return false;
    auto bad = std::ranges::find_if(members_, [](const Member& m) { return m.status != 0; });
    outcome_.finished = bad == members_.end();
    outcome_.status = outcome_.finished ? 0 : bad->status;
    if (!outcome_.finished)
      outcome_.reason = "rank " + std::to_string(bad->rank) + " ended with " +
                        describe(bad->status) +
                        " after the last step, when nothing is recovered any more";
    return true;
  }

  // ---- small parts -----------------------------------------------------------------------------

  void start_member(Member& m, int rank, bool initial) {
    m.who = ++last_incarnation_;
    m.heir_of = m.who;
    m.rank = rank;
    m.started = hub_.now();
    trace(trace::EventKind::replacement, initial ? "start" : "replacement", &m);
    try {
      hub_.start(m.who, rank, ranks_, !initial);
    } catch (const CommError& e) {
      if (initial) throw;  // nothing runs yet: the caller learns why at once
      m.gone = true;       // one restart that failed; the others go on
      m.status = 1;
      count_death(m);
      last_death_ += std::string{" ("} + e.what() + ")";
    }
  }

  Member* find(Incarnation who) {
    auto at = std::ranges::find(members_, who, &Member::who);
    return at == members_.end() ? nullptr : &*at;
  }
  template <class P>
  [[nodiscard]] bool all(P&& p) const {
    return std::ranges::all_of(members_, p);
  }
  void phase(Phase p) {
    phase_ = p;
    phase_deadline_ = after(hub_.now(), phase_limit());
  }
  //! How long a phase may last without a sign of progress; a step may take a lambda and a recovery.
  [[nodiscard]] Time phase_limit() const {
    return phase_ == Phase::Run ? 2 * options_.timeout : options_.timeout;
  }
  static std::string seconds(Time t) {
    auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(t).count();
    return ms < 10'000 && ms % 1000 != 0 ? std::to_string(ms) + " ms"
                                         : std::to_string(ms / 1000) + " s";
  }
  void note_commit(Step s) {
    if (s <= committed_) return;
    generations_here_ = 0;
    if (phase_ == Phase::Run && !broken_) last_broken_.reset();
    committed_ = s;
    outcome_.step = s;
  }
  void tell(const Member& m, Kind kind, ByteView payload = {}, Step step = {}) {
    if (m.gone) return;
    Header h;
    h.kind = static_cast<std::uint16_t>(kind);
    h.generation = generation_.value();
    h.step = step.value();
    hub_.tell(m.who, h, payload);
  }
  void tell_all(Kind kind) {
    for (const Member& m : members_) tell(m, kind, {}, target_);
  }
  void trace(trace::EventKind kind, std::string_view name, const Member* m = nullptr,
             std::string text = {}) {
    if (!on_event) return;
    trace::Event e;
    e.time = hub_.now();
    e.kind = kind;
    e.name = name;
    e.generation = generation_;
    e.step = m != nullptr ? committed_ : target_;
    if (m != nullptr) e.rank = Rank{m->rank};
    e.text = std::move(text);
    on_event(e);
  }
  static std::string describe(int status) {
    return status < 0 ? "signal " + std::to_string(-status)
                      : "exit status " + std::to_string(status);
  }

  struct Broken {
    Incarnation who;
    Incarnation peer;  // 0: unknown
    Time at;
  };

  H& hub_;
  CoordinatorOptions options_;
  Outcome outcome_{};
  int ranks_ = 0;
  std::vector<Member> members_;
  Incarnation last_incarnation_ = 0;
  Generation generation_{};
  std::uint32_t lineage_ = 0;
  Phase phase_ = Phase::Gather;
  Time phase_deadline_ = never;
  Step target_{}, committed_{};
  bool restore_ = false, trained_ = false;  // trained_: there was a Go
  int generations_here_ = 0;                // since the last commit
  std::map<std::int64_t, int> deaths_at_;   // by step; a run that began anew comes there again
  std::map<int, int> struck_;               // deaths by rank, since the last Plan
  std::map<int, std::pair<std::int64_t, std::string>> threw_;  // by rank, since then: step, text
  int deaths_new_ = 0;                                         // the most of any rank
  std::optional<Broken> broken_;
  std::optional<std::pair<Incarnation, Incarnation>> last_broken_;
  std::optional<Step> bye_;
  std::optional<Bytes> initial_hash_;
  std::string schema_{};
  int schema_rank_ = 0;
  bool stopping_ = false;
  Time stop_deadline_ = never;
  std::string failure_{}, last_death_{};
};

}  // namespace mend::comm
