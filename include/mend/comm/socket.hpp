#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "mend/core/clock.hpp"
#include "mend/core/error.hpp"

namespace mend::comm {

//! A file descriptor that closes itself; -1 when empty.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_{fd} {}
  Descriptor(Descriptor&& other) noexcept : fd_{std::exchange(other.fd_, -1)} {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Descriptor() { close(); }

  [[nodiscard]] int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

//! An IPv4 address and port, written 127.0.0.1:5000. Numbers and "localhost" only: a name would
//! have to be looked up, and a look-up knows no deadline.
class Address {
 public:
  Address(std::string_view host, std::uint16_t port) {
    std::string text{host == "localhost" ? "127.0.0.1" : host};
    if (::inet_pton(AF_INET, text.c_str(), &in_.sin_addr) != 1)
      throw CommError{"'" + text + "' is no IPv4 address; write it in numbers, such as 127.0.0.1"};
    in_.sin_family = AF_INET;
    in_.sin_port = htons(port);
  }
  explicit Address(const sockaddr_in& in) : in_{in} {}

  //! Throws CommError unless the text is host:port.
  static Address parse(std::string_view text) {
    std::size_t colon = text.rfind(':');
    std::uint16_t port = 0;
    const char* end = text.data() + text.size();
    if (colon != std::string_view::npos) {
      auto [stop, error] = std::from_chars(text.data() + colon + 1, end, port);
      if (error == std::errc{} && stop == end && port != 0) return {text.substr(0, colon), port};
    }
    throw CommError{"'" + std::string{text} + "' is no address; write host:port"};
  }
  //! Where a socket is bound.
  static Address of(const Descriptor& socket) {
    sockaddr_in in{};
    socklen_t size = sizeof in;
    if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&in), &size) != 0)
      throw CommError{"cannot read a socket's address", {.code = errno}};
    return Address{in};
  }

  [[nodiscard]] std::string host() const {
    char text[INET_ADDRSTRLEN] = "";
    ::inet_ntop(AF_INET, &in_.sin_addr, text, sizeof text);
    return text;
  }
  [[nodiscard]] std::uint16_t port() const { return ntohs(in_.sin_port); }
  [[nodiscard]] std::string text() const { return host() + ":" + std::to_string(port()); }
  //! 0.0.0.0: every interface, and nothing to connect to.
  [[nodiscard]] bool any() const { return in_.sin_addr.s_addr == htonl(INADDR_ANY); }
  [[nodiscard]] bool loopback() const { return ntohl(in_.sin_addr.s_addr) >> 24 == 127; }
  [[nodiscard]] const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&in_); }

 private:
  sockaddr_in in_{};
};

inline Descriptor new_socket() {
  Descriptor s{::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
  if (!s) throw CommError{"no socket", {.code = errno}};
  return s;
}

//! Frames leave when they are written, however small.
inline void no_delay(const Descriptor& socket) {
  int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

//! For payloads within one machine: buffers of 1 MiB, as far as the system allows. They hold what
//! is on its way, and beyond the caches it travels at half the speed, which is where the system's
//! own tuning goes. A listener's connections inherit them.
inline void bulk_buffers(const Descriptor& socket) {
  int size = 1 << 20;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
}

//! A listening socket, nonblocking. Port 0: the system chooses. bulk: for payloads rather than
//! words. Throws CommError naming the address.
inline Descriptor listen_at(const Address& at, bool bulk = false) {
  Descriptor s = new_socket();
  if (bulk && at.loopback()) bulk_buffers(s);
  int on = 1;  // a port whose last owner just ended can be had again; one in use cannot
  ::setsockopt(s.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(s.get(), at.raw(), sizeof(sockaddr_in)) != 0 || ::listen(s.get(), SOMAXCONN) != 0) {
    int code = errno;
    throw CommError{code == EADDRINUSE ? at.text() + " is in use; choose another port, or 0 for any"
                                       : "cannot listen at " + at.text(),
                    {.code = code}};
  }
  return s;
}

//! Begins to connect; the socket becomes writable when that is decided, and connect_error tells
//! how.
inline Descriptor start_connect(const Address& to, int& error, bool bulk = false) {
  Descriptor s = new_socket();
  no_delay(s);
  if (bulk && to.loopback()) bulk_buffers(s);
  error = ::connect(s.get(), to.raw(), sizeof(sockaddr_in)) == 0 ? 0 : errno;
  if (error == EINPROGRESS) error = 0;
  return s;
}
inline int connect_error(const Descriptor& socket) {
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  return error;
}

//! The next waiting connection, nonblocking; empty when there is none, and then errno says why.
inline Descriptor accept_from(const Descriptor& listener) {
  Descriptor s{::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
  if (s) no_delay(s);
  return s;
}
//! accept failed for want of descriptors or memory: the listener stays readable, so ask later.
inline bool out_of_resources(int code) {
  return code == EMFILE || code == ENFILE || code == ENOBUFS || code == ENOMEM;
}

//! Waits until one of the descriptors is ready, a signal came, or the deadline passed.
inline void wait_for(std::span<pollfd> set, Time now, Deadline deadline) {
  timespec limit{};
  const timespec* at_most = nullptr;
  if (deadline != never) {
    Time rest = std::max(deadline - now, Time{0});
    limit.tv_sec = static_cast<time_t>(rest / std::chrono::seconds{1});
    limit.tv_nsec = static_cast<long>((rest % std::chrono::seconds{1}).count());
    at_most = &limit;
  }
  if (::ppoll(set.data(), set.size(), at_most, nullptr) >= 0) return;
  int code = errno;
  for (pollfd& p : set) p.revents = 0;
  if (code != EINTR) throw CommError{"poll failed", {.code = code}};
}

//! Wakes a thread out of wait_for, from any thread: readable from set() until reset().
class WakeUp {
 public:
  WakeUp() : fd_{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)} {
    if (!fd_) throw CommError{"no eventfd", {.code = errno}};
  }
  void set() const {
    std::uint64_t one = 1;
    // Full means that it is set already.
    [[maybe_unused]] ssize_t n = ::write(fd_.get(), &one, sizeof one);
  }
  void reset() const {
    std::uint64_t count;
    [[maybe_unused]] ssize_t n = ::read(fd_.get(), &count, sizeof count);
  }
  [[nodiscard]] pollfd waiting() const { return {.fd = fd_.get(), .events = POLLIN, .revents = 0}; }

 private:
  Descriptor fd_;
};

}  // namespace mend::comm
