#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mend/comm/group.hpp"
#include "mend/core/bytes.hpp"
#include "mend/core/hash.hpp"
#include "mend/core/train_state.hpp"
#include "mend/session/bucket_plan.hpp"
#include "mend/session/partner_copies.hpp"

namespace mend {

//! Moves state between members in recovery: serves those who ask and fetches what is missing, in
//! checksummed chunks from several sources at once. Buffers: at most `window` chunks per source.
class StateTransfer {
 public:
  static constexpr std::size_t chunk = std::size_t{1} << 20;
  static constexpr std::size_t window = 2;

  //! What can be asked for. `index` is of the entry, the bucket, or (copy) unused.
  enum class What : std::uint16_t { table, item, meta, bucket, copy, thanks };

  StateTransfer(const TrainState& state, const BucketPlan& buckets, const PartnerCopies& copies)
      : state_{state}, buckets_{buckets}, copies_{copies} {}

  static bool travels(const TrainState::Entry& e) {
    return !e.placement.per_rank && e.tied_to.empty();
  }

  //! The hash of every entry (zero for what does not travel), then of meta, then of all of them.
  //! Also fixes what states save, so that all who are served get the same.
  std::vector<Hash128> hash(const Bytes& meta) {
    meta_ = meta;
    blobs_.clear();
    hashes_.clear();
    StateHash whole;
    for (const TrainState::Entry& e : state_.entries()) {
      Bytes& blob = blobs_.emplace_back();
      if (travels(e) && e.kind == TrainState::Kind::state)
        blob = e.save();
      else if (travels(e) && e.memory != nullptr)
        (void)e.view(blob);
      hashes_.push_back(travels(e) ? hash_bytes(bytes(hashes_.size())) : Hash128{});
      if (travels(e)) whole.add(e.name, e.dtype, hashes_.back());
    }
    hashes_.push_back(hash_bytes(meta_));
    whole.add(hashes_.back());
    hashes_.push_back(whole.value());
    return hashes_;
  }

  // ---- serving ----------------------------------------------------------------------------------

  //! Answers a request, or keeps it until serve_waiting(). whole: hash() was called for `version`.
  template <class Comm>
  void take_request(Comm& comm, Frame&& f, bool whole) {
    if (what_of(f) == What::thanks)
      ++thanked_;
    else if (whole || (serves_buckets_ && what_of(f) == What::bucket))
      answer(comm, f);
    else
      waiting_.push_back(std::move(f));
  }
  template <class Comm>
  void serve_waiting(Comm& comm) {
    for (; !waiting_.empty(); waiting_.pop_front()) answer(comm, waiting_.front());
  }
  //! A holder of all reduced buckets answers for them even before it is whole itself.
  template <class Comm>
  void serve_buckets(Comm& comm) {
    serves_buckets_ = true;
    for (const Frame& f : waiting_)
      if (what_of(f) == What::bucket) answer(comm, f);
    std::erase_if(waiting_, [](const Frame& f) { return what_of(f) == What::bucket; });
  }
  //! After Go: nobody will ask any more.
  void done() { blobs_.clear(); }
  //! How many members said that they have every bucket they missed.
  [[nodiscard]] int thanked() const { return thanked_; }
  void forget_requests() {
    waiting_.clear();
    serves_buckets_ = false;
    thanked_ = 0;
  }

  // ---- fetching ---------------------------------------------------------------------------------

  //! One thing to fetch: `size` bytes to `to`, from any of `sources`.
  struct Piece {
    What what;
    std::uint32_t index;
    std::byte* to;
    std::size_t size;
    std::vector<int> sources;
    Incarnation heir_of = 0;  //!< copy: of whom
  };

  //! Asks for chunks, some at each source, until all have come. have: one flag per chunk in order
  //! of pieces; an interrupted fetch goes on with it. Frames that are not chunks are given to
  //! `other`. Throws CommError, Interrupted, PeerLost.
  template <class Comm, class Other>
  void fetch(Comm& comm, std::int64_t version, const std::vector<Piece>& pieces,
             std::vector<bool>& have, Other&& other) {
    struct Part {
      const Piece* piece;
      std::size_t offset, size, number;
      int source;
    };
    std::size_t total = 0;
    for (const Piece& p : pieces) total += (p.size + chunk - 1) / chunk;
    have.resize(total);
    std::size_t left = static_cast<std::size_t>(std::ranges::count(have, false));
    std::vector<Part> asked;
    std::vector<std::size_t> load(static_cast<std::size_t>(comm.size()));
    std::size_t piece = 0, offset = 0, number = 0;
    auto ask = [&] {
      for (;;) {
        while (piece < pieces.size() && (offset >= pieces[piece].size || have[number])) {
          if (offset < pieces[piece].size) {
            offset += chunk;
            ++number;
          } else {
            ++piece;
            offset = 0;
          }
        }
        if (piece == pieces.size()) return;
        const Piece& p = pieces[piece];
        int source =
            *std::ranges::min_element(p.sources, {}, [&](int s) {  // ties: spread the askers
              return std::pair{load[static_cast<std::size_t>(s)],
                               (s + comm.size() - comm.rank() - 1) % comm.size()};
            });
        if (load[static_cast<std::size_t>(source)] == window) return;
        Part part{&p, offset, std::min(chunk, p.size - offset), number, source};
        ++load[static_cast<std::size_t>(source)];
        request(comm, source, version, p.what, p.index, part.offset, part.size, p.heir_of);
        asked.push_back(part);
        offset += chunk;
        ++number;
      }
    };
    ask();
    while (left > 0) {
      Frame f = await(comm, version, asked.front().source, other);
      auto part = std::ranges::find_if(asked, [&](const Part& x) {
        return x.source == f.from && x.piece->index == f.header.tag &&
               x.offset == f.header.offset &&
               static_cast<std::uint16_t>(x.piece->what) == f.header.flags;
      });
      if (part == asked.end()) continue;  // of an attempt that was interrupted
      if (f.payload.size() != part->size)
        throw CommError{"rank " + std::to_string(f.from) + " sent a chunk of another size"};
      std::memcpy(part->piece->to + part->offset, f.payload.data(), part->size);
      received_ += part->size;
      have[part->number] = true;
      --load[static_cast<std::size_t>(f.from)];
      --left;
      asked.erase(part);
      if (on_chunk) on_chunk();
      comm.reached("fetched");
      ask();
    }
  }

  //! Sizes and hashes of what a source holds.
  struct Table {
    std::vector<std::pair<std::uint64_t, Hash128>> items;  //!< per entry, then meta
    std::optional<std::pair<std::uint64_t, Hash128>> copy;
  };
  template <class Comm, class Other>
  Table fetch_table(Comm& comm, int source, Incarnation heir_of, std::int64_t version,
                    Other&& other) {
    request(comm, source, version, What::table, 0, 0, 0, heir_of);
    for (;;) {
      Frame f = await(comm, version, source, other);
      if (f.from != source || f.header.flags != static_cast<std::uint16_t>(What::table)) continue;
      ByteReader r{f.payload.view()};
      Table t;
      auto n = r.get<std::uint32_t>();
      for (std::uint32_t i = 0; i < n; ++i) {
        auto size = r.get<std::uint64_t>();
        t.items.emplace_back(size, r.get<Hash128>());
      }
      if (r.get<bool>()) {
        auto size = r.get<std::uint64_t>();
        t.copy = std::pair{size, r.get<Hash128>()};
      }
      return t;
    }
  }

  //! Everything that travels, from `sources`, at `version`, into the state; returns meta.
  //! Continues where an interrupted attempt at the same version ended.
  template <class Comm, class Other>
  Bytes fetch_state(Comm& comm, std::int64_t version, const std::vector<int>& sources,
                    Other&& other) {
    Table table = fetch_table(comm, sources[static_cast<std::size_t>(comm.rank()) % sources.size()],
                              0, version, other);
    const auto& entries = state_.entries();
    if (table.items.size() != entries.size() + 1)
      throw CommError{"a source registered another number of entries"};
    if (partial_version_ != version || partial_table_ != table.items) {
      partial_version_ = version;
      partial_table_ = table.items;
      partial_.assign(entries.size() + 1, Bytes{});
      have_.clear();
    }
    std::vector<Piece> pieces;
    auto each = [&](auto&& use) {
      for (std::size_t i = 0; i <= entries.size(); ++i) {
        if (i < entries.size() && !travels(entries[i])) continue;
        bool in_place = i < entries.size() && in_host_memory(entries[i]);
        std::size_t size = table.items[i].first;
        if (i < entries.size() && entries[i].kind != TrainState::Kind::state &&
            size != entries[i].bytes())
          throw CommError{"a source holds '" + entries[i].name + "' in another size"};
        if (!in_place) partial_[i].resize(size);
        use(i, in_place ? entries[i].value : partial_[i].data(), size);
      }
    };
    each([&](std::size_t i, std::byte* to, std::size_t size) {
      pieces.push_back({i < entries.size() ? What::item : What::meta, static_cast<std::uint32_t>(i),
                        to, size, sources});
    });
    fetch(comm, version, pieces, have_, other);
    each([&](std::size_t i, std::byte* to, std::size_t size) {
      if (hash_bytes({to, size}) != table.items[i].second)
        throw CommError{
            "what was received of " +
            (i < entries.size() ? "'" + entries[i].name + "'" : std::string{"the step"}) +
            " does not have the hash that its source states"};
    });
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (!travels(entries[i])) continue;
      if (entries[i].kind == TrainState::Kind::state)
        entries[i].load(partial_[i]);
      else if (entries[i].memory != nullptr)
        entries[i].write(partial_[i].data(), entries[i].value, partial_[i].size());
    }
    Bytes meta = std::move(partial_.back());
    partial_version_ = -1;
    partial_.clear();
    return meta;
  }
  [[nodiscard]] std::uint64_t received() const { return received_; }

  template <class Comm>
  static void request(Comm& comm, int to, std::int64_t version, What what, std::uint32_t index,
                      std::size_t offset, std::size_t size, Incarnation heir_of = 0) {
    Header h = comm.header(comm::Kind::request);
    h.step = version;
    h.flags = static_cast<std::uint16_t>(what);
    h.tag = index;
    h.offset = offset;
    Bytes payload =
        std::move(ByteWriter{}.put(static_cast<std::uint64_t>(size)).put(heir_of)).take();
    comm.post_copy(to, h, payload);
  }

 private:
  static bool in_host_memory(const TrainState::Entry& e) {
    return e.kind != TrainState::Kind::state && e.memory == nullptr;
  }
  static What what_of(const Frame& f) { return static_cast<What>(f.header.flags); }

  [[nodiscard]] ByteView bytes(std::size_t entry) const {
    const TrainState::Entry& e = state_.entries()[entry];
    if (!in_host_memory(e)) return blobs_[entry];
    return {e.value, e.bytes()};
  }
  //! The next undamaged chunk of this version, its checksum taken off.
  template <class Comm, class Other>
  static Frame await(Comm& comm, std::int64_t version, int source, Other&& other) {
    Deadline deadline = after(comm.now(), comm.membership().timeout);
    for (;;) {
      std::optional<Frame> f = comm.next_frame(deadline);
      if (!f) throw comm::PeerLost{"a source of state was silent", {.rank = Rank{source}}};
      if (!comm.is(*f, comm::Kind::chunk)) {
        other(*std::move(f));
      } else if (f->header.step == version) {
        f->payload = checked(std::move(f->payload), f->from);
        return *std::move(f);
      }
    }
  }

  //! The last 8 bytes are the checksum of the rest.
  static Payload checked(Payload payload, int from) {
    std::uint64_t sum = 0;
    if (payload.size() >= sizeof sum) {
      std::size_t size = payload.size() - sizeof sum;
      std::memcpy(&sum, payload.data() + size, sizeof sum);
      payload.resize(size);
      if (hash_bytes(payload.view()).lo == sum) return payload;
    }
    throw CommError{"a chunk of state from rank " + std::to_string(from) +
                    " was damaged on its way"};
  }
  template <class Comm>
  void send(Comm& comm, const Frame& asked, ByteView body) const {
    constexpr std::size_t limit = std::size_t{1} << 30;
    if (body.size() > limit) return;  // no peer would take it
    Header h = asked.header;
    h.kind = static_cast<std::uint16_t>(comm::Kind::chunk);
    Payload payload{body.size() + sizeof(std::uint64_t)};
    if (!body.empty()) std::memcpy(payload.data(), body.data(), body.size());
    std::uint64_t sum = hash_bytes(body).lo;
    std::memcpy(payload.data() + body.size(), &sum, sizeof sum);
    comm.post_owned(asked.from, h, std::move(payload));
  }

  template <class Comm>
  void answer(Comm& comm, const Frame& f) {
    ByteReader r{f.payload.view()};
    auto size = r.get<std::uint64_t>();
    auto heir_of = r.get<Incarnation>();
    auto part = [&](ByteView whole) {
      if (f.header.offset > whole.size() || size > whole.size() - f.header.offset || size > chunk)
        return;  // a faulty peer is no reason to end; it times out
      send(comm, f, whole.subspan(f.header.offset, size));
    };
    switch (static_cast<What>(f.header.flags)) {
      case What::table: {
        ByteWriter w;
        w.put(static_cast<std::uint32_t>(state_.entries().size() + 1));
        for (std::size_t i = 0; i < state_.entries().size(); ++i)
          w.put(static_cast<std::uint64_t>(bytes(i).size())).put(hashes_[i]);
        w.put(static_cast<std::uint64_t>(meta_.size())).put(hashes_[state_.entries().size()]);
        const Bytes* copy = copies_.find(heir_of, f.header.step);
        w.put(copy != nullptr);
        if (copy != nullptr) w.put(static_cast<std::uint64_t>(copy->size())).put(hash_bytes(*copy));
        send(comm, f, std::move(w).take());
        break;
      }
      case What::item:
        if (f.header.tag < state_.entries().size()) part(bytes(f.header.tag));
        break;
      case What::meta: part(meta_); break;
      case What::bucket:
        if (f.header.tag < buckets_.size())
          part({buckets_[f.header.tag].data, buckets_[f.header.tag].bytes()});
        else
          part(closing);
        break;
      case What::copy:
        if (const Bytes* copy = copies_.find(heir_of, f.header.step)) part(*copy);
        break;
      case What::thanks: break;
    }
    comm.reached("served");
  }

  const TrainState& state_;
  const BucketPlan& buckets_;
  const PartnerCopies& copies_;
  Bytes meta_;
  std::vector<Bytes> blobs_;
  std::vector<Hash128> hashes_;
  std::deque<Frame> waiting_;
  bool serves_buckets_ = false;
  int thanked_ = 0;
  std::int64_t partial_version_ = -1;
  std::vector<std::pair<std::uint64_t, Hash128>> partial_table_;
  std::vector<Bytes> partial_;
  std::vector<bool> have_;
  std::uint64_t received_ = 0;

 public:
  ByteView closing{};                //!< the closing bucket's bytes, set by the session
  std::function<void()> on_chunk{};  //!< called for each chunk that came
};

}  // namespace mend
