#pragma once

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "mend/comm/membership/environment.hpp"
#include "mend/comm/membership/messages.hpp"
#include "mend/comm/socket.hpp"
#include "mend/comm/stream.hpp"
#include "mend/comm/wire.hpp"
#include "mend/core/clock.hpp"
#include "mend/core/error.hpp"
#include "mend/core/link.hpp"

namespace mend::comm {

//! A worker's connection to its launcher. A thread of its own renews the lease and takes what the
//! launcher says, however long the trainer computes.
//!
//! Two ends: *lost*, when the launcher closed the connection or was silent for the lease; *fenced*,
//! when this process sent no renewal within the lease (it was stopped, say): the launcher may have
//! given its place to another, so it must not act any more.
class Lifeline {
 public:
  //! Connects and is greeted; blocks at most `join_within`. Sets `news` whenever something came in
  //! or the line ended. Throws CommError: nobody there, no mend, another version, a wrong token.
  Lifeline(const WorkerEnvironment& me, const WakeUp& news, Time join_within)
      : launcher_{me.launcher}, rank_{me.rank}, lease_{me.lease}, news_{news} {
    stream_ = Stream{greet(me, after(clock_.now(), join_within))};
    renewed_ = heard_ = clock_.now();
    // Signals are the trainer's: its handlers run on its own threads.
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      thread_ = std::jthread{[this](const std::stop_token& stop) { run(stop); }};
    } catch (const std::system_error& e) {
      ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw CommError{"no thread to renew the lease", {.code = e.code().value()}};
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;
  //! Sends what was told, for at most `goodbye`, and ends the thread.
  ~Lifeline() {
    thread_.request_stop();
    work_.set();
  }

  //! Throws CommError once the line is fenced, or lost and all that came before was taken.
  void check() {
    if (state_.load() == State::held && clock_.now() - renewed_.load() <= lease_) return;
    if (state_.load() != State::lost)
      throw CommError{"fenced: this worker was stopped for longer than its lease of " +
                          seconds(lease_) + " s, and its place may be taken; it ends here",
                      {.rank = Rank{rank_}}};
    std::lock_guard lock{mutex_};
    if (inbox_.empty())
      throw CommError{
          "the launcher at " + launcher_ + " is gone (" + reason_ + "); this worker ends",
          {.rank = Rank{rank_}}};
  }
  //! The launcher's next frame.
  std::optional<Frame> take() {
    if (!waiting_.load()) return {};
    std::lock_guard lock{mutex_};
    Frame frame = std::move(inbox_.front());
    inbox_.pop_front();
    inbox_bytes_ -= frame.payload.size();
    waiting_ = !inbox_.empty();
    if (inbox_bytes_ <= inbox_limit && std::exchange(full_, false)) work_.set();
    return frame;
  }
  //! Copies; sent at once where the kernel takes it.
  void tell(const Header& header, ByteView payload) {
    if (payload.size() > wire::control_limit)
      throw CommError{"a control message of " + std::to_string(payload.size()) +
                          " bytes; the limit is " + std::to_string(wire::control_limit),
                      {.rank = Rank{rank_}}};
    std::lock_guard lock{mutex_};
    if (state_.load() != State::held || !stream_.open()) return;
    stream_.queue(header, payload);
    if (!stream_.flush() || stream_.queued() > 0)
      work_.set();  // the thread goes on, or finds the end
  }
  //! This machine's address on the way to the launcher.
  [[nodiscard]] const Address& here() const { return here_; }

 private:
  enum class State { held, lost, fenced };
  static constexpr std::size_t inbox_limit = std::size_t{64} << 20;
  static constexpr Time goodbye = std::chrono::seconds{1};

  static std::string seconds(Time t) {
    std::string text = std::to_string(std::chrono::duration<double>(t).count());
    return text.substr(0, text.find('.') + 3);
  }

  // ---- joining ----------------------------------------------------------------------------------

  Descriptor greet(const WorkerEnvironment& me, Deadline deadline) {
    int error = 0;
    Descriptor s = start_connect(Address::parse(launcher_), error);
    if (error == 0) {
      if (!ready(s, POLLOUT, deadline))
        error = ETIMEDOUT;
      else
        error = connect_error(s);
    }
    if (error != 0)
      refuse(
          "no launcher listens there; start this program with mendrun, or unset MEND_LAUNCHER "
          "to run alone",
          error);
    wire::Hello hello = wire::Hello::make(me.token, Generation{}, me.incarnation, 0);
    wire::Welcome answer;
    std::size_t have = 0;
    if (::send(s.get(), &hello, sizeof hello, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof hello)
      refuse("the connection ended at once", errno);
    while (have < sizeof answer) {
      if (!ready(s, POLLIN, deadline))
        refuse("it does not answer; is it a mend launcher?", ETIMEDOUT);
      ssize_t n = ::recv(s.get(), reinterpret_cast<std::byte*>(&answer) + have,
                         sizeof answer - have, MSG_DONTWAIT);
      if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (n <= 0) refuse("it closed the connection; is it a mend launcher?", n < 0 ? errno : 0);
      have += static_cast<std::size_t>(n);
    }
    if (answer.magic != wire::magic) refuse("what answers there is no mend launcher", 0);
    std::string theirs{answer.version.view()}, ours{library_version};
    switch (answer.verdict) {
      case wire::Welcome::welcome:
        if (theirs == ours) break;
        [[fallthrough]];
      case wire::Welcome::other_protocol:
      case wire::Welcome::other_version:
        refuse("it is of mend " + theirs + ", this program of mend " + ours +
                   "; build both from the same version",
               0);
      case wire::Welcome::wrong_token:
        refuse("it does not accept the token; pass the launcher's own as MEND_TOKEN", 0);
      case wire::Welcome::unknown:
        refuse("it does not know incarnation " + std::to_string(me.incarnation) +
                   "; workers are started by their launcher and by nobody else",
               0);
      case wire::Welcome::again:
        refuse("incarnation " + std::to_string(me.incarnation) +
                   " has joined before; a process joins once",
               0);
      default: refuse("it gives an answer that this version does not know", 0);
    }
    here_ = Address::of(s);
    return s;
  }
  [[noreturn]] void refuse(const std::string& why, int code) const {
    throw CommError{"cannot join the launcher at " + launcher_ + ": " + why,
                    {.code = code, .rank = Rank{rank_}}};
  }
  bool ready(const Descriptor& s, short events, Deadline deadline) const {
    pollfd p{.fd = s.get(), .events = events, .revents = 0};
    while (p.revents == 0) {
      Time now = clock_.now();
      if (now >= deadline) return false;
      wait_for({&p, 1}, now, deadline);
    }
    return true;
  }

  // ---- the thread -------------------------------------------------------------------------------

  void run(const std::stop_token& stop) {
    try {
      serve(stop);
    } catch (const std::exception& e) {  // no memory, no poll
      end(State::lost, e.what());
    }
  }

  void serve(const std::stop_token& stop) {
    bool more = false;
    while (!stop.stop_requested() && state_.load() == State::held) {
      renew();
      pollfd set[] = {work_.waiting(), {.fd = stream_.get(), .events = 0, .revents = 0}};
      {
        std::lock_guard lock{mutex_};
        if (!full_) set[1].events = POLLIN;
        if (stream_.queued() > 0) set[1].events |= POLLOUT;
      }
      Time now = clock_.now();
      wait_for(set, now, more ? now : std::min(next_renewal_, after(heard_, lease_)));
      if (set[0].revents != 0) work_.reset();
      more = receive((set[1].revents & (POLLHUP | POLLERR)) != 0);
    }
    if (state_.load() == State::held) leave();
  }

  void renew() {
    Time now = clock_.now();
    if (now - renewed_.load() > lease_) return end(State::fenced, {});
    if (now < next_renewal_) return;
    next_renewal_ = after(now, lease_ / 4);
    std::lock_guard lock{mutex_};
    std::size_t before = stream_.queued();
    if (before == 0) {
      Header alive;
      alive.kind = static_cast<std::uint16_t>(Kind::alive);
      stream_.queue(alive, {});
      before = stream_.queued();
    }
    // Whatever the kernel takes is a sign of life. If this thread is stopped in here, the time is
    // that of before: the next look at it finds the lease expired.
    stream_.flush();
    if (stream_.queued() < before) renewed_ = now;
  }

  bool receive(bool over) {
    bool full;
    {
      std::lock_guard lock{mutex_};
      full = full_;
      if (!stream_.flush()) over = true;
    }
    Time now = clock_.now();
    Stream::Received r = Stream::Received::all;
    if (full && !over) {
      heard_ = now;  // unread on purpose: the trainer takes nothing
    } else {
      std::uint64_t before = stream_.received();
      r = stream_.receive([&](const Header& header, Payload payload) {
        if (header.kind == static_cast<std::uint16_t>(Kind::alive)) return;
        std::lock_guard lock{mutex_};
        inbox_bytes_ += payload.size();
        full_ = inbox_bytes_ > inbox_limit;
        inbox_.push_back({Frame::coordinator, header, std::move(payload)});
        waiting_ = true;
        news_.set();
      });
      if (stream_.received() != before) heard_ = now;
    }
    if (r == Stream::Received::over)
      end(State::lost, "it closed the connection");
    else if (now - heard_ > lease_)
      end(State::lost, "silent for " + seconds(lease_) + " s");
    return r == Stream::Received::some;
  }

  void end(State state, std::string reason) {
    // Stopped for too long and then told bad news is fenced first: what came in stays undelivered.
    if (clock_.now() - renewed_.load() > lease_) state = State::fenced;
    {
      std::lock_guard lock{mutex_};
      reason_ = std::move(reason);
      stream_.close();
    }
    state_ = state;
    news_.set();
  }

  //! Says what is left to say. No renewal is needed any more: this ends within `goodbye`.
  void leave() {
    Deadline deadline = after(clock_.now(), std::min(goodbye, lease_));
    std::lock_guard lock{mutex_};
    while (stream_.flush() && stream_.queued() > 0)
      if (!ready(stream_.socket(), POLLOUT, deadline)) return;
  }

  SystemClock clock_;
  std::string launcher_;
  int rank_;
  Time lease_;
  const WakeUp& news_;
  WakeUp work_;  // the thread has something to do
  Address here_{"127.0.0.1", 0};

  std::atomic<State> state_{State::held};
  std::atomic<Time> renewed_{};       // when a sign of life was sent last
  std::atomic<bool> waiting_{false};  // inbox_ is not empty
  Time heard_{}, next_renewal_{};     // the thread's own

  std::mutex mutex_;  // guards the stream's sending half and what follows
  Stream stream_;
  std::deque<Frame> inbox_;
  std::size_t inbox_bytes_ = 0;
  bool full_ = false;
  std::string reason_;

  std::jthread thread_;  // last: it ends before what it uses
};

}  // namespace mend::comm
