#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>

#include "mend/comm/socket.hpp"
#include "mend/core/clock.hpp"

namespace mend::comm {

//! Where many writers' lines leave: a terminal, a pipe or a file that this process does not own and
//! that may block. Never blocks itself and never raises SIGPIPE; changes no flag of the descriptor.
//!
//! A slow reader is waited for: open() says whether writers should go on. One that takes nothing
//! for a second loses lines; a notice counts them.
class Output {
 public:
  explicit Output(int fd) : fd_{fd} {
    struct stat s {};
    if (::fstat(fd, &s) != 0) {
      kind_ = Kind::dead;
    } else if (S_ISSOCK(s.st_mode)) {
      kind_ = Kind::socket;
    } else if (S_ISFIFO(s.st_mode) || S_ISCHR(s.st_mode)) {
      // O_NONBLOCK belongs to the open file, which others share: open it once more.
      own_ = Descriptor{::open(("/proc/self/fd/" + std::to_string(fd)).c_str(),
                               O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY)};
      if (own_)
        fd_ = own_.get();
      else
        kind_ = Kind::blocking;
    }
  }

  //! Appends a whole line with its end.
  void put(std::string_view line, Time now) {
    if (kind_ == Kind::dead) return;
    if (buffer_.empty()) moved_ = now;
    if (buffer_.size() >= limit && (stalled(now) || buffer_.size() >= 4 * limit)) {
      ++lost_;
      return;
    }
    report_losses();
    buffer_ += line;
  }
  //! False while writers should wait.
  [[nodiscard]] bool open(Time now) const { return buffer_.size() < limit || stalled(now); }
  //! Adds what flush waits for; the deadline comes nearer where open() changes by itself.
  [[nodiscard]] pollfd waiting(Deadline& deadline) const {
    if (buffer_.size() >= limit) deadline = std::min(deadline, after(moved_, patience));
    return {.fd = buffer_.empty() ? -1 : fd_, .events = POLLOUT, .revents = 0};
  }
  [[nodiscard]] bool empty() const { return buffer_.empty(); }

  //! Writes what is taken now.
  void flush(Time now) {
    std::size_t at = 0;
    while (at < buffer_.size()) {
      ssize_t n = write(buffer_.data() + at, buffer_.size() - at);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {  // nobody will read it any more
        kind_ = Kind::dead;
        buffer_.clear();
        return;
      }
      if (n <= 0) break;
      at += static_cast<std::size_t>(n);
      moved_ = now;
      if (kind_ == Kind::blocking) break;  // the next write may block: ask poll again
    }
    buffer_.erase(0, at);
    if (buffer_.size() < limit && lost_ > 0) report_losses();
  }

 private:
  enum class Kind { plain, socket, blocking, dead };
  static constexpr std::size_t limit = std::size_t{1} << 20;
  static constexpr Time patience = std::chrono::seconds{1};

  [[nodiscard]] bool stalled(Time now) const { return now - moved_ >= patience; }

  void report_losses() {
    if (lost_ == 0) return;
    buffer_ += "mendrun: " + std::to_string(std::exchange(lost_, 0)) +
               " lines of output were lost here: nobody took them\n";
  }

  ssize_t write(const char* data, std::size_t size) const {
    if (kind_ == Kind::socket) return ::send(fd_, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (kind_ == Kind::blocking) {
      // A pipe that is writable takes a page, a terminal some bytes.
      pollfd p{.fd = fd_, .events = POLLOUT, .revents = 0};
      wait_for({&p, 1}, Time{0}, Deadline{0});
      if ((p.revents & POLLOUT) == 0) {
        errno = p.revents == 0 ? EAGAIN : EPIPE;
        return -1;
      }
      size = std::min(size, std::size_t{256});
    }
    // A pipe has no MSG_NOSIGNAL: hold the signal back, and take away the one that this call
    // raised.
    sigset_t pipe, before, pending;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    ::sigpending(&pending);
    ::pthread_sigmask(SIG_BLOCK, &pipe, &before);
    ssize_t n = ::write(fd_, data, size);
    int code = errno;
    if (n < 0 && code == EPIPE && sigismember(&pending, SIGPIPE) == 0) {
      timespec none{};
      while (::sigtimedwait(&pipe, nullptr, &none) < 0 && errno == EINTR) {
      }
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    errno = code;
    return n;
  }

  int fd_;
  Descriptor own_;
  Kind kind_ = Kind::plain;
  std::string buffer_;
  Time moved_{};  // when something was taken last
  std::size_t lost_ = 0;
};

//! Cuts one writer's bytes into lines.
class Lines {
 public:
  //! line(std::string_view) gets each line with its end. Very long ones are cut.
  template <class Line>
  void feed(std::string_view bytes, Line&& line) {
    while (!bytes.empty()) {
      std::size_t end = bytes.find('\n');
      std::size_t take = end == bytes.npos ? bytes.size() : end + 1;
      take = std::min(take, longest - rest_.size());
      rest_ += bytes.substr(0, take);
      bytes.remove_prefix(take);
      if (rest_.back() == '\n') {
        line(std::string_view{rest_});
        rest_.clear();
      } else if (rest_.size() == longest) {
        finish(line);
      }
    }
  }
  //! What is left without an end gets one.
  template <class Line>
  void finish(Line&& line) {
    if (rest_.empty()) return;
    rest_ += '\n';
    line(std::string_view{rest_});
    rest_.clear();
  }

 private:
  static constexpr std::size_t longest = std::size_t{64} << 10;
  std::string rest_;
};

}  // namespace mend::comm
