#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "mend/core/bytes.hpp"
#include "mend/core/generation.hpp"
#include "mend/core/hash.hpp"
#include "mend/core/link.hpp"
#include "mend/core/step.hpp"

//! The words of the session protocol (docs/protocol.md), as they travel.
namespace mend::comm {

//! Kinds of frames. Header::broken is 0.
enum class Kind : std::uint16_t {
  // worker -> coordinator
  join = 1,     //!< Join: I exist; payload Join
  report,       //!< Report: what I have; payload Report
  ready,        //!< Ready: I am whole, header.step; payload Hash128
  finished,     //!< Finished: all steps up to header.step are committed
  broken_link,  //!< BrokenLink: my connection with rank header.tag failed, or it was silent too
                //!< long; payload one byte: whether I am in a step
  failed,       //!< my lambda threw; payload its message
  again,        //!< another train() begins after Bye
  progress,     //!< header.step steps are committed, or state still arrives; a few times a second
  refused,      //!< this run cannot go on with me; payload why
  // coordinator -> worker
  view = 32,  //!< View: a generation and its members; payload View
  plan,       //!< Plan: header.step is the target; payload Plan
  feed,       //!< Feed: all survivors are whole; replacements may fetch
  go,         //!< Go: every hash was equal
  bye,        //!< Bye: all have finished header.step
  stop,       //!< Stop: payload the reason
  // worker -> worker
  partial = 64,  //!< a chunk's sum so far, along the ring
  total,         //!< a chunk's result, along the ring
  vote,          //!< up the tree: Done, and small records
  verdict,       //!< down the tree
  request,       //!< fetch: payload Request
  chunk,         //!< part of what was requested
  copy,          //!< a partner copy of per-rank state, version header.step
  message,       //!< a channel's
  // inside links
  hello = 128,
  alive,
};

//! The first word of a worker.
struct Join {
  std::string version{};  //!< of the library it was built from
  std::string address{};  //!< where its peers reach it
};

//! A generation's members, in rank order.
struct View {
  Generation generation{};
  std::uint32_t lineage =
      0;  //!< changes when the group shrinks: the split of a batch is another one
  int rank = 0;
  std::vector<Peer> peers{};
  bool first = false;  //!< version 0, as constructed, is the state

  [[nodiscard]] int size() const { return static_cast<int>(peers.size()); }
};

//! What a member has when a generation opens.
struct Report {
  bool has_state = false;    //!< it trained, or it is of the first generation
  bool all_reduced = false;  //!< every bucket of header.step is reduced
  //! Partner copies of per-rank state that it holds: whose, and which versions (at most two).
  std::vector<std::pair<Incarnation, std::vector<std::int64_t>>> copies{};
  int copies_wanted = 0;  //!< how many partners its own per-rank state asks for
  bool restores = false;  //!< it can go back to a checkpoint
  bool alone = false;     //!< some of its state is nowhere else but in a checkpoint
  std::string schema{};   //!< one line per registered entry, and the optimizer; equal on all
};

//! How to become whole.
struct Plan {
  bool restore = false;               //!< nobody has state: take the next rung
  std::vector<int> sources{};         //!< ranks that hold, or can reach, the target by themselves
  std::vector<int> bucket_holders{};  //!< ranks that have every reduced bucket of target - 1
  int bucket_fetchers = 0;            //!< how many survivors miss some of them
  //! For each rank without state: ranks that hold its per-rank state of the target version.
  std::vector<std::pair<int, std::vector<int>>> copy_holders{};
};

inline Bytes encode(const Join& m) {
  return std::move(ByteWriter{}.put_string(m.version).put_string(m.address)).take();
}
inline Join decode_join(ByteView bytes) {
  ByteReader r{bytes};
  Join m;
  m.version = r.get_string();
  m.address = r.get_string();
  return m;
}

namespace detail {
template <class T>
void put_list(ByteWriter& w, const std::vector<T>& list) {
  w.put(static_cast<std::uint32_t>(list.size()));
  for (const T& x : list) w.put(x);
}
template <class T>
std::vector<T> get_list(ByteReader& r) {
  auto n = r.get<std::uint32_t>();
  std::vector<T> list;
  for (std::uint32_t i = 0; i < n; ++i)
    list.push_back(r.get<T>());  // ends by itself at a short message
  return list;
}
}  // namespace detail

inline Bytes encode(const View& m) {
  ByteWriter w;
  w.put(m.generation.value()).put(m.lineage).put(m.rank).put(m.first);
  w.put(static_cast<std::uint32_t>(m.peers.size()));
  for (const Peer& p : m.peers) w.put(p.incarnation).put_string(p.address).put(p.heir_of);
  return std::move(w).take();
}
inline View decode_view(ByteView bytes) {
  ByteReader r{bytes};
  View m;
  m.generation = Generation{r.get<std::uint32_t>()};
  m.lineage = r.get<std::uint32_t>();
  m.rank = r.get<int>();
  m.first = r.get<bool>();
  auto n = r.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < n; ++i) {
    Peer p;
    p.incarnation = r.get<Incarnation>();
    p.address = r.get_string();
    p.heir_of = r.get<Incarnation>();
    m.peers.push_back(std::move(p));
  }
  return m;
}

inline Bytes encode(const Report& m) {
  ByteWriter w;
  w.put(m.has_state).put(m.all_reduced).put(m.copies_wanted).put(m.restores).put(m.alone);
  w.put(static_cast<std::uint32_t>(m.copies.size()));
  for (const auto& [whose, versions] : m.copies) {
    w.put(whose);
    detail::put_list(w, versions);
  }
  w.put_string(m.schema);
  return std::move(w).take();
}
inline Report decode_report(ByteView bytes) {
  ByteReader r{bytes};
  Report m;
  m.has_state = r.get<bool>();
  m.all_reduced = r.get<bool>();
  m.copies_wanted = r.get<int>();
  m.restores = r.get<bool>();
  m.alone = r.get<bool>();
  auto n = r.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < n; ++i) {
    auto whose = r.get<Incarnation>();
    m.copies.emplace_back(whose, detail::get_list<std::int64_t>(r));
  }
  m.schema = r.get_string();
  return m;
}

inline Bytes encode(const Plan& m) {
  ByteWriter w;
  w.put(m.restore);
  detail::put_list(w, m.sources);
  detail::put_list(w, m.bucket_holders);
  w.put(m.bucket_fetchers);
  w.put(static_cast<std::uint32_t>(m.copy_holders.size()));
  for (const auto& [rank, holders] : m.copy_holders) {
    w.put(rank);
    detail::put_list(w, holders);
  }
  return std::move(w).take();
}
inline Plan decode_plan(ByteView bytes) {
  ByteReader r{bytes};
  Plan m;
  m.restore = r.get<bool>();
  m.sources = detail::get_list<int>(r);
  m.bucket_holders = detail::get_list<int>(r);
  m.bucket_fetchers = r.get<int>();
  auto n = r.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < n; ++i) {
    auto rank = r.get<int>();
    m.copy_holders.emplace_back(rank, detail::get_list<int>(r));
  }
  return m;
}

}  // namespace mend::comm
