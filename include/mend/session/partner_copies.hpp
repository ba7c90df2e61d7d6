#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "mend/core/byte_count.hpp"
#include "mend/core/bytes.hpp"
#include "mend/core/link.hpp"
#include "mend/core/train_state.hpp"

namespace mend {

//! Copies of other ranks' PerRank state, by whose place it is (Peer::heir_of: whichever incarnation
//! sent them, their bits are the same) and version. A version becomes the committed one only at
//! commit; until then the one before is kept too.
class PartnerCopies {
 public:
  explicit PartnerCopies(const TrainState& state) : state_{state} {
    for (const TrainState::Entry& e : state.entries())
      if (e.placement.per_rank) wanted_ = std::max(wanted_, e.placement.copies);
  }

  //! How many partners this rank's own per-rank state asks for.
  [[nodiscard]] int wanted() const { return wanted_; }

  //! This rank's per-rank state as it is now.
  [[nodiscard]] Bytes encode() const {
    ByteWriter w;
    Bytes room;
    for (const TrainState::Entry& e : state_.entries()) {
      if (!copied(e)) continue;
      if (e.kind == TrainState::Kind::state)
        w.put_bytes(e.save());
      else
        w.put_bytes(e.view(room));
    }
    return std::move(w).take();
  }
  //! Takes over what another incarnation of this rank had.
  void decode(ByteView bytes) const {
    ByteReader r{bytes};
    for (const TrainState::Entry& e : state_.entries()) {
      if (!copied(e)) continue;
      ByteView part = r.get_bytes();
      if (e.kind == TrainState::Kind::state) {
        e.load(part);
      } else {
        if (part.size() != e.bytes())
          throw StateError{"a partner's copy of '" + e.name + "' has another size"};
        e.write(part.data(), e.value, part.size());
      }
    }
  }

  void hold(Incarnation whose, std::int64_t version, Bytes copy) {
    held_[whose].insert_or_assign(version, std::move(copy));
  }
  [[nodiscard]] const Bytes* find(Incarnation whose, std::int64_t version) const {
    auto who = held_.find(whose);
    if (who == held_.end()) return nullptr;
    auto at = who->second.find(version);
    return at == who->second.end() ? nullptr : &at->second;
  }
  //! After the commit of `version`: older ones are not needed any more.
  void committed(std::int64_t version) {
    for (auto& [whose, versions] : held_)
      std::erase_if(versions, [&](const auto& v) { return v.first < version; });
  }
  //! After a step was taken back: what was ahead of `version` is void.
  void taken_back(std::int64_t version) {
    for (auto& [whose, versions] : held_)
      std::erase_if(versions, [&](const auto& v) { return v.first > version; });
  }
  //! Members of the new generation have sent their copies anew: those of the dead may go.
  void keep_only(const std::vector<Incarnation>& members) {
    std::erase_if(
        held_, [&](const auto& h) { return std::ranges::find(members, h.first) == members.end(); });
  }
  [[nodiscard]] std::vector<std::pair<Incarnation, std::vector<std::int64_t>>> list() const {
    std::vector<std::pair<Incarnation, std::vector<std::int64_t>>> all;
    for (const auto& [whose, versions] : held_) {
      all.emplace_back(whose, std::vector<std::int64_t>{});
      for (const auto& [version, copy] : versions) all.back().second.push_back(version);
    }
    return all;
  }
  [[nodiscard]] ByteCount bytes() const {
    std::size_t n = 0;
    for (const auto& [whose, versions] : held_)
      for (const auto& [version, copy] : versions) n += copy.size();
    return ByteCount{n};
  }

 private:
  static bool copied(const TrainState::Entry& e) {
    return e.placement.per_rank && e.placement.copies > 0;
  }

  const TrainState& state_;
  int wanted_ = 0;
  std::map<Incarnation, std::map<std::int64_t, Bytes>> held_;
};

}  // namespace mend
