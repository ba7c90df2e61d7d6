#pragma once

#include <span>
#include <string>

#include "mend/checkpoint/place.hpp"
#include "mend/core/dtype.hpp"
#include "mend/core/hash.hpp"
#include "mend/core/text.hpp"
#include "mend/core/train_state.hpp"
#include "mend/store/safetensors.hpp"

namespace mend::checkpoint {

//! What a checkpoint must fit: names, kinds, types, shapes, placements and ties of a state, in
//! their order; within a session the optimizer's slots too, so that another optimizer has another
//! schema. The same on every rank and for every rank count: the shapes of per-rank entries and the
//! blocks of slices do not count.
[[nodiscard]] inline Hash128 schema_of(const TrainState& state) {
  std::string text;
  for (const TrainState::Entry& e : state.entries()) {
    append_json(text, e.name);
    text.append(" ").append(store::detail::kind_names[static_cast<std::size_t>(e.kind)]);
    text.append(" ").append(name_of(e.dtype)).append(" ");
    Place place = Place::of(e);
    if (place.kind == Place::Kind::whole)
      text += e.kind == TrainState::Kind::state ? "bytes" : to_text(e.shape);
    else
      text += place.kind == Place::Kind::rank ? "per rank" : "of " + to_text(place.slice.of);
    if (!e.tied_to.empty()) append_json(text += " tied to ", e.tied_to);
    text += '\n';
  }
  return hash_bytes(std::as_bytes(std::span{text}));
}

}  // namespace mend::checkpoint
