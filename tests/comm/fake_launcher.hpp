#pragma once

#include <mend/comm/membership/environment.hpp>
#include <mend/comm/membership/messages.hpp>
#include <mend/comm/socket.hpp>
#include <mend/comm/stream.hpp>
#include <mend/comm/wire.hpp>

#include <chrono>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace mend_test {

using namespace std::chrono_literals;
using namespace mend;
using namespace mend::comm;

//! The launcher's side of the wire, one step at a time, for tests of the worker's side. It says
//! Alive only when asked to; no wait takes longer than 10 s.
class FakeLauncher {
 public:
  FakeLauncher() : listener_{listen_at({"127.0.0.1", 0})} {}

  [[nodiscard]] std::string address() const { return Address::of(listener_).text(); }
  [[nodiscard]] WorkerEnvironment worker(int rank, int size, Time lease = 60s) const {
    WorkerEnvironment e;
    e.launcher = address();
    e.rank = rank;
    e.size = size;
    e.incarnation = static_cast<Incarnation>(rank + 1);
    e.token = "secret";
    e.lease = lease;
    e.timeout = 20s;
    return e;
  }

  //! Takes one connection and its Hello; the answer is the caller's.
  std::pair<Descriptor, wire::Hello> accept() {
    Descriptor s;
    while (!(s = accept_from(listener_))) wait(listener_.get(), POLLIN);
    wire::Hello hello;
    read(s, &hello, sizeof hello);
    return {std::move(s), hello};
  }
  void welcome(std::pair<Descriptor, wire::Hello> worker) {
    wire::Welcome yes;
    if (::send(worker.first.get(), &yes, sizeof yes, MSG_NOSIGNAL) != sizeof yes)
      throw std::runtime_error{"the worker is gone"};
    workers_[worker.second.from] = Stream{std::move(worker.first)};
  }
  //! Accepts `count` workers and takes their Joins.
  void join(int count) {
    for (int i = 0; i < count; ++i) welcome(accept());
    for (auto& [who, stream] : workers_) {
      Frame f = next(who);
      peers_[who] = decode_join(f.payload.view()).address;
    }
  }
  [[nodiscard]] std::vector<Peer> peers() const {
    std::vector<Peer> all;
    for (const auto& [who, address] : peers_) all.push_back({who, address});
    return all;
  }

  void tell(Incarnation who, Kind kind, ByteView payload = {}) {
    Header h;
    h.kind = static_cast<std::uint16_t>(kind);
    workers_.at(who).queue(h, payload);
    while (workers_.at(who).flush() && workers_.at(who).queued() > 0)
      wait(workers_.at(who).get(), POLLOUT);
  }
  //! The worker's next frame that is no Alive.
  Frame next(Incarnation who) {
    for (;;) {
      std::optional<Frame> f = next_or_end(who);
      if (!f) throw std::runtime_error{"the worker is gone"};
      if (f->header.kind != static_cast<std::uint16_t>(Kind::alive)) return *std::move(f);
    }
  }
  //! The same with Alives; nullopt when the worker closed the connection.
  std::optional<Frame> next_or_end(Incarnation who) {
    std::vector<Frame>& inbox = inbox_[who];
    while (inbox.empty()) {
      wait(workers_.at(who).get(), POLLIN);
      auto r = workers_.at(who).receive([&](const Header& h, Payload p) {
        inbox.push_back({0, h, std::move(p)});
      });
      if (r == Stream::Received::over && inbox.empty()) return {};
    }
    Frame f = std::move(inbox.front());
    inbox.erase(inbox.begin());
    return f;
  }
  //! Anything but a frame.
  void write(Incarnation who, const std::string& noise) {
    if (::send(workers_.at(who).get(), noise.data(), noise.size(), MSG_NOSIGNAL) < 0)
      throw std::runtime_error{"the worker is gone"};
  }
  void hang_up(Incarnation who) { workers_.at(who).close(); }

 private:
  static void wait(int fd, short events) {
    pollfd p{.fd = fd, .events = events, .revents = 0};
    wait_for({&p, 1}, Time{0}, 10s);
    if (p.revents == 0) throw std::runtime_error{"nothing happened for 10 s"};
  }
  static void read(const Descriptor& s, void* to, std::size_t size) {
    for (std::size_t have = 0; have < size;) {
      wait(s.get(), POLLIN);
      ssize_t n = ::recv(s.get(), static_cast<char*>(to) + have, size - have, 0);
      if (n <= 0) throw std::runtime_error{"the worker is gone"};
      have += static_cast<std::size_t>(n);
    }
  }

  Descriptor listener_;
  std::map<Incarnation, Stream> workers_;
  std::map<Incarnation, std::string> peers_;
  std::map<Incarnation, std::vector<Frame>> inbox_;
};

}  // namespace mend_test
