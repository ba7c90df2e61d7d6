#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include "mend/core/byte_count.hpp"
#include "mend/core/train_state.hpp"

namespace mend {

//! What buffers, scalars and states held when a step began, so that the step can be repeated.
//! Parameters and slots need none: the lambda does not change them.
class BeforeImage {
 public:
  explicit BeforeImage(const TrainState& state) : state_{state} {
    std::size_t total = 0;
    for (const TrainState::Entry& e : state.entries())
      if (in_memory(e)) total += e.bytes();
    memory_.resize(total);
  }

  void take() {
    std::byte* at = memory_.data();
    saved_.clear();
    for (const TrainState::Entry& e : state_.entries()) {
      if (in_memory(e)) {
        e.read(e.value, at, e.bytes());
        at += e.bytes();
      } else if (e.kind == TrainState::Kind::state) {
        saved_.push_back(e.save());
      }
    }
  }
  void restore() const {
    const std::byte* at = memory_.data();
    auto saved = saved_.begin();
    for (const TrainState::Entry& e : state_.entries()) {
      if (in_memory(e)) {
        e.write(at, e.value, e.bytes());
        at += e.bytes();
      } else if (e.kind == TrainState::Kind::state) {
        e.load(*saved++);
      }
    }
  }
  //! What it takes at the moment.
  [[nodiscard]] ByteCount bytes() const {
    std::size_t n = memory_.size();
    for (const Bytes& b : saved_) n += b.size();
    return ByteCount{n};
  }

 private:
  static bool in_memory(const TrainState::Entry& e) {
    return e.before_image &&
           (e.kind == TrainState::Kind::buffer || e.kind == TrainState::Kind::scalar);
  }

  const TrainState& state_;
  Bytes memory_;
  std::vector<Bytes> saved_;
};

}  // namespace mend
