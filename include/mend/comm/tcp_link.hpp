#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mend/comm/lifeline.hpp"
#include "mend/comm/lobby.hpp"
#include "mend/comm/membership/environment.hpp"
#include "mend/comm/membership/messages.hpp"
#include "mend/comm/socket.hpp"
#include "mend/comm/wire.hpp"
#include "mend/core/clock.hpp"
#include "mend/core/error.hpp"
#include "mend/core/generation.hpp"
#include "mend/core/link.hpp"

namespace mend::comm {

struct TcpOptions {
  //! Where peers reach this worker. Empty: loopback when the launcher is on it, else this machine's
  //! address on the way to the launcher.
  std::string bind{};
  std::uint16_t port = 0;                         //!< 0: any free one
  Time join_within = std::chrono::seconds{20};    //!< for the launcher's welcome
  std::size_t pool_bytes = std::size_t{8} << 20;  //!< recycled storage kept for the next frames
};

//! A worker's connections over TCP: a Link. One connection per direction and pair of ranks, made
//! when first posted to, used by the calling thread inside poll(); a Lifeline to the launcher with
//! a thread of its own.
//!
//! Joining is the constructor: it connects, is greeted and tells Join. Throws CommError within
//! join_within. Strangers on the listening port (no mend, another token, an old generation or
//! incarnation) are dropped and counted.
class TcpLink {
 public:
  explicit TcpLink(const WorkerEnvironment& me, TcpOptions options = {})
      : me_{me},
        options_{std::move(options)},
        lifeline_{me_, news_, options_.join_within},
        lobby_{{options_.bind.empty() ? lifeline_.here().host() : options_.bind, options_.port},
               me_.timeout,  // a peer may compute between connecting and greeting
               true} {
    Address here = lobby_.address();
    address_ = here.any() ? Address{lifeline_.here().host(), here.port()}.text() : here.text();
    Header join;
    join.kind = static_cast<std::uint16_t>(Kind::join);
    lifeline_.tell(join, encode(Join{std::string{library_version}, address_}));
  }
  TcpLink(const TcpLink&) = delete;
  TcpLink& operator=(const TcpLink&) = delete;

  //! Where peers reach this worker.
  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] Time now() const { return clock_.now(); }

  //! Throws CommError when the launcher is lost or this worker's lease ran out.
  void check() { lifeline_.check(); }

  void enter(Generation generation, int rank, std::span<const Peer> peers) {
    lifeline_.check();
    generation_ = generation;
    rank_ = rank;
    next_ = 0;
    backlog_ = 0;
    members_.clear();  // closes
    members_.resize(peers.size());
    for (std::size_t i = 0; i < peers.size(); ++i) members_[i].peer = peers[i];
    std::vector<Early> known = std::exchange(early_, {});
    for (Early& e : known) judge(std::move(e));
  }

  void post(int to, Header header, ByteView payload) {
    lifeline_.check();
    if (payload.size() > wire::peer_limit)
      throw CommError{"a message of " + std::to_string(payload.size()) + " bytes; the limit is " +
                          std::to_string(wire::peer_limit),
                      {.rank = Rank{rank_}}};
    Member& m = member(to);
    if (m.over || m.failing) return;  // its end is told by poll
    header.generation = generation_.value();
    m.posts.push_back({{.length = payload.size(), .header = header}, payload});
    add_backlog(m, sizeof(wire::Prefix) + payload.size());
    if (!m.out) connect(m);
    if (m.writable) write(m);
  }

  [[nodiscard]] std::size_t backlog(int to) const {
    return members_[static_cast<std::size_t>(to)].backlog;
  }

  std::optional<Frame> poll(Deadline deadline, bool drain) {
    for (bool last = false;;) {
      lifeline_.check();
      if (std::optional<Frame> f = lifeline_.take()) return f;
      if (++turns_ % 64 == 0) wait(clock_.now(), Deadline{0});  // busy peers must not hide others
      for (Member& m : members_)
        if (m.writable && !m.posts.empty()) write(m);
      if (std::optional<Frame> f = read()) return f;
      if ((drain && backlog_ == 0) || woken_.exchange(false) || last) return {};
      Time now = clock_.now();
      last = now >= deadline;
      wait(now, deadline);
    }
  }

  void hold(int from, bool on) {
    Member& m = member(from);
    m.held = on;
    if (!on) m.readable = static_cast<bool>(m.in);
  }

  void tell(Header header, ByteView payload) {
    lifeline_.check();
    lifeline_.tell(header, payload);
  }

  void recycle(Payload storage) {
    if (storage.size() < pooled_from || pool_bytes_ + storage.size() > options_.pool_bytes) return;
    pool_bytes_ += storage.size();
    pool_.push_back(std::move(storage));
  }

  void wake() {
    woken_ = true;
    news_.set();
  }

  //! Connections and frames dropped because they were none of ours, and why the last one was.
  [[nodiscard]] std::size_t strays() const { return lobby_.strays(); }
  [[nodiscard]] const std::string& last_stray() const { return lobby_.last_stray(); }

 private:
  using Status = wire::FrameReader::Status;

  struct Post {
    wire::Prefix prefix;
    ByteView payload;
  };

  //! Another member of this generation.
  struct Member {
    Peer peer{};
    Descriptor in{}, out{};
    std::deque<Post> posts{};
    std::size_t sent = 0;     // of the front, its prefix included
    std::size_t backlog = 0;  // of all
    wire::FrameReader reader{};
    bool connecting = false;
    Deadline connect_by = never;
    bool writable = false, readable = false;  // until the kernel says otherwise
    bool held = false;
    bool failing = false;  // `out` has ended; what `in` still has is delivered first
    bool over = false;     // its end was delivered
  };

  //! A peer that saw the next generation before this worker did; unread until enter().
  struct Early {
    Descriptor socket{};
    wire::Hello hello{};
    Deadline until = never;
  };

  static constexpr std::size_t pooled_from = 4096;  // smaller storage is as cheap from malloc

  Member& member(int rank) {
    if (rank < 0 || static_cast<std::size_t>(rank) >= members_.size() || rank == rank_)
      throw CommError{"there is no peer of rank " + std::to_string(rank), {.rank = Rank{rank_}}};
    return members_[static_cast<std::size_t>(rank)];
  }

  // ---- sending ----------------------------------------------------------------------------------

  void add_backlog(Member& m, std::size_t bytes) {
    m.backlog += bytes;
    backlog_ += bytes;
  }
  void forget_posts(Member& m) {
    backlog_ -= m.backlog;
    m.backlog = m.sent = 0;
    m.posts.clear();
  }

  void connect(Member& m) {
    int error = 0;
    m.out = start_connect(Address::parse(m.peer.address), error, true);
    if (error != 0) return fail(m);
    m.connecting = true;
    m.connect_by = after(clock_.now(), me_.timeout);
    // On one machine it is decided already, and the caller may compute for long before it polls.
    pollfd p{.fd = m.out.get(), .events = POLLOUT, .revents = 0};
    wait_for({&p, 1}, Time{0}, Deadline{0});
    if (p.revents != 0) connected(m);
  }
  void connected(Member& m) {
    m.connecting = false;
    m.connect_by = never;
    wire::Hello hello =
        wire::Hello::make(me_.token, generation_, me_.incarnation, m.peer.incarnation);
    // A fresh connection has room for a Hello; where it has not, something is wrong with it.
    if (connect_error(m.out) != 0 ||
        ::send(m.out.get(), &hello, sizeof hello, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof hello)
      return fail(m);
    m.writable = true;
  }

  //! Sends until the kernel takes no more. Payloads go from the caller's memory to the socket.
  void write(Member& m) {
    while (!m.posts.empty()) {
      iovec parts[2 * most_posts];
      std::size_t count = 0, asked = 0, skip = m.sent;
      auto add = [&](const void* data, std::size_t size) {
        std::size_t from = std::min(skip, size);
        skip -= from;
        if (from == size) return;
        // sendmsg does not write through iov_base.
        auto* bytes = const_cast<std::byte*>(static_cast<const std::byte*>(data));
        parts[count++] = {bytes + from, size - from};
        asked += size - from;
      };
      for (std::size_t i = 0; i < std::min(m.posts.size(), most_posts); ++i) {
        add(&m.posts[i].prefix, sizeof(wire::Prefix));
        add(m.posts[i].payload.data(), m.posts[i].payload.size());
      }
      msghdr message{};
      message.msg_iov = parts;
      message.msg_iovlen = count;
      ssize_t n;
      do n = ::sendmsg(m.out.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      while (n < 0 && errno == EINTR);
      if (n < 0) {
        if (errno != EAGAIN && errno != EWOULDBLOCK) return fail(m);
        m.writable = false;
        return;
      }
      auto wrote = static_cast<std::size_t>(n);
      m.backlog -= wrote;
      backlog_ -= wrote;
      m.sent += wrote;
      while (!m.posts.empty()) {
        std::size_t size = sizeof(wire::Prefix) + m.posts.front().payload.size();
        if (m.sent < size) break;
        m.sent -= size;
        m.posts.pop_front();
      }
      if (wrote < asked) {
        m.writable = false;
        return;
      }
    }
  }

  //! The connection to this member is gone. What it sent before is delivered first, even where its
  //! own connection still waits to be accepted.
  void fail(Member& m) {
    m.out.close();
    m.connecting = m.writable = false;
    m.connect_by = never;
    m.failing = true;
    forget_posts(m);
    m.readable = static_cast<bool>(m.in);
    last_look_ = true;
  }

  // ---- receiving --------------------------------------------------------------------------------

  //! The next frame of the next member that has one.
  std::optional<Frame> read() {
    if (std::exchange(last_look_, false)) receive_strangers();
    for (std::size_t k = 0; k < members_.size(); ++k) {
      std::size_t i = (next_ + k) % members_.size();
      Member& m = members_[i];
      if (m.over) continue;
      if (m.readable && !m.held) {
        Status s = m.reader.next(m.in.get(), wire::peer_limit,
                                 [this](std::size_t size) { return storage(size); });
        if (s == Status::frame && m.reader.header().generation == generation_.value() &&
            m.reader.header().kind != Header::broken) {
          next_ = i + 1;
          return Frame{static_cast<int>(i), m.reader.header(), m.reader.take()};
        }
        m.readable = false;
        if (s == Status::frame || s == Status::garbage) lobby_.stray("a member sent garbage", m.in);
        if (s != Status::later) return broken(i);
      }
      if (m.failing && !(m.held && m.in)) return broken(i);
    }
    return {};
  }

  Frame broken(std::size_t i) {
    Member& m = members_[i];
    m.in.close();
    m.out.close();
    m.connecting = m.readable = m.writable = false;
    forget_posts(m);
    m.over = true;
    next_ = i + 1;
    return Frame{static_cast<int>(i), Header{}, Payload{}};
  }

  Payload storage(std::size_t size) {
    if (size < pooled_from || pool_.empty()) return Payload{size};
    Payload p = std::move(pool_.back());
    pool_.pop_back();
    pool_bytes_ -= p.size();
    p.resize(size);
    return p;
  }

  // ---- strangers --------------------------------------------------------------------------------

  void receive_strangers() {
    lobby_.serve(clock_.now(), [this](Descriptor socket, const wire::Hello& hello) {
      judge({std::move(socket), hello, never});
    });
  }

  //! A greeting is complete: a member, one of a generation to come, or nobody of ours.
  void judge(Early who) {
    const wire::Hello& h = who.hello;
    auto stray = [&](std::string_view why) { lobby_.stray(why, who.socket); };
    if (!h.ours() || h.version.view() != library_version)
      return stray("a program of another version");
    if (!h.knows(me_.token)) return stray("a wrong token");
    if (h.to != me_.incarnation) return stray("it wants another incarnation");
    Generation theirs{h.generation};
    if (theirs < generation_) return stray("its generation is over");
    if (theirs > generation_) {  // its View is on the way here
      std::erase_if(early_, [&](const Early& x) {
        return x.hello.from == h.from && x.hello.generation <= h.generation;
      });
      who.until = after(clock_.now(), me_.timeout);
      early_.push_back(std::move(who));
      return;
    }
    auto m = std::ranges::find_if(members_,
                                  [&](const Member& x) { return x.peer.incarnation == h.from; });
    if (m == members_.end() || m - members_.begin() == rank_) return stray("it is no member");
    if (m->in || m->over) return stray("it connects twice");
    m->in = std::move(who.socket);
    m->readable = true;
  }

  // ---- waiting ----------------------------------------------------------------------------------

  void wait(Time now, Deadline deadline) {
    set_.clear();
    set_.push_back(news_.waiting());
    lobby_.watch(set_, now, deadline);
    for (const Early& e : early_) deadline = std::min(deadline, e.until);
    std::size_t first = set_.size();
    for (const Member& m : members_) {
      deadline = std::min(deadline, m.connect_by);
      // Nobody answers on `out`: readable means that it has ended.
      short out = m.connecting || (!m.posts.empty() && !m.writable) ? POLLOUT : 0;
      set_.push_back({.fd = m.out.get(),
                      .events = static_cast<short>(m.connecting ? out : out | POLLIN),
                      .revents = 0});
      set_.push_back({.fd = m.held ? -1 : m.in.get(), .events = POLLIN, .revents = 0});
    }
    wait_for(set_, now, deadline);

    if (set_[0].revents != 0) news_.reset();
    now = clock_.now();
    for (std::size_t i = 0; i < members_.size(); ++i) {
      Member& m = members_[i];
      short out = set_[first + 2 * i].revents, in = set_[first + 2 * i + 1].revents;
      if (in != 0) m.readable = true;
      if (m.connecting) {
        if (out != 0)
          connected(m);
        else if (now >= m.connect_by)
          fail(m);
      } else if (out != 0) {
        if ((out & (POLLIN | POLLERR | POLLHUP | POLLNVAL)) != 0)
          fail(m);
        else
          m.writable = true;
      }
    }
    std::erase_if(early_, [&](const Early& e) {
      if (now < e.until) return false;
      lobby_.stray("its generation never opened here", e.socket);
      return true;
    });
    // Last: a member that comes in here was not in the set.
    if (set_[1].revents != 0 || !lobby_.empty()) receive_strangers();
  }

  WorkerEnvironment me_;
  TcpOptions options_;
  SystemClock clock_;
  WakeUp news_;
  std::atomic<bool> woken_{false};

  Lifeline lifeline_;
  Lobby lobby_;
  std::string address_;
  std::vector<Early> early_;

  Generation generation_{};
  int rank_ = 0;
  std::vector<Member> members_;
  std::size_t next_ = 0;     // where reading goes on
  std::size_t backlog_ = 0;  // of all members
  bool last_look_ = false;
  std::uint64_t turns_ = 0;
  std::vector<pollfd> set_;

  static constexpr std::size_t most_posts = 8;
  std::vector<Payload> pool_;
  std::size_t pool_bytes_ = 0;
};
static_assert(Link<TcpLink>);

}  // namespace mend::comm
