#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mend/comm/buffer.hpp"
#include "mend/comm/communicator.hpp"
#include "mend/comm/membership/messages.hpp"
#include "mend/core/error.hpp"
#include "mend/core/link.hpp"
#include "mend/kernel/host/reduce.hpp"

namespace mend::comm {

//! A collective ended early because the coordinator spoke: the membership changes or the run stops.
//! A Session answers it; elsewhere it reaches the user.
class Interrupted : public CommError {
 public:
  explicit Interrupted(
      std::string_view message, ErrorContext context = {},
      SourceLocation where = SourceLocation::current())  // spelt out: nvcc cannot inherit it
      : CommError{message, std::move(context), where} {}
};

//! A peer's connection broke, or it was silent past the deadline; rank() says which.
class PeerLost : public CommError {
 public:
  explicit PeerLost(
      std::string_view message, ErrorContext context = {},
      SourceLocation where = SourceLocation::current())  // spelt out: nvcc cannot inherit it
      : CommError{message, std::move(context), where} {}
};

//! Who this worker is, as its launcher told it.
struct Membership {
  int rank = 0;
  int size = 1;
  Incarnation incarnation = 0;
  bool replacement = false;
  Time timeout = std::chrono::seconds{300};  //!< longest silence of a peer, longest lambda
};

//! A place in the code that fault injection can name, such as 1@40:update.
struct CrashPoint {
  std::string_view name;
  Step step;
  int index = 0;
};

//! The communicator over any Link: collectives in fixed order, the same bits on every member.
//!
//! all_reduce and reduce_scatter sum along the chain 0 -> 1 -> ... -> n-1, chunk by chunk, so that
//! every element is joined in rank order; results travel on around the ring. Each link carries
//! every byte at most twice, as in any ring. Blocks; throws Interrupted or PeerLost, and then no
//! buffer that was not reported done may be used. Used by one thread at a time.
template <class L>
class Group {
 public:
  //! A group of one, without a coordinator.
  Group() = default;
  Group(std::unique_ptr<L> link, Membership me)
      : link_{std::move(link)}, me_{me}, rank_{me.rank}, size_{me.size} {
    static_assert(Link<L>, "Group needs a Link (mend/core/link.hpp)");
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  Group(Group&&) noexcept = default;
  Group& operator=(Group&&) noexcept = default;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] Generation generation() const { return generation_; }
  [[nodiscard]] const Membership& membership() const { return me_; }
  //! True when a coordinator decides about the membership.
  [[nodiscard]] bool managed() const { return link_ != nullptr; }
  [[nodiscard]] Time now() const { return link_ ? link_->now() : SystemClock{}.now(); }

  // ---- collectives ------------------------------------------------------------------------------

  //! Reduces buffers in their order, which must be the same on all ranks; done(i) is called as soon
  //! as buffers[i] is complete here. Returns when, in addition, everything was passed on. Throws
  //! OptionError, on every rank alike, for a mean of integers and a sum of booleans.
  template <class Done>
  void all_reduce(std::span<const Buffer> buffers, Done&& done) {
    join();
    reduce(buffers, done, false);
  }
  void all_reduce(Buffer buffer) {
    all_reduce(std::span{&buffer, 1}, [](std::size_t) {});
  }
  template <Element T, std::size_t N>
  void all_reduce(std::span<T, N> values, Reduction reduction = Reduction::mean) {
    all_reduce(Buffer::of(values, reduction));
  }

  //! buffer.count must be a multiple of size(); block rank() holds the result, the rest is scratch.
  void reduce_scatter(Buffer buffer) {
    join();
    if (buffer.count % static_cast<std::size_t>(size_) != 0)
      throw CommError{"reduce_scatter: " + std::to_string(buffer.count) +
                      " elements do not divide by " + std::to_string(size_) + " ranks"};
    std::vector<Buffer> blocks;
    std::size_t count = buffer.count / static_cast<std::size_t>(size_);
    for (int r = 0; r < size_; ++r)
      blocks.push_back({buffer.data + static_cast<std::size_t>(r) * count * size_of(buffer.dtype),
                        count, buffer.dtype, buffer.reduction, buffer.tag});
    reduce(
        blocks, [](std::size_t) {}, true);
  }

  //! blocks: size() equal blocks, this rank's own one filled in.
  void all_gather(std::span<std::byte> blocks) {
    join();
    if (blocks.size() % static_cast<std::size_t>(size_) != 0)
      throw CommError{"all_gather: " + std::to_string(blocks.size()) + " bytes do not divide by " +
                      std::to_string(size_) + " ranks"};
    std::size_t size = blocks.size() / static_cast<std::size_t>(size_);
    std::vector<std::pair<std::span<std::byte>, int>> rooted;
    for (int r = 0; r < size_; ++r)
      rooted.emplace_back(blocks.subspan(static_cast<std::size_t>(r) * size, size), r);
    spread(rooted);
  }
  void broadcast(std::span<std::byte> bytes, int root) {
    join();
    if (root < 0 || root >= size_)
      throw CommError{"broadcast: there is no rank " + std::to_string(root)};
    std::array rooted{std::pair{bytes, root}};
    spread(rooted);
  }

  //! True on all members iff all said true.
  bool agree(bool yes) {
    std::byte mine{yes};
    bool all = true;
    for (const Payload& p : gather(ByteView{&mine, 1}))
      all = all && p.size() == 1 && p.data()[0] == std::byte{1};
    return all;
  }
  void barrier() { (void)gather({}); }

  //! Every member's small record, by rank; up a binary tree and down again, O(log size) hops.
  std::vector<Payload> gather(ByteView record) {
    gather_begin(record);
    return gather_finish();
  }
  //! The first half: sends what can be sent without waiting, so that the round trip hides behind
  //! work in between. No other collective may stand between the halves.
  void gather_begin(ByteView record) {
    join();
    ByteWriter w;
    w.put(rank_).put_bytes(record);
    records_ = std::move(w).take();
    if (size_ > 1 && first_child() >= size_) post_copy(parent(), header(Kind::vote), records_);
  }
  std::vector<Payload> gather_finish() {
    if (size_ > 1) {
      bool leaf = first_child() >= size_;
      for (int child = first_child(); child < std::min(first_child() + 2, size_); ++child) {
        Frame f = expect(child, Kind::vote);
        records_.insert(records_.end(), f.payload.view().begin(), f.payload.view().end());
      }
      if (rank_ != 0) {
        if (!leaf) post_copy(parent(), header(Kind::vote), records_);
        Frame f = expect(parent(), Kind::verdict);
        records_.assign(f.payload.view().begin(), f.payload.view().end());
      }
      for (int child = first_child(); child < std::min(first_child() + 2, size_); ++child)
        post_copy(child, header(Kind::verdict), records_);
      drain();
    }
    std::vector<Payload> all(static_cast<std::size_t>(size_));
    for (ByteReader r{records_}; !r.empty();) {
      auto from = r.get<int>();
      ByteView record = r.get_bytes();
      if (from < 0 || from >= size_) throw CommError{"a vote names a rank that does not exist"};
      all[static_cast<std::size_t>(from)] = Payload{record};
    }
    return all;
  }

  //! A pipe to one member; several tags are several pipes.
  class Pipe {
   public:
    Pipe(Group& group, int peer, std::uint32_t tag) : group_{group}, peer_{peer}, tag_{tag} {}
    void send(ByteView bytes) {
      group_.join();
      Header h = group_.header(Kind::message);
      h.tag = tag_;
      group_.post_copy(peer_, h, bytes);
      group_.drain();
    }
    //! Blocks for the next message; throws CommError when its size is not in.size().
    void receive(std::span<std::byte> in) {
      group_.join();
      Frame f = group_.expect(
          [&](const Frame& x) {
            return x.from == peer_ && is(x, Kind::message) && x.header.tag == tag_;
          },
          peer_);
      if (f.payload.size() != in.size())
        throw CommError{"a message of " + std::to_string(f.payload.size()) + " bytes where " +
                        std::to_string(in.size()) + " were expected"};
      if (!in.empty()) std::memcpy(in.data(), f.payload.data(), in.size());
      group_.link_->recycle(std::move(f.payload));
    }

   private:
    Group& group_;
    int peer_;
    std::uint32_t tag_;
  };
  Pipe channel(int peer, std::uint32_t tag = 0) {
    if (peer < 0 || peer >= size_ || peer == rank_)
      throw CommError{"there is no channel to rank " + std::to_string(peer), {.rank = Rank{rank_}}};
    return {*this, peer, tag};
  }

  // ---- membership, for sessions
  // -------------------------------------------------------------------

  static bool is(const Frame& f, Kind kind) {
    return f.header.kind == static_cast<std::uint16_t>(kind);
  }

  //! A session begins; a run has one. Throws StateError for a second one.
  void claim() {
    if (std::exchange(claimed_, true))
      throw StateError{
          "this communicator has served another session; a run has one session, with "
          "all that it trains in one TrainState",
          {.rank = Rank{rank_}}};
  }
  //! The newest View that no session has entered; waits longer for one than the coordinator waits
  //! for a member that says nothing. Throws RunStopped when told to stop.
  View await_view() {
    Deadline deadline = after(now(), 4 * me_.timeout);
    for (;;) {
      std::optional<View> newest;
      while (!control_.empty()) {
        Frame f = std::move(control_.front());
        control_.pop_front();
        if (is(f, Kind::stop)) stopped(f);
        if (is(f, Kind::view)) newest = decode_view(f.payload.view());
      }
      if (newest && newest->generation > generation_) return *std::move(newest);
      if (unclaimed_) return *std::exchange(unclaimed_, std::nullopt);
      std::optional<Frame> f = link_->poll(deadline, false);
      if (f) {
        if (f->from == Frame::coordinator) control_.push_back(*std::move(f));
      } else if (now() >= deadline) {
        throw CommError{"the launcher opened no new generation in time", {.rank = Rank{me_.rank}}};
      }
    }
  }
  //! Waits until the coordinator speaks (true), the deadline, or wake(); peers' frames are kept.
  bool watch(Deadline deadline) {
    if (!interrupted())
      if (std::optional<Frame> f = link_->poll(deadline, false)) keep(*std::move(f));
    return interrupted();
  }
  //! Throws CommError when this worker was given up: its lease ran out.
  void check_lease() {
    if constexpr (requires { link_->check(); })
      if (link_) link_->check();
  }
  //! From another thread: the collective under way, and all later ones, end with Interrupted.
  void cancel() {
    cancelled_->store(true);
    if (link_) link_->wake();
  }
  void enter(const View& view) {
    unclaimed_.reset();
    if (joined_ && view.generation == generation_) return;
    generation_ = view.generation;
    rank_ = view.rank;
    size_ = view.size();
    stash_.clear();
    held_.assign(static_cast<std::size_t>(size_), 0);
    link_->enter(generation_, rank_, view.peers);
    kept_.clear();
    joined_ = true;
  }
  void tell(Kind kind, Step step, ByteView payload = {}, std::uint32_t tag = 0) {
    Header h = header(kind);
    h.step = step.value();
    h.tag = tag;
    link_->tell(h, payload);
  }
  //! What comes next from the coordinator or a peer, whatever it is; nullopt at the deadline.
  //! Frames that are not the caller's go to keep().
  std::optional<Frame> next_frame(Deadline deadline) {
    if (!control_.empty()) {
      Frame f = std::move(control_.front());
      control_.pop_front();
      return f;
    }
    do {
      std::optional<Frame> f = link_->poll(deadline, false);
      if (f) return f;
    } while (now() < deadline);
    return {};
  }
  //! For later: collectives find it when they want it.
  void keep(Frame f) {
    if (f.from == Frame::coordinator) {
      control_.push_back(std::move(f));
      return;
    }
    auto from = static_cast<std::size_t>(f.from);
    held_[from] += f.payload.size() + 1;
    if (held_[from] > stash_limit) link_->hold(f.from, true);
    stash_.push_back(std::move(f));
  }
  //! Puts a control frame back: the next await_view or collective finds it.
  void push_control(Frame f) { control_.push_front(std::move(f)); }

  void post_copy(int to, const Header& h, ByteView payload) { post_owned(to, h, Payload{payload}); }
  void post_owned(int to, const Header& h, Payload payload) {
    std::erase_if(kept_, [this](const auto& k) { return link_->backlog(k.first) == 0; });
    kept_.emplace_back(to, std::move(payload));
    link_->post(to, h, kept_.back().second.view());
  }
  [[nodiscard]] std::size_t backlog(int to) const { return link_->backlog(to); }
  [[nodiscard]] Header header(Kind kind) const {
    Header h;
    h.kind = static_cast<std::uint16_t>(kind);
    h.generation = generation_.value();
    h.step = step_.value();
    return h;
  }
  //! The step that collectives belong to; their frames carry it.
  void at(Step step) { step_ = step; }
  //! Waits for a frame of this kind from this rank; others are kept for later.
  Frame expect(int from, Kind kind) {
    return expect(
        [&](const Frame& f) {
          return f.from == from && is(f, kind) && f.header.step == step_.value();
        },
        from);
  }
  //! Waits for a frame that is wanted; `whom` is who must send it.
  template <class Wanted>
  Frame expect(Wanted&& wanted, int whom) {
    return *await(wanted, whom, false, after(now(), me_.timeout));
  }
  //! Waits until everything posted has left. Throws as collectives do.
  void drain() {
    Deadline deadline = after(now(), me_.timeout);
    refuse_broken([this](int r) { return link_->backlog(r) != 0; });
    while (busy()) {
      std::optional<Frame> f = link_->poll(deadline, true);
      if (f) {
        keep(*std::move(f));
        refuse_broken([this](int r) { return link_->backlog(r) != 0; });
      } else if (now() >= deadline) {
        throw PeerLost{"a peer takes no more data: timed out", {.rank = Rank{next()}}};
      }
      refuse_interrupted();
    }
    kept_.clear();
  }

  //! Whether a second thread may drive collectives while the first one computes.
  [[nodiscard]] bool concurrent() const {
    if constexpr (requires { link_->concurrent(); })
      return managed() && link_->concurrent();
    else
      return managed();
  }
  L& link() { return *link_; }

  //! Fault injection: called at every crash point when set.
  std::function<void(const CrashPoint&)> on_crash_point{};
  void reached(std::string_view name, int index = 0) {
    if (on_crash_point) on_crash_point({name, step_, index});
  }
  //! Bytes of a buffer that travel as one frame; equal on all ranks.
  std::size_t chunk_bytes = std::size_t{512} << 10;

 private:
  [[nodiscard]] int next() const { return (rank_ + 1) % size_; }
  [[nodiscard]] int previous() const { return (rank_ + size_ - 1) % size_; }
  [[nodiscard]] int parent() const { return (rank_ - 1) / 2; }
  [[nodiscard]] int first_child() const { return 2 * rank_ + 1; }
  [[nodiscard]] bool busy() const {
    for (int r = 0; r < size_; ++r)
      if (r != rank_ && link_->backlog(r) != 0) return true;
    return false;
  }

  [[nodiscard]] bool interrupted() const {
    return std::ranges::any_of(control_, [](const Frame& f) {
      return f.header.kind == static_cast<std::uint16_t>(Kind::view) ||
             f.header.kind == static_cast<std::uint16_t>(Kind::stop);
    });
  }
  //! What ends a collective whatever its peers do: the coordinator's word, or cancel().
  void refuse_interrupted() const {
    if (interrupted()) throw Interrupted{"the membership changed", {.rank = Rank{rank_}}};
    if (cancelled_->load()) throw Interrupted{"cancelled", {.rank = Rank{rank_}}};
  }
  //! Collectives outside a session: the first generation is enough, later ones need a session.
  void join() {
    if (!managed() || joined_) return refuse_interrupted();
    if (me_.replacement)
      throw CommError{
          "a replacement takes no part in collectives outside the session: the others "
          "passed them long ago. Derive initial values from a seed, not a broadcast",
          {.rank = Rank{me_.rank}}};
    View first = await_view();
    enter(first);
    unclaimed_ = std::move(first);
  }

  [[noreturn]] void stopped(const Frame& f) const {
    ByteView b = f.payload.view();
    throw RunStopped{std::string{reinterpret_cast<const char*>(b.data()), b.size()},
                     {.rank = Rank{rank_}}};
  }

  // ---- frames -----------------------------------------------------------------------------------

  Frame unstash(const typename std::deque<Frame>::iterator& at) {
    Frame f = std::move(*at);
    stash_.erase(at);
    auto from = static_cast<std::size_t>(f.from);
    bool was = held_[from] > stash_limit;
    held_[from] -= f.payload.size() + 1;
    if (was && held_[from] <= stash_limit) link_->hold(f.from, false);
    return f;
  }
  template <class Wanted>
  std::optional<Frame> stashed(Wanted&& wanted) {
    auto at = std::ranges::find_if(stash_, wanted);
    if (at == stash_.end()) return {};
    return unstash(at);
  }

  //! The next frame that is wanted; throws Interrupted, PeerLost, or at the deadline PeerLost.
  //! With `drained`, nullopt as soon as nothing posted is left.
  template <class Wanted>
  std::optional<Frame> await(Wanted&& wanted, int whom, bool drained, Deadline deadline) {
    refuse_interrupted();
    if (std::optional<Frame> f = stashed(wanted)) return f;
    for (;;) {
      refuse_broken([&](int r) { return r == whom || link_->backlog(r) != 0; });
      std::optional<Frame> f = link_->poll(deadline, drained);
      if (!f) {
        refuse_interrupted();
        if (now() >= deadline)
          throw PeerLost{
              "a peer was silent for " +
                  std::to_string(
                      std::chrono::duration_cast<std::chrono::milliseconds>(me_.timeout).count()) +
                  " ms (timeout)",
              {.rank = Rank{whom}}};
        if (drained && !busy()) return {};
        continue;
      }
      if (f->from != Frame::coordinator && wanted(*f)) return f;
      keep(*std::move(f));
      refuse_interrupted();
    }
  }
  //! A broken link counts once everything that came before it is used up: a peer that is still
  //! waited for, or that never took what was posted.
  template <class Matters>
  void refuse_broken(Matters&& matters) const {
    for (const Frame& f : stash_)
      if (f.header.kind == Header::broken && matters(f.from))
        throw PeerLost{"the connection with a peer broke", {.rank = Rank{f.from}}};
  }
  // ---- reduction --------------------------------------------------------------------------------

  //! The type that sums travel in.
  static DType sum_type(DType t) { return t == DType::bf16 || t == DType::f16 ? DType::f32 : t; }

  struct Chunk {
    std::size_t buffer, first, count;
    std::uint32_t part;
  };
  //! Walks the buffers chunk by chunk; every rank cuts them alike.
  struct Cursor {
    std::span<const Buffer> buffers;
    std::size_t chunk_bytes;
    std::size_t buffer = 0, first = 0;
    std::uint32_t part = 0;

    std::optional<Chunk> take() {
      while (buffer < buffers.size() && first == buffers[buffer].count) {
        ++buffer;
        first = 0;
        part = 0;
      }
      if (buffer == buffers.size()) return {};
      const Buffer& b = buffers[buffer];
      std::size_t count =
          std::min(b.count - first, std::max<std::size_t>(chunk_bytes / size_of(b.dtype), 1));
      Chunk c{buffer, first, count, part++};
      first += count;
      return c;
    }
  };

  [[nodiscard]] Header chunk_header(Kind kind, const Buffer& b, const Chunk& c) const {
    Header h = header(kind);
    h.tag = b.tag;
    h.part = c.part;
    h.offset = c.first;
    return h;
  }
  static std::byte* address(const Buffer& b, const Chunk& c) {
    return b.data + c.first * size_of(b.dtype);
  }

  void check_chunk(const Frame& f, const Buffer& b, const Chunk& c, std::size_t bytes) const {
    if (f.header.step == step_.value() && f.header.tag == b.tag && f.header.part == c.part &&
        f.payload.size() == bytes)
      return;
    throw CommError{"rank " + std::to_string(f.from) + " reduces bucket " +
                        std::to_string(f.header.tag) + " of step " + std::to_string(f.header.step) +
                        " where bucket " + std::to_string(b.tag) +
                        " is due: every rank must reduce, and call ready(), in "
                        "the same order",
                    {.rank = Rank{rank_}, .step = step_}};
  }

  static void refuse_unreducible(const Buffer& b) {
    if (b.dtype == DType::boolean) throw OptionError{"a sum needs numbers, not BOOL"};
    if (b.reduction == Reduction::mean && !is_floating(b.dtype))
      throw OptionError{"a mean needs a floating type, not " + std::string{name_of(b.dtype)}};
  }
  //! scatter: the total of buffers[r] goes to rank r alone, else around the ring to all.
  template <class Done>
  void reduce(std::span<const Buffer> buffers, Done&& done, bool scatter) {
    for (const Buffer& b : buffers) refuse_unreducible(b);
    if (size_ == 1) {
      for (std::size_t i = 0; i < buffers.size(); ++i) done(i);
      return;
    }
    const int last = size_ - 1;
    std::vector<std::size_t> left(buffers.size());
    std::size_t totals = 0, partials = 0;
    for (Cursor c{buffers, chunk_bytes}; auto chunk = c.take();) {
      bool mine = !scatter || static_cast<int>(chunk->buffer) == rank_;
      ++left[chunk->buffer];
      ++partials;
      totals += mine;
    }
    for (std::size_t i = 0; i < buffers.size(); ++i)
      if (left[i] == 0) done(i);
    auto finish = [&](std::size_t buffer) {
      if (--left[buffer] == 0) done(buffer);
    };

    Cursor outgoing{buffers, chunk_bytes}, incoming{buffers, chunk_bytes},
        results{buffers, chunk_bytes};
    std::optional<Chunk> unsent = rank_ == 0 ? outgoing.take() : std::nullopt;
    if (rank_ == 0) partials = 0;
    if (rank_ == last) totals = 0;
    auto next_result = [&] {
      std::optional<Chunk> c = results.take();
      while (c && scatter && static_cast<int>(c->buffer) != rank_) c = results.take();
      return c;
    };
    Deadline deadline = after(now(), me_.timeout);
    while (partials > 0 || totals > 0 || unsent) {
      for (; unsent && link_->backlog(next()) < 2 * chunk_bytes; unsent = outgoing.take())
        send_partial(buffers[unsent->buffer], *unsent);
      int whom = scatter && partials == 0 ? last : previous();
      std::optional<Frame> f = await(
          [&](const Frame& x) {
            return (partials > 0 && x.from == previous() && is(x, Kind::partial)) ||
                   (totals > 0 && x.from == (scatter ? last : previous()) && is(x, Kind::total));
          },
          whom, unsent.has_value(), deadline);
      if (!f) continue;
      deadline = after(now(), me_.timeout);
      if (is(*f, Kind::partial)) {
        Chunk c = *incoming.take();
        --partials;
        const Buffer& b = buffers[c.buffer];
        check_chunk(*f, b, c, c.count * size_of(sum_type(b.dtype)));
        take_partial(*f, b, c, scatter ? static_cast<int>(c.buffer) : next());
        if (rank_ == last && (!scatter || static_cast<int>(c.buffer) == rank_)) finish(c.buffer);
        reached("during_reduce", static_cast<int>(b.tag));
      } else {
        Chunk c = *next_result();
        --totals;
        const Buffer& b = buffers[c.buffer];
        check_chunk(*f, b, c, c.count * size_of(b.dtype));
        std::memcpy(address(b, c), f->payload.data(), f->payload.size());
        if (!scatter && next() != last)
          link_->post(next(), chunk_header(Kind::total, b, c), {address(b, c), f->payload.size()});
        finish(c.buffer);
        reached("during_reduce", static_cast<int>(b.tag));
      }
      link_->recycle(std::move(f->payload));
    }
    drain();
  }

  void send_partial(const Buffer& b, const Chunk& c) {
    if (sum_type(b.dtype) == b.dtype) {
      link_->post(next(), chunk_header(Kind::partial, b, c),
                  {address(b, c), c.count * size_of(b.dtype)});
    } else {
      Payload wide{c.count * sizeof(float)};
      kernel::to_float(b.dtype, address(b, c), reinterpret_cast<float*>(wide.data()), c.count);
      post_owned(next(), chunk_header(Kind::partial, b, c), std::move(wide));
    }
  }

  void take_partial(Frame& f, const Buffer& b, const Chunk& c, int to) {
    const int last = size_ - 1;
    std::byte* own = address(b, c);
    if (sum_type(b.dtype) == b.dtype) {
      kernel::accumulate(b.dtype, own, f.payload.data(), c.count);
      if (rank_ != last) {
        link_->post(next(), chunk_header(Kind::partial, b, c), {own, f.payload.size()});
        return;
      }
      if (b.reduction == Reduction::mean) kernel::scale_to_mean(b.dtype, own, c.count, size_);
    } else {
      Payload wide{c.count * sizeof(float)};
      auto* sum = reinterpret_cast<float*>(wide.data());
      kernel::to_float(b.dtype, own, sum, c.count);
      kernel::accumulate(DType::f32, sum, f.payload.data(), c.count);
      if (rank_ != last) {
        post_owned(next(), chunk_header(Kind::partial, b, c), std::move(wide));
        return;
      }
      if (b.reduction == Reduction::mean) kernel::scale_to_mean(DType::f32, sum, c.count, size_);
      kernel::from_float(b.dtype, sum, own, c.count);
    }
    if (to != rank_)
      link_->post(to, chunk_header(Kind::total, b, c), {own, c.count * size_of(b.dtype)});
  }

  //! Every block travels from its root around the ring.
  void spread(std::span<const std::pair<std::span<std::byte>, int>> rooted) {
    if (size_ == 1) return;
    std::size_t expected = 0;
    auto each_chunk = [&](std::size_t bytes, auto&& use) {
      for (std::size_t at = 0; at < bytes; at += chunk_bytes)
        use(at, std::min(chunk_bytes, bytes - at));
    };
    for (std::size_t i = 0; i < rooted.size(); ++i) {
      auto [bytes, root] = rooted[i];
      each_chunk(bytes.size(), [&, block = bytes, from = root](std::size_t at, std::size_t n) {
        if (from != rank_) {
          ++expected;
          return;
        }
        Header h = header(Kind::total);
        h.tag = static_cast<std::uint32_t>(i);
        h.offset = at;
        link_->post(next(), h, block.subspan(at, n));
      });
    }
    while (expected > 0) {
      Frame f = expect([&](const Frame& x) { return x.from == previous() && is(x, Kind::total); },
                       previous());
      if (f.header.tag >= rooted.size())
        throw CommError{"a broadcast that this rank does not take part in", {.rank = Rank{rank_}}};
      auto [bytes, root] = rooted[f.header.tag];
      if (f.header.offset > bytes.size() || f.payload.size() > bytes.size() - f.header.offset)
        throw CommError{"a broadcast of another size than this rank expects",
                        {.rank = Rank{rank_}}};
      --expected;
      std::memcpy(bytes.data() + f.header.offset, f.payload.data(), f.payload.size());
      if (next() != root)
        link_->post(next(), f.header, {bytes.data() + f.header.offset, f.payload.size()});
      link_->recycle(std::move(f.payload));
    }
    drain();
  }

  static constexpr std::size_t stash_limit = std::size_t{4} << 20;

  std::unique_ptr<L> link_;
  Membership me_{};
  int rank_ = 0;
  int size_ = 1;
  Generation generation_{};
  Step step_{};
  bool joined_ = false, claimed_ = false;
  std::optional<View> unclaimed_;  // of the generation that collectives before the session entered
  std::unique_ptr<std::atomic<bool>> cancelled_ = std::make_unique<std::atomic<bool>>(false);
  Bytes records_;
  std::deque<Frame> control_;                 // what the coordinator said and nobody took yet
  std::deque<Frame> stash_;                   // peers' frames that came before they were wanted
  std::vector<std::size_t> held_;             // bytes stashed per peer
  std::deque<std::pair<int, Payload>> kept_;  // small payloads that are still leaving
};

}  // namespace mend::comm
