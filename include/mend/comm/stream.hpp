#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <utility>

#include "mend/comm/socket.hpp"
#include "mend/comm/wire.hpp"
#include "mend/core/bytes.hpp"
#include "mend/core/link.hpp"

namespace mend::comm {

//! A control connection after its greeting: frames both ways over one nonblocking socket, payloads
//! copied. The sending and the receiving half share nothing but the socket; each may be used by one
//! thread at a time.
class Stream {
 public:
  Stream() = default;
  explicit Stream(Descriptor socket) : socket_{std::move(socket)} {}

  [[nodiscard]] bool open() const { return static_cast<bool>(socket_); }
  [[nodiscard]] int get() const { return socket_.get(); }
  [[nodiscard]] const Descriptor& socket() const { return socket_; }
  //! Frames that were queued and not sent are forgotten.
  void close() {
    socket_.close();
    out_.clear();
    queued_ = sent_ = 0;
  }

  void queue(const Header& header, ByteView payload) {
    wire::Prefix prefix{.length = payload.size(), .header = header};
    Bytes frame(sizeof prefix + payload.size());
    std::memcpy(frame.data(), &prefix, sizeof prefix);
    if (!payload.empty()) std::memcpy(frame.data() + sizeof prefix, payload.data(), payload.size());
    queued_ += frame.size();
    out_.push_back(std::move(frame));
  }
  [[nodiscard]] std::size_t queued() const { return queued_; }
  //! Sends what the kernel takes. False when the connection is over.
  bool flush() {
    while (!out_.empty()) {
      const Bytes& frame = out_.front();
      ssize_t n = ::send(socket_.get(), frame.data() + sent_, frame.size() - sent_,
                         MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
      sent_ += static_cast<std::size_t>(n);
      queued_ -= static_cast<std::size_t>(n);
      if (sent_ < frame.size()) continue;
      out_.pop_front();
      sent_ = 0;
    }
    return true;
  }

  enum class Received {
    all,   //!< wait until the socket is readable again
    some,  //!< call again, without waiting
    over,  //!< the connection has ended, or brought garbage
  };
  //! Hands frames to use(header, payload); no more than a few at a time, so that one sender cannot
  //! keep the reader busy.
  template <class Use>
  Received receive(Use&& use) {
    using Status = wire::FrameReader::Status;
    for (int i = 0; i < 16; ++i) {
      Status s = reader_.next(socket_.get(), wire::control_limit,
                              [](std::size_t size) { return Payload{size}; });
      if (s == Status::later) return Received::all;
      if (s != Status::frame) return Received::over;
      use(reader_.header(), reader_.take());
    }
    return Received::some;
  }
  [[nodiscard]] std::uint64_t received() const { return reader_.bytes(); }

 private:
  Descriptor socket_;
  std::deque<Bytes> out_;
  std::size_t queued_ = 0;
  std::size_t sent_ = 0;  // of the front
  wire::FrameReader reader_;
};

}  // namespace mend::comm
