#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mend/comm/socket.hpp"
#include "mend/comm/wire.hpp"
#include "mend/core/clock.hpp"

namespace mend::comm {

//! A listening socket and the connections that have not said yet who they are. Whoever does not
//! speak the protocol, or says nothing, is dropped and counted; none can hold up the others.
class Lobby {
 public:
  //! patience: how long a connection may say nothing. bulk: see listen_at.
  Lobby(const Address& at, Time patience, bool bulk)
      : listener_{listen_at(at, bulk)}, patience_{patience} {}

  [[nodiscard]] Address address() const { return Address::of(listener_); }

  //! Adds what is to be waited for; the deadline comes nearer where it must.
  void watch(std::vector<pollfd>& set, Time now, Deadline& deadline) const {
    bool accepting = now >= accept_from_;
    if (!accepting) deadline = std::min(deadline, accept_from_);
    set.push_back({.fd = accepting ? listener_.get() : -1, .events = POLLIN, .revents = 0});
    for (const Stranger& s : strangers_) {
      deadline = std::min(deadline, s.until);
      set.push_back({.fd = s.socket.get(), .events = POLLIN, .revents = 0});
    }
  }
  //! True while connections wait for serve, whatever the listener says.
  [[nodiscard]] bool empty() const { return strangers_.empty(); }

  //! Takes what has come in; greeted(Descriptor, Hello) is called for every complete greeting.
  template <class Greeted>
  void serve(Time now, Greeted&& greeted) {
    accept(now);
    std::vector<Stranger> all = std::exchange(strangers_, {});
    for (Stranger& s : all) {
      ssize_t n = ::recv(s.socket.get(), reinterpret_cast<std::byte*>(&s.hello) + s.have,
                         sizeof s.hello - s.have, MSG_DONTWAIT);
      if (n > 0) s.have += static_cast<std::size_t>(n);
      bool over = n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
      if (s.have >= sizeof s.hello.magic && s.hello.magic != wire::magic)
        stray("it does not speak this protocol", s.socket);
      else if (s.have == sizeof s.hello)
        greeted(std::move(s.socket), s.hello);
      else if (over)
        stray("it ended before it said who it is", s.socket);
      else if (now >= s.until)
        stray("it says nothing", s.socket);
      else
        strangers_.push_back(std::move(s));
    }
  }

  //! Counts a connection that is dropped.
  void stray(std::string_view why, const Descriptor& socket) {
    ++strays_;
    sockaddr_in in{};
    socklen_t size = sizeof in;
    last_stray_ = "a connection";
    if (::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&in), &size) == 0)
      last_stray_ += " from " + Address{in}.text();
    last_stray_ += " was dropped: " + std::string{why};
  }
  [[nodiscard]] std::size_t strays() const { return strays_; }
  //! One sentence about the last one; empty when there was none.
  [[nodiscard]] const std::string& last_stray() const { return last_stray_; }

 private:
  struct Stranger {
    Descriptor socket{};
    Deadline until = never;
    wire::Hello hello{};
    std::size_t have = 0;
  };
  static constexpr std::size_t most_strangers = 64;

  void accept(Time now) {
    for (std::size_t i = 0; i < most_strangers; ++i) {
      Descriptor s = accept_from(listener_);
      if (!s) {
        if (errno == EAGAIN || errno == EWOULDBLOCK) return;
        if (!out_of_resources(errno)) continue;  // it went away again
        accept_from_ = after(now, std::chrono::milliseconds{100});
        return;
      }
      if (strangers_.size() == most_strangers) {
        stray("too many others say nothing", strangers_.front().socket);
        strangers_.erase(strangers_.begin());
      }
      strangers_.push_back({std::move(s), after(now, patience_), {}, 0});
    }
  }

  Descriptor listener_;
  Time patience_;
  Time accept_from_{};  // not before, for want of descriptors
  std::vector<Stranger> strangers_;
  std::size_t strays_ = 0;
  std::string last_stray_;
};

}  // namespace mend::comm
