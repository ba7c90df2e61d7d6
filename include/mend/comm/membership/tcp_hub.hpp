#pragma once

#include <signal.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mend/comm/lobby.hpp"
#include "mend/comm/membership/environment.hpp"
#include "mend/comm/membership/messages.hpp"
#include "mend/comm/membership/output.hpp"
#include "mend/comm/membership/process.hpp"
#include "mend/comm/socket.hpp"
#include "mend/comm/stream.hpp"
#include "mend/comm/wire.hpp"
#include "mend/core/clock.hpp"
#include "mend/core/error.hpp"
#include "mend/core/link.hpp"

namespace mend::comm {

struct TcpHubOptions {
  std::vector<std::string> argv{};   //!< the program that every worker runs, and its arguments
  Process::Variables environment{};  //!< on top of this process's own
  std::string bind = "127.0.0.1";
  std::uint16_t port = 0;                    //!< 0: any free one
  std::string token{};                       //!< empty: a random one
  Time lease = std::chrono::seconds{5};      //!< a worker is suspect after this much silence
  Time timeout = std::chrono::seconds{300};  //!< passed on to the workers
  int out = 1, err = 2;                      //!< where the workers' lines go; -1: nowhere
  //! Signals that end the run: poll() throws RunStopped. They are blocked in the calling thread.
  std::vector<int> stop_signals{};
};

//! The coordinator's side over TCP and processes of this machine: a Hub. One thread, one poll loop
//! over the listener, the workers' connections, their ends and their output.
//!
//! Construct, use and destroy it in one thread that lives as long as the run: a worker is killed by
//! the kernel when the thread that started it ends. The destructor kills and reaps what still runs.
class TcpHub {
 public:
  //! Throws CommError when the address is in use or cannot be had.
  explicit TcpHub(TcpHubOptions options)
      : options_{std::move(options)},
        signals_{options_.stop_signals},
        lobby_{{options_.bind, options_.port}, std::chrono::seconds{5}, false},
        out_{options_.out},
        err_{options_.err} {
    if (options_.token.empty()) options_.token = random_token();
    if (options_.token.size() > wire::token_limit)
      throw OptionError{"a token has at most " + std::to_string(wire::token_limit) + " bytes"};
    if (options_.lease < std::chrono::milliseconds{1})
      throw OptionError{"a lease is at least 1 ms"};
    Address here = lobby_.address();
    // Workers are started on this machine, so that loopback reaches a listener on all interfaces.
    address_ = here.any() ? Address{"127.0.0.1", here.port()}.text() : here.text();
    looked_ = clock_.now();
  }
  TcpHub(const TcpHub&) = delete;
  TcpHub& operator=(const TcpHub&) = delete;
  ~TcpHub() {
    try {
      stop(Time{0});
    } catch (const Error&) {  // no memory to poll: the processes' own destructors end them
    }
  }

  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] Time now() const { return clock_.now(); }

  //! Blocks until the program runs; throws CommError when it cannot be run.
  void start(Incarnation who, int rank, int size, bool replacement) {
    WorkerEnvironment e{address_,    rank,           size,           who,
                        replacement, options_.token, options_.lease, options_.timeout};
    Process::Variables variables = options_.environment;
    for (auto& v : e.variables()) variables.push_back(std::move(v));
    auto [at, added] = workers_.try_emplace(who, Process{options_.argv, variables}, rank);
    if (!added) throw CommError{"incarnation " + std::to_string(who) + " was started before"};
    at->second.heard = clock_.now();
  }

  std::optional<HubEvent> poll(Deadline deadline) {
    for (bool last = false; events_.empty();) {
      if (last) return {};
      last = clock_.now() >= deadline;
      turn(deadline);
    }
    HubEvent e = std::move(events_.front());
    events_.pop_front();
    return e;
  }

  //! Copies. Forgotten when the worker has not joined, or not any more.
  void tell(Incarnation who, const Header& header, ByteView payload) {
    auto at = workers_.find(who);
    if (at == workers_.end() || !at->second.line.open()) return;
    Worker& w = at->second;
    w.line.queue(header, payload);
    send(w);
  }

  void kill(Incarnation who) {
    auto at = workers_.find(who);
    if (at != workers_.end()) at->second.process.signal(SIGKILL);
  }

  [[nodiscard]] Time last_heard(Incarnation who) const {
    auto at = workers_.find(who);
    return at == workers_.end() ? clock_.now() : at->second.heard;
  }

  //! Ends all workers: SIGTERM, and SIGKILL for those that still run after `grace` or at the next
  //! stop signal; reaps them and writes what they wrote.
  void stop(Time grace) {
    for (auto& [who, w] : workers_) {
      w.process.signal(grace > Time{0} ? SIGTERM : SIGKILL);
      w.process.signal(SIGCONT);
    }
    Deadline kill_at = after(clock_.now(), grace),
             give_up = after(kill_at, std::chrono::seconds{10});
    bool killed = grace == Time{0};
    int seen = signals_.count;
    while (!workers_.empty() && clock_.now() < give_up) {
      if (!killed && (clock_.now() >= kill_at || signals_.count > seen)) {
        for (auto& [who, w] : workers_) w.process.signal(SIGKILL);
        killed = true;
      }
      look(killed ? give_up : kill_at);
      events_.clear();
    }
    for (Deadline deadline = after(clock_.now(), std::chrono::seconds{1});
         !(out_.empty() && err_.empty()) && clock_.now() < deadline;)
      look(deadline);
  }
  //! The stop signal that came, or 0.
  [[nodiscard]] int stopped_by() const { return signals_.last; }

  //! Writes a line of the launcher's own, without blocking.
  void note(std::string_view text) {
    err_.put("mendrun: " + std::string{text} + "\n", clock_.now());
    err_.flush(clock_.now());
  }

  //! The processes that run, by rank.
  [[nodiscard]] std::map<int, int> pids() const {
    std::map<int, int> all;
    for (const auto& [who, w] : workers_)
      if (w.process.pid() > 0) all[w.rank] = w.process.pid();
    return all;
  }

  //! Connections that were dropped because they were no worker's.
  [[nodiscard]] std::size_t strays() const { return lobby_.strays(); }

 private:
  struct Worker {
    Worker(Process p, int r) : process{std::move(p)}, rank{r} {}

    Process process;
    int rank;
    Stream line{};
    bool joined = false;  // once; a process joins once
    bool more = false;    // frames are waiting in the line without the socket being readable
    Time heard{};
    Lines out{}, err{};
  };

  //! Holds signals back from this thread and makes them readable.
  struct StopSignals {
    explicit StopSignals(const std::vector<int>& numbers) {
      sigset_t set;
      sigemptyset(&set);
      for (int n : numbers) sigaddset(&set, n);
      if (!numbers.empty()) {
        fd = Descriptor{::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC)};
        if (!fd) throw CommError{"no signalfd", {.code = errno}};
      }
      ::pthread_sigmask(SIG_BLOCK, &set, &before);
    }
    StopSignals(const StopSignals&) = delete;
    StopSignals& operator=(const StopSignals&) = delete;
    ~StopSignals() {
      take();  // or they would take effect now, after they had it
      ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
    void take() {
      signalfd_siginfo info;
      while (fd && ::read(fd.get(), &info, sizeof info) == sizeof info) {
        last = static_cast<int>(info.ssi_signo);
        ++count;
      }
    }

    sigset_t before;
    Descriptor fd{};
    int last = 0;
    int count = 0;
  };

  //! Who ignores SIGCHLD, as a process started by such a one does, never learns how its children
  //! end.
  struct ChildSignals {
    ChildSignals() {
      ::sigaction(SIGCHLD, nullptr, &before);
      changed = before.sa_handler == SIG_IGN || (before.sa_flags & SA_NOCLDWAIT) != 0;
      struct sigaction usual {};
      usual.sa_handler = SIG_DFL;
      if (changed) ::sigaction(SIGCHLD, &usual, nullptr);
    }
    ChildSignals(const ChildSignals&) = delete;
    ChildSignals& operator=(const ChildSignals&) = delete;
    ~ChildSignals() {
      if (changed) ::sigaction(SIGCHLD, &before, nullptr);
    }

    struct sigaction before {};
    bool changed;
  };

  static std::string random_token() {
    unsigned char bytes[16];
    if (::getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
      throw CommError{"no random bytes for a token", {.code = errno}};
    std::string text;
    for (unsigned char b : bytes) {
      text += "0123456789abcdef"[b >> 4];
      text += "0123456789abcdef"[b & 15];
    }
    return text;
  }

  // ---- one turn ---------------------------------------------------------------------------------

  //! Where this process slept itself, silence proves nothing: every lease begins anew.
  void notice_sleep() {
    Time now = clock_.now();
    if (now - looked_ > options_.lease / 2)
      for (auto& [who, w] : workers_) w.heard = now;
    looked_ = now;
  }

  void turn(Deadline deadline) {
    look(deadline);
    if (signals_.last == 0) return;
    throw RunStopped{"stopped by signal " + std::to_string(signals_.last) + " (" +
                     ::strsignal(signals_.last) + ")"};
  }

  void look(Deadline deadline) {
    notice_sleep();
    Time now = looked_;
    if (now >= next_alive_) {
      next_alive_ = after(now, options_.lease / 4);
      Header alive;
      alive.kind = static_cast<std::uint16_t>(Kind::alive);
      for (auto& [who, w] : workers_) {
        if (!w.line.open()) continue;
        if (w.line.queued() == 0) w.line.queue(alive, {});  // else there is a sign of life already
        send(w);
      }
    }
    deadline = std::min(deadline, next_alive_);

    set_.clear();
    set_.push_back({.fd = signals_.fd.get(), .events = POLLIN, .revents = 0});
    set_.push_back(out_.waiting(deadline));
    set_.push_back(err_.waiting(deadline));
    std::size_t first_worker = set_.size();
    bool take_out = out_.open(now), take_err = err_.open(now);
    for (auto& [who, w] : workers_) {
      if (w.more) deadline = Deadline{0};
      set_.push_back({.fd = w.process.handle().get(), .events = POLLIN, .revents = 0});
      set_.push_back({.fd = w.line.get(),
                      .events = static_cast<short>(w.line.queued() > 0 ? POLLIN | POLLOUT : POLLIN),
                      .revents = 0});
      set_.push_back(
          {.fd = take_out ? w.process.output().get() : -1, .events = POLLIN, .revents = 0});
      set_.push_back(
          {.fd = take_err ? w.process.errors().get() : -1, .events = POLLIN, .revents = 0});
    }
    std::size_t first_stranger = set_.size();
    lobby_.watch(set_, now, deadline);
    wait_for(set_, now, deadline);

    notice_sleep();
    now = looked_;
    if (set_[0].revents != 0) signals_.take();
    std::size_t i = first_worker;
    for (auto at = workers_.begin(); at != workers_.end(); i += 4) {
      auto& [who, w] = *at;
      if (set_[i + 1].revents != 0 || w.more) receive(who, w);
      if ((set_[i + 1].revents & POLLOUT) != 0) send(w);
      if (set_[i + 2].revents != 0) read(w.process.output(), w.out, out_, w.rank);
      if (set_[i + 3].revents != 0) read(w.process.errors(), w.err, err_, w.rank);
      if (set_[i].revents != 0 && ended(who, w))
        at = workers_.erase(at);
      else
        ++at;
    }
    if (set_[first_stranger].revents != 0 || !lobby_.empty()) {
      std::size_t before = lobby_.strays();
      lobby_.serve(now, [this](Descriptor s, const wire::Hello& h) { judge(std::move(s), h); });
      if (lobby_.strays() != before && notes_left_ > 0) {
        --notes_left_;
        note(lobby_.last_stray() + (notes_left_ > 0 ? "" : " (further ones are not reported)"));
      }
    }
    out_.flush(now);
    err_.flush(now);
  }

  void receive(Incarnation who, Worker& w) {
    if (!w.line.open()) return;
    std::uint64_t before = w.line.received();
    Stream::Received r = w.line.receive([&](const Header& header, Payload payload) {
      if (header.kind == static_cast<std::uint16_t>(Kind::alive)) return;
      events_.push_back({who, false, 0, {Frame::coordinator, header, std::move(payload)}});
    });
    if (w.line.received() != before) w.heard = looked_;
    w.more = r == Stream::Received::some;
    if (r == Stream::Received::over) w.line.close();
  }

  void send(Worker& w) {
    // A worker's own thread takes what it is told at once; one that does not is stopped or broken.
    if (!w.line.flush() || w.line.queued() > 2 * wire::control_limit) w.line.close();
  }

  //! Called when its process has ended: first all that it said, then that it ended.
  bool ended(Incarnation who, Worker& w) {
    std::optional<int> status = w.process.reap();
    if (!status) return false;
    do receive(who, w);
    while (w.more);
    read(w.process.output(), w.out, out_, w.rank, true);
    read(w.process.errors(), w.err, err_, w.rank, true);
    events_.push_back({who, true, *status, {}});
    return true;
  }

  //! Passes on what the pipe holds; `last`: all of it, and a line without an end gets one.
  void read(Descriptor& pipe, Lines& lines, Output& to, int rank, bool last = false) {
    auto put = [&](std::string_view line) {
      to.put("[" + std::to_string(rank) + "] " + std::string{line}, looked_);
    };
    char buffer[16 << 10];
    // What a descendant that outlives the worker goes on writing is not waited for.
    int left = 1 << 20;
    do {
      if (!pipe) break;
      ssize_t n = ::read(pipe.get(), buffer, sizeof buffer);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) break;
      if (n <= 0)
        pipe.close();
      else
        lines.feed({buffer, static_cast<std::size_t>(n)}, put);
      left -= static_cast<int>(n);
    } while (last && left > 0);
    if (last) lines.finish(put);
  }

  //! A greeting: one of the workers that this hub started, or nobody.
  void judge(Descriptor socket, const wire::Hello& h) {
    auto at = workers_.find(h.from);
    wire::Welcome answer;
    if (!h.ours())
      answer.verdict = wire::Welcome::other_protocol;
    else if (!h.knows(options_.token))
      answer.verdict = wire::Welcome::wrong_token;
    else if (h.version.view() != library_version)
      answer.verdict = wire::Welcome::other_version;
    else if (at == workers_.end() || h.to != 0)
      answer.verdict = wire::Welcome::unknown;
    else if (at->second.joined)
      answer.verdict = wire::Welcome::again;
    bool sent =
        ::send(socket.get(), &answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof answer;
    if (answer.verdict != wire::Welcome::welcome || !sent) {
      static constexpr std::string_view why[] = {
          "it ended at once",     "it speaks another protocol",  "it is of another version of mend",
          "it has a wrong token", "it is no worker of this run", "it has joined before"};
      return lobby_.stray(why[answer.verdict], socket);
    }
    at->second.joined = true;
    at->second.line = Stream{std::move(socket)};
    at->second.heard = looked_;
  }

  TcpHubOptions options_;
  SystemClock clock_;
  StopSignals signals_;
  ChildSignals child_signals_;
  Lobby lobby_;
  std::string address_;
  Output out_, err_;
  std::map<Incarnation, Worker> workers_;
  std::deque<HubEvent> events_;
  Time looked_{};  // the last turn of the loop
  Time next_alive_{};
  int notes_left_ = 16;
  std::vector<pollfd> set_;
};
static_assert(Hub<TcpHub>);

}  // namespace mend::comm
