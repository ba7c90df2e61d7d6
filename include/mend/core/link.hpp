#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "mend/core/bytes.hpp"
#include "mend/core/clock.hpp"
#include "mend/core/generation.hpp"

namespace mend {

//! One life of a worker. A rank that is started again is another incarnation; numbers are never
//! used twice in a run. 0: the coordinator.
using Incarnation = std::uint64_t;

//! The fixed part of a message. The kinds are comm's; `broken` alone is made by a link itself.
struct Header {
  static constexpr std::uint16_t broken = 0;  //!< the connection with `from` is gone; no payload

  std::uint16_t kind = broken;
  std::uint16_t flags = 0;
  std::uint32_t generation = 0;
  std::int64_t step = 0;
  std::uint32_t tag = 0;   //!< which bucket, item or channel
  std::uint32_t part = 0;  //!< which chunk of it
  std::uint64_t offset = 0;
};
static_assert(sizeof(Header) == 32);

//! Uninitialised bytes that are owned, moved and reused; never copied.
class Payload {
 public:
  Payload() = default;
  explicit Payload(std::size_t size)
      : bytes_{size == 0 ? nullptr : new std::byte[size]}, size_{size}, capacity_{size} {}
  explicit Payload(ByteView from) : Payload{from.size()} {
    if (!from.empty()) std::memcpy(bytes_.get(), from.data(), from.size());
  }
  Payload(Payload&& other) noexcept
      : bytes_{std::move(other.bytes_)},
        size_{std::exchange(other.size_, 0)},
        capacity_{std::exchange(other.capacity_, 0)} {}
  Payload& operator=(Payload&& other) noexcept {
    bytes_ = std::move(other.bytes_);
    size_ = std::exchange(other.size_, 0);
    capacity_ = std::exchange(other.capacity_, 0);
    return *this;
  }

  //! Keeps the storage where it is large enough; contents are unspecified afterwards.
  void resize(std::size_t size) {
    if (size > capacity_) *this = Payload{size};
    size_ = size;
  }
  [[nodiscard]] std::byte* data() { return bytes_.get(); }
  [[nodiscard]] const std::byte* data() const { return bytes_.get(); }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] ByteView view() const { return {bytes_.get(), size_}; }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

//! A message as it arrives. `from` is the sender's rank in the current generation, or coordinator.
struct Frame {
  static constexpr int coordinator = -1;

  int from = coordinator;
  Header header{};
  Payload payload{};
};

//! Another member of the generation, as the coordinator names it.
struct Peer {
  Incarnation incarnation = 0;
  std::string address{};  //!< what its link listens on; empty where links need none
  Incarnation heir_of =
      0;  //!< who was the first in its place; copies of per-rank state bear that name
};

//! Seam: one worker's connections, to the coordinator and, within a generation, to its peers.
//!
//! Laws. 1: frames of one sender to one receiver within one generation arrive complete, once and in
//! order, or not at all from some point on. 2: a frame of another generation or incarnation is
//! never delivered. 3: enter() forgets everything posted and not yet sent, all peers of older
//! generations and what they sent; control frames stay. 4: control frames are delivered before
//! peers' frames. 5: a peer's end is delivered as one frame of kind Header::broken after everything
//! that it sent and that still arrived; what was posted to it and never left keeps its backlog
//! until enter(). 6: no call blocks past its deadline; only poll() blocks at all. A link is used by
//! one thread at a time; wake() may be called by any.
//!
//! post: queues; `payload` must stay valid until backlog(to) is 0, enter() or destruction.
//! tell: to the coordinator; copies the payload. poll: moves data both ways until a frame is there;
//! nullopt at the deadline, after wake(), or once everything posted has left while `drain` is set.
//! hold: while set, frames of that peer stay unread (back-pressure). recycle: gives storage back.
//! Throws CommError where the coordinator is lost: the worker then ends.
template <class L>
concept Link = requires(L& link, const L& seen, Generation generation, int rank, Header header,
                        std::span<const Peer> peers, ByteView payload, Deadline deadline,
                        Payload storage, bool flag) {
  { seen.now() } -> std::same_as<Time>;
  link.enter(generation, rank, peers);
  link.post(rank, header, payload);
  { seen.backlog(rank) } -> std::same_as<std::size_t>;
  { link.poll(deadline, flag) } -> std::same_as<std::optional<Frame>>;
  link.hold(rank, flag);
  link.tell(header, payload);
  link.recycle(std::move(storage));
  link.wake();
};

//! What a hub tells: a frame of a worker, or its end.
struct HubEvent {
  Incarnation who = 0;
  bool ended = false;
  int status = 0;  //!< when ended: 0 success, n exit code n, -n signal n
  Frame frame{};
};

//! Seam: the coordinator's side. start() begins a new worker for a rank and returns at once; its
//! frames and its end come through poll(). kill() makes sure that it ends (its end is still
//! reported). last_heard: when the worker last gave a sign of life; a judge that slept itself sees
//! fresh times after a poll.
//! Throws CommError where a worker cannot be started.
template <class H>
concept Hub = requires(H& hub, const H& seen, Incarnation who, int rank, int size, bool flag,
                       Header header, ByteView payload, Deadline deadline) {
  { seen.now() } -> std::same_as<Time>;
  { hub.poll(deadline) } -> std::same_as<std::optional<HubEvent>>;
  hub.tell(who, header, payload);
  hub.start(who, rank, size, flag);  // flag: a replacement
  hub.kill(who);
  { seen.last_heard(who) } -> std::same_as<Time>;
};

}  // namespace mend
