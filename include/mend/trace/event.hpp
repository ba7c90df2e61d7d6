#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "mend/core/byte_count.hpp"
#include "mend/core/clock.hpp"
#include "mend/core/generation.hpp"
#include "mend/core/rank.hpp"
#include "mend/core/step.hpp"

namespace mend::trace {

//! What happened. A recovery spans view, plan, transfer and whatever else it needs.
enum class EventKind : std::uint8_t {
  step,         //!< the trainer's lambda, from call to return
  reduce,       //!< a bucket's reduction
  update,       //!< a bucket's update
  commit,       //!< a step became final
  view,         //!< a new generation
  plan,         //!< what the generation's members agreed to do
  recovery,     //!< from the loss to the next step
  transfer,     //!< state or reduced buckets sent to a member
  death,        //!< a worker ended, or was ended
  replacement,  //!< a worker started in the place of another
  stop,         //!< the run ended before its last step
  stall,        //!< training waited: for a peer, for a full queue, for a disk
};

[[nodiscard]] constexpr std::string_view name_of(EventKind kind) {
  switch (kind) {
    case EventKind::step: return "step";
    case EventKind::reduce: return "reduce";
    case EventKind::update: return "update";
    case EventKind::commit: return "commit";
    case EventKind::view: return "view";
    case EventKind::plan: return "plan";
    case EventKind::recovery: return "recovery";
    case EventKind::transfer: return "transfer";
    case EventKind::death: return "death";
    case EventKind::replacement: return "replacement";
    case EventKind::stop: return "stop";
    case EventKind::stall: return "stall";
  }
  return "?";
}

//! Something that took a while, or a moment: then its duration is zero.
struct Event {
  Time time{};  //!< when it began
  Rank rank{};
  Generation generation{};
  Step step{};
  EventKind kind = EventKind::step;
  std::string name{};  //!< what of its kind, "bucket 2"; empty: the kind's own name
  Time duration{};
  ByteCount bytes{};
  std::string text{};  //!< for people

  [[nodiscard]] std::string_view label() const { return name.empty() ? name_of(kind) : name; }
};

}  // namespace mend::trace
