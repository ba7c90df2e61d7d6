#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mend/comm/group.hpp"
#include "mend/comm/membership/messages.hpp"
#include "mend/core/clock.hpp"
#include "mend/core/error.hpp"
#include "mend/core/link.hpp"

namespace mend::comm {

//! What kill -9 is to a thread: thrown out of whatever it does, past every handler for
//! std::exception. A worker function must not catch it.
struct Killed {};

//! One thing that goes wrong, at the n-th operation of an incarnation (crash points, sends, polls).
struct Fault {
  enum class Kind : std::uint8_t { kill, stop, cut };
  Kind kind = Kind::kill;
  Incarnation who = 0;
  std::uint64_t operation = 0;
  Time span{};   //!< stop: for how long; longer than the lease makes a suspect
  int peer = 0;  //!< cut: the rank whose connection with `who` breaks
};

//! How a World behaves.
struct WorldOptions {
  bool simulated = false;  //!< one worker at a time, order and delays from the seed, virtual time
  std::uint64_t seed = 1;
  Time delay = std::chrono::milliseconds{2};  //!< longest delay of a message, simulated only
  Time lease = std::chrono::seconds{1};
  Time timeout = std::chrono::seconds{30};
  Time limit = std::chrono::hours{2};  //!< virtual time after which a run counts as hung
  std::size_t chunk_bytes = std::size_t{256} << 10;
  bool zombies = false;  //!< a suspect cannot be killed: it wakes up later and must fence itself
  std::vector<Fault> faults{};
};

//! Links, a hub and a scheduler for a cluster of threads: what networks and processes are in
//! production. In simulated mode exactly one thread runs at a time. A template so that a trainer
//! that has no use for it does not wait for its compilation.
template <Clock C>
class BasicWorld {
 public:
  explicit BasicWorld(WorldOptions options)
      : options_{std::move(options)}, random_{options_.seed} {}
  BasicWorld(const BasicWorld&) = delete;
  BasicWorld& operator=(const BasicWorld&) = delete;
  ~BasicWorld() {
    for (auto& [who, worker] : workers_)
      if (worker->thread.joinable()) worker->thread.join();
  }

  [[nodiscard]] Time now() const { return options_.simulated ? virtual_now_ : C{}.now(); }
  [[nodiscard]] const WorldOptions& options() const { return options_; }

  class WorkerLink;
  class WorkerHub;
  using Main = std::function<void(Group<WorkerLink>&)>;

  //! A record of what a run did, for tests that enumerate faults.
  struct Trace {
    Incarnation who;
    std::uint64_t operation;
    std::string point;
  };
  [[nodiscard]] const std::vector<Trace>& trace() const { return trace_; }
  [[nodiscard]] std::uint64_t operations(Incarnation who) const {
    auto it = workers_.find(who);
    return it == workers_.end() ? 0 : it->second->operations;
  }
  //! Exceptions that left worker functions, oldest first.
  [[nodiscard]] const std::vector<std::pair<Incarnation, std::exception_ptr>>& failures() const {
    return failures_;
  }

 private:
  struct Task {
    std::condition_variable wake;
    const std::function<bool()>* ready = nullptr;
    Deadline deadline = never;
    Incarnation who = 0;
  };
  struct Letter {
    Time arrival;
    Frame frame;
    Incarnation from;
  };
  struct Worker {
    Incarnation who = 0;
    int rank = 0;
    std::thread thread;
    Task task;
    std::uint64_t operations = 0;
    bool killed = false, ended = false, given_up = false, woken = false;
    int status = 0;
    Time stopped_until{};
    Time stopped_at{};
    // its end of the links
    Generation generation{};
    std::vector<Peer> peers;
    std::deque<Letter> control;
    std::map<Incarnation, std::deque<Letter>> inbox;
    std::vector<char> held;
  };

  // ---- scheduler ------------------------------------------------------------------------------

  using Lock = std::unique_lock<std::mutex>;

  std::uint64_t draw(std::uint64_t below) {  // splitmix64: the same sequence on every machine
    random_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t z = random_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return (z ^ (z >> 31)) % below;
  }

  bool runnable(const Task& t) const {
    if (t.ready == nullptr) return false;
    if (t.who != 0) {
      const Worker& w = *workers_.at(t.who);
      if (w.killed) return true;
      if (w.stopped_until > now()) return false;
    }
    return t.deadline <= now() || (*t.ready)();
  }

  //! Gives the turn to a runnable task, letting virtual time pass when there is none.
  void schedule() {
    for (;;) {
      std::vector<Task*> choice;
      for (Task* t : tasks_)
        if (runnable(*t)) choice.push_back(t);
      if (!choice.empty()) {
        turn_ = choice[draw(choice.size())];
        turn_->wake.notify_one();
        return;
      }
      if (tasks_.empty()) return;
      Time soonest = never;
      auto consider = [&](Time t) {
        if (t > virtual_now_) soonest = std::min(soonest, t);
      };
      for (Task* t : tasks_) consider(t->deadline);
      for (auto& [who, w] : workers_) {
        if (w->ended) continue;
        consider(w->stopped_until);
        if (!w->control.empty()) consider(w->control.front().arrival);
        for (auto& [from, letters] : w->inbox)
          if (!letters.empty()) consider(letters.front().arrival);
      }
      if (!hub_inbox_.empty())
        for (const auto& [arrival, event] : hub_inbox_) consider(arrival);
      if (soonest == never || soonest > options_.limit) {
        hung_ = true;  // everybody waits for something that never comes: let all of them find out
        for (Task* t : tasks_) t->deadline = virtual_now_;
        for (auto& [who, w] : workers_) w->killed = true;
        if (soonest == never) continue;  // else time goes on, so that their ends are reported
      }
      virtual_now_ = soonest;
    }
  }

  //! Waits until ready() or the deadline; false at the deadline. In simulated mode also a point at
  //! which another worker may run.
  bool wait(Lock& lock, Task& task, const std::function<bool()>& ready, Deadline deadline) {
    if (!options_.simulated) {
      auto killed = [&] { return task.who != 0 && workers_.at(task.who)->killed; };
      while (!ready() && !killed()) {
        Time n = now();
        if (n >= deadline) return false;
        task.wake.wait_for(lock, std::min<Time>(deadline - n, std::chrono::milliseconds{100}));
      }
      return true;
    }
    task.ready = &ready;
    task.deadline = deadline;
    schedule();
    task.wake.wait(lock, [&] { return turn_ == &task; });
    task.ready = nullptr;
    return ready();
  }
  void notify(Task& task) {
    if (!options_.simulated) task.wake.notify_all();
  }

  void end(Task& task) {
    std::erase(tasks_, &task);
    if (options_.simulated) schedule();
  }

  // ---- workers --------------------------------------------------------------------------------

  Time delayed(Time after_all) {
    if (!options_.simulated) return Time{};
    auto most = static_cast<std::uint64_t>(options_.delay.count());
    Time t = virtual_now_ + Time{static_cast<std::int64_t>(draw(most + 1))};
    return std::max(t, after_all);
  }

  void start(Incarnation who, int rank, int size, bool replacement);

  //! Every operation of a worker passes here: the place where it can be killed or stopped.
  void operation(Lock& lock, Worker& w, std::string_view point) {
    if (w.killed) throw Killed{};
    std::uint64_t n = w.operations++;
    if (options_.simulated) trace_.push_back({w.who, n, std::string{point}});
    for (const Fault& f : options_.faults) {
      if (f.who != w.who || f.operation != n) continue;
      if (f.kind == Fault::Kind::kill) {
        w.killed = true;
        throw Killed{};
      }
      if (f.kind == Fault::Kind::stop) {
        w.stopped_at = now();
        w.stopped_until = now() + f.span;
      }
      if (f.kind == Fault::Kind::cut && f.peer < static_cast<int>(w.peers.size()) &&
          w.peers[static_cast<std::size_t>(f.peer)].incarnation != w.who)
        cut(w.who, w.peers[static_cast<std::size_t>(f.peer)].incarnation, w.generation);
    }
    if (options_.simulated) {
      wait(lock, w.task, always, never);
    } else if (w.stopped_until > now()) {
      lock.unlock();
      std::this_thread::sleep_for(w.stopped_until - now());
      lock.lock();
    }
    if (w.killed) throw Killed{};
    if (w.stopped_at != Time{} && now() - w.stopped_at > options_.lease) {
      throw CommError{"fenced: this worker was stopped for longer than its lease",
                      {.rank = Rank{w.rank}}};
    }
    w.stopped_at = Time{};
  }

  //! Both ends learn that their connection is gone; lossy: and lose what is in flight from some
  //! point on.
  void cut(Incarnation a, Incarnation b, Generation generation, bool lossy = true) {
    for (auto [to, from] : {std::pair{a, b}, std::pair{b, a}}) {
      auto it = workers_.find(to);
      if (it == workers_.end() || it->second->ended) continue;
      auto& letters = it->second->inbox[from];
      if (lossy && !letters.empty() && options_.simulated)
        letters.resize(draw(letters.size() + 1));  // a prefix still arrives
      if (!letters.empty() && letters.back().frame.header.kind == Header::broken) continue;
      Frame broken;
      broken.header.generation = generation.value();
      letters.push_back(
          {delayed(letters.empty() ? Time{} : letters.back().arrival), std::move(broken), from});
      broken_.emplace_back(generation, from, to);
      notify(it->second->task);
    }
  }
  [[nodiscard]] bool is_cut(Generation g, Incarnation from, Incarnation to) const {
    return std::ranges::find(broken_, std::tuple{g, from, to}) != broken_.end();
  }

  void post(Worker& w, int to, Header h, ByteView payload) {
    Incarnation other = w.peers[static_cast<std::size_t>(to)].incarnation;
    auto it = workers_.find(other);
    if (it == workers_.end() || it->second->ended || is_cut(w.generation, w.who, other)) return;
    Worker& o = *it->second;
    auto& letters = o.inbox[w.who];
    Frame f;
    f.header = h;
    f.payload = Payload{payload};
    Time arrival = delayed(letters.empty() ? Time{} : letters.back().arrival);
    letters.push_back({arrival, std::move(f), w.who});
    notify(o.task);
  }

  //! The next frame that may be delivered now: control first, else a peer's of this generation.
  std::optional<Frame> take(Worker& w, bool look_only, bool& found) {
    found = false;
    if (!w.control.empty() && w.control.front().arrival <= now()) {
      found = true;
      if (look_only) return {};
      Frame f = std::move(w.control.front().frame);
      w.control.pop_front();
      return f;
    }
    std::vector<std::size_t> ranks;
    for (std::size_t r = 0; r < w.peers.size(); ++r) {
      if (w.held[r]) continue;
      auto it = w.inbox.find(w.peers[r].incarnation);
      if (it == w.inbox.end()) continue;
      while (!it->second.empty() &&
             it->second.front().frame.header.generation < w.generation.value())
        it->second.pop_front();
      if (!it->second.empty() && it->second.front().arrival <= now() &&
          it->second.front().frame.header.generation == w.generation.value())
        ranks.push_back(r);
    }
    if (ranks.empty()) return {};
    found = true;
    if (look_only) return {};
    std::size_t r = ranks[options_.simulated ? draw(ranks.size()) : w.operations % ranks.size()];
    auto& letters = w.inbox[w.peers[r].incarnation];
    Frame f = std::move(letters.front().frame);
    letters.pop_front();
    f.from = static_cast<int>(r);
    return f;
  }

  void tell_hub(Incarnation who, HubEvent event) {
    Time& last = hub_order_[who];
    last = delayed(last);
    hub_inbox_.emplace_back(last, std::move(event));
    notify(hub_task_);
  }

  void ended(Worker& w) {
    w.ended = true;
    for (auto& [who, other] : workers_)
      if (who != w.who && !other->ended) {
        bool knows = std::ranges::any_of(other->peers,
                                         [&](const Peer& p) { return p.incarnation == w.who; });
        if (knows) cut(who, w.who, other->generation, w.status != 0);
      }
    if (!w.given_up) {  // else it was reported then
      HubEvent event;
      event.who = w.who;
      event.ended = true;
      event.status = w.status;
      tell_hub(w.who, std::move(event));
    }
  }

  const std::function<bool()> always = [] { return true; };
  WorldOptions options_;
  mutable std::mutex mutex_;
  std::uint64_t random_;
  Time virtual_now_{1};
  Task* turn_ = nullptr;
  std::vector<Task*> tasks_;
  std::map<Incarnation, std::unique_ptr<Worker>> workers_;
  std::vector<std::tuple<Generation, Incarnation, Incarnation>> broken_;
  Task hub_task_;
  std::deque<std::pair<Time, HubEvent>> hub_inbox_;
  std::map<Incarnation, Time> hub_order_;
  std::vector<Trace> trace_;
  std::vector<std::pair<Incarnation, std::exception_ptr>> failures_;
  Main main_;
  bool hung_ = false;

 public:
  //! Law 11's proof: set when everybody waited for what never came, or virtual time ran out.
  [[nodiscard]] bool hung() const { return hung_; }

  //! Runs `coordinate(hub)` in this thread, which starts workers that run `main`; returns what it
  //! returns, after every worker has ended.
  template <class Coordinate>
  auto run(Main main, Coordinate&& coordinate);
};

//! The one in real time, or in its own.
using World = BasicWorld<SystemClock>;

//! A worker's link in a World.
template <Clock C>
class BasicWorld<C>::WorkerLink {
 public:
  WorkerLink(BasicWorld& world, Worker& worker) : world_{world}, worker_{worker} {}

  [[nodiscard]] Time now() const {
    if (!world_.options_.simulated) return world_.now();
    Lock lock{world_.mutex_};
    return world_.now();
  }
  void enter(Generation generation, int rank, std::span<const Peer> peers) {
    Lock lock{world_.mutex_};
    world_.operation(lock, worker_, "enter");
    worker_.generation = generation;
    worker_.rank = rank;
    worker_.peers.assign(peers.begin(), peers.end());
    worker_.held.assign(peers.size(), 0);
    for (const Peer& p : peers) {  // a peer that ended before: its connection is refused
      auto it = world_.workers_.find(p.incarnation);
      if (it != world_.workers_.end() && it->second->ended) {
        auto& letters = worker_.inbox[p.incarnation];
        Frame broken;
        broken.header.generation = generation.value();
        letters.push_back({world_.delayed(Time{}), std::move(broken), p.incarnation});
      }
    }
  }
  void post(int to, const Header& header, ByteView payload) {
    Lock lock{world_.mutex_};
    world_.operation(lock, worker_, "post");
    world_.post(worker_, to, header, payload);
  }
  [[nodiscard]] std::size_t backlog(int) const { return 0; }
  std::optional<Frame> poll(Deadline deadline, bool drain) {
    Lock lock{world_.mutex_};
    world_.operation(lock, worker_, "poll");
    bool found = false;
    if (!drain) {
      const std::function<bool()> ready = [&] {
        (void)world_.take(worker_, true, found);
        return found || worker_.woken;
      };
      world_.wait(lock, worker_.task, ready, deadline);
      if (worker_.killed) throw Killed{};
    }
    worker_.woken = false;
    return world_.take(worker_, false, found);
  }
  void hold(int rank, bool held) {
    Lock lock{world_.mutex_};
    worker_.held[static_cast<std::size_t>(rank)] = held;
  }
  void tell(const Header& header, ByteView payload) {
    Lock lock{world_.mutex_};
    world_.operation(lock, worker_, "tell");
    HubEvent event;
    event.who = worker_.who;
    event.frame.header = header;
    event.frame.payload = Payload{payload};
    world_.tell_hub(worker_.who, std::move(event));
  }
  void recycle(Payload) {}
  void wake() {
    Lock lock{world_.mutex_};
    worker_.woken = true;
    world_.notify(worker_.task);
  }
  //! Simulated time has no room for helper threads beside the one that runs.
  [[nodiscard]] bool concurrent() const { return !world_.options_.simulated; }
  void reached(std::string_view point) {
    Lock lock{world_.mutex_};
    world_.operation(lock, worker_, point);
  }

 private:
  BasicWorld& world_;
  Worker& worker_;
};
static_assert(Link<World::WorkerLink>);

//! The coordinator's side of a World.
template <Clock C>
class BasicWorld<C>::WorkerHub {
 public:
  explicit WorkerHub(BasicWorld& world) : world_{world} {}

  [[nodiscard]] Time now() const {
    Lock lock{world_.mutex_};
    return world_.now();
  }
  std::optional<HubEvent> poll(Deadline deadline) {
    Lock lock{world_.mutex_};
    const std::function<bool()> ready = [&] {
      return std::ranges::any_of(world_.hub_inbox_,
                                 [&](const auto& e) { return e.first <= world_.now(); });
    };
    if (!world_.wait(lock, world_.hub_task_, ready, deadline)) return {};
    auto at = std::ranges::find_if(world_.hub_inbox_,
                                   [&](const auto& e) { return e.first <= world_.now(); });
    HubEvent event = std::move(at->second);
    world_.hub_inbox_.erase(at);
    return event;
  }
  void tell(Incarnation who, const Header& header, ByteView payload) {
    Lock lock{world_.mutex_};
    auto it = world_.workers_.find(who);
    if (it == world_.workers_.end() || it->second->ended) return;
    Worker& w = *it->second;
    Frame f;
    f.header = header;
    f.payload = Payload{payload};
    w.control.push_back(
        {world_.delayed(w.control.empty() ? Time{} : w.control.back().arrival), std::move(f), 0});
    world_.notify(w.task);
  }
  void start(Incarnation who, int rank, int size, bool replacement) {
    Lock lock{world_.mutex_};
    world_.start(who, rank, size, replacement);
  }
  void kill(Incarnation who) {
    Lock lock{world_.mutex_};
    Worker& w = *world_.workers_.at(who);
    if (w.ended) return;
    if (world_.options_.zombies && w.stopped_until > world_.now()) {
      w.given_up = true;  // out of reach, and it must notice by itself
      HubEvent event;
      event.who = who;
      event.ended = true;
      event.status = -9;
      world_.tell_hub(who, std::move(event));
      return;
    }
    w.killed = true;
    world_.notify(w.task);
  }
  [[nodiscard]] Time last_heard(Incarnation who) const {
    Lock lock{world_.mutex_};
    const Worker& w = *world_.workers_.at(who);
    return w.stopped_until > world_.now() ? w.stopped_at : world_.now();
  }

 private:
  BasicWorld& world_;
};
static_assert(Hub<World::WorkerHub>);

template <Clock C>
void BasicWorld<C>::start(Incarnation who, int rank, int size, bool replacement) {
  auto worker = std::make_unique<Worker>();
  Worker& w = *worker;
  w.who = who;
  w.rank = rank;
  w.task.who = who;
  workers_.emplace(who, std::move(worker));
  if (options_.simulated) {
    tasks_.push_back(&w.task);
    w.task.ready = &always;
  }
  w.thread = std::thread{[this, &w, rank, size, replacement] {
    {
      Lock lock{mutex_};
      if (options_.simulated) {
        w.task.wake.wait(lock, [&] { return turn_ == &w.task; });
        w.task.ready = nullptr;
      }
    }
    int status = -9;
    try {
      Group<WorkerLink> comm{std::make_unique<WorkerLink>(*this, w),
                             {rank, size, w.who, replacement, options_.timeout}};
      comm.chunk_bytes = options_.chunk_bytes;
      comm.on_crash_point = [this, &w](const CrashPoint& p) {
        Lock lock{mutex_};
        operation(lock, w, p.name);
      };
      Join join{std::string{library_version}, {}};
      Header h;
      h.kind = static_cast<std::uint16_t>(Kind::join);
      comm.link().tell(h, encode(join));
      main_(comm);
      status = 0;
    } catch (const Killed&) {
    } catch (...) {
      status = 1;
      Lock lock{mutex_};
      failures_.emplace_back(w.who, std::current_exception());
    }
    Lock lock{mutex_};
    w.status = status;
    ended(w);
    end(w.task);
  }};
}

template <Clock C>
template <class Coordinate>
auto BasicWorld<C>::run(Main main, Coordinate&& coordinate) {
  main_ = std::move(main);
  {
    Lock lock{mutex_};
    tasks_.push_back(&hub_task_);
    turn_ = &hub_task_;
  }
  WorkerHub hub{*this};
  auto outcome = coordinate(hub);
  Lock lock{mutex_};
  // Whoever is left is ended now, as a launcher would.
  for (auto& [who, w] : workers_) {
    if (!w->ended) w->killed = true;
    notify(w->task);
  }
  end(hub_task_);
  lock.unlock();
  for (auto& [who, w] : workers_)
    if (w->thread.joinable()) w->thread.join();
  return outcome;
}

}  // namespace mend::comm
