#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <utility>

#include "mend/config.hpp"
#include "mend/core/error.hpp"
#include "mend/core/link.hpp"

//! Bytes on the wire: little-endian, without padding. docs/reference/comm.md draws them.
namespace mend::comm::wire {

static_assert(std::endian::native == std::endian::little,
              "the wire is little-endian, as is memory");

inline constexpr std::uint32_t magic = 0x646e656d;  // "mend"
inline constexpr std::uint16_t protocol = 1;
//! Longest payloads. A length beyond them is an attack or garbage, and ends the connection.
inline constexpr std::uint64_t control_limit = std::uint64_t{256} << 20;
inline constexpr std::uint64_t peer_limit = std::uint64_t{1} << 30;
inline constexpr std::size_t token_limit = 64;

//! What precedes every payload.
struct Prefix {
  std::uint32_t magic = wire::magic;
  std::uint16_t protocol = wire::protocol;
  std::uint16_t reserved = 0;
  std::uint64_t length = 0;
  Header header{};

  [[nodiscard]] bool plausible(std::uint64_t limit) const {
    return magic == wire::magic && protocol == wire::protocol && reserved == 0 && length <= limit;
  }
};
static_assert(sizeof(Prefix) == 48 && std::is_trivially_copyable_v<Prefix>);

//! The version of the library, padded with zeros.
struct Version {
  char text[32] = {};

  static Version own() {
    Version v;
    static_assert(library_version.size() < sizeof text);
    std::copy(library_version.begin(), library_version.end(), v.text);
    return v;
  }
  [[nodiscard]] std::string_view view() const {
    return {text, static_cast<std::size_t>(std::find(text, text + sizeof text, '\0') - text)};
  }
};

//! The first bytes of every connection. Its size and its first two fields never change, so that
//! programs of different protocols can tell each other so.
struct Hello {
  std::uint32_t magic = wire::magic;
  std::uint16_t protocol = wire::protocol;
  std::uint16_t reserved = 0;
  std::uint32_t generation = 0;
  std::uint32_t token_size = 0;
  Incarnation from = 0;
  Incarnation to = 0;
  Version version = Version::own();
  char token[token_limit] = {};

  static Hello make(std::string_view token, Generation generation, Incarnation from,
                    Incarnation to) {
    if (token.size() > token_limit)
      throw OptionError{"a token has at most " + std::to_string(token_limit) + " bytes"};
    Hello h;
    h.generation = generation.value();
    h.token_size = static_cast<std::uint32_t>(token.size());
    h.from = from;
    h.to = to;
    std::copy(token.begin(), token.end(), h.token);
    return h;
  }
  [[nodiscard]] bool ours() const { return magic == wire::magic && protocol == wire::protocol; }
  //! Takes the same time wherever the first difference is.
  [[nodiscard]] bool knows(std::string_view secret) const {
    unsigned difference = token_size ^ static_cast<unsigned>(secret.size());
    for (std::size_t i = 0; i < token_limit; ++i)
      difference |= static_cast<unsigned char>(token[i] ^ (i < secret.size() ? secret[i] : '\0'));
    return difference == 0;
  }
};
static_assert(sizeof(Hello) == 128 && std::is_trivially_copyable_v<Hello>);

//! The coordinator's answer to a Hello. Its size and its first three fields never change.
struct Welcome {
  enum Verdict : std::uint16_t {
    welcome,
    other_protocol,
    other_version,
    wrong_token,
    unknown,
    again
  };

  std::uint32_t magic = wire::magic;
  std::uint16_t protocol = wire::protocol;
  std::uint16_t verdict = welcome;
  Version version = Version::own();
};
static_assert(sizeof(Welcome) == 40 && std::is_trivially_copyable_v<Welcome>);

template <class T>
ByteView bytes_of(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {reinterpret_cast<const std::byte*>(&value), sizeof value};
}

//! Reads frames off a nonblocking socket, payloads straight into their storage; one system call per
//! frame while data is waiting.
class FrameReader {
 public:
  enum class Status {
    frame,    //!< header() and take() hold the next one
    later,    //!< nothing more has arrived
    ended,    //!< the other side closed, or the connection failed
    garbage,  //!< not a frame, or longer than the limit
  };

  //! storage(size) makes the Payload; it is called only for plausible frames.
  template <class Storage>
  Status next(int socket, std::uint64_t limit, Storage&& storage) {
    for (;;) {
      if (!inside_ && have_ == sizeof next_) {
        if (!next_.plausible(limit)) return Status::garbage;
        current_ = next_;
        have_ = 0;
        payload_ = storage(static_cast<std::size_t>(current_.length));
        got_ = 0;
        inside_ = true;
      }
      if (inside_ && got_ == current_.length) {
        inside_ = false;
        return Status::frame;
      }
      if (std::exchange(drained_, false)) return Status::later;
      Status status = read_some(socket);
      if (status != Status::frame) return status;
    }
  }
  [[nodiscard]] const Header& header() const { return current_.header; }
  Payload take() { return std::move(payload_); }
  //! All that was ever read: it grows while a long frame is still arriving.
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  //! The rest of this payload and the next prefix, as far as they have arrived; `frame`: go on.
  Status read_some(int socket) {
    iovec parts[2];
    std::size_t count = 0, payload_rest = 0, head_rest = sizeof next_ - have_;
    if (inside_) {
      payload_rest = payload_.size() - got_;
      parts[count++] = {payload_.data() + got_, payload_rest};
    }
    parts[count++] = {reinterpret_cast<std::byte*>(&next_) + have_, head_rest};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    ssize_t n;
    do n = ::recvmsg(socket, &message, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? Status::later : Status::ended;
    if (n == 0) return Status::ended;
    auto read = static_cast<std::size_t>(n);
    bytes_ += read;
    std::size_t into_payload = std::min(read, payload_rest);
    got_ += into_payload;
    have_ += read - into_payload;
    drained_ = read < payload_rest + head_rest;  // saves the call that would only say so
    return Status::frame;
  }

  Prefix current_{}, next_{};
  std::size_t have_ = 0;  // of next_
  Payload payload_{};
  std::size_t got_ = 0;  // of payload_
  bool inside_ = false;  // between current_ and the end of its payload
  bool drained_ = false;
  std::uint64_t bytes_ = 0;
};

}  // namespace mend::comm::wire
