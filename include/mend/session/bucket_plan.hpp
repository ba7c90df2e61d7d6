#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "mend/comm/buffer.hpp"
#include "mend/core/arena.hpp"
#include "mend/core/train_state.hpp"

namespace mend {

//! Which gradients travel and are updated together. A tensor is a bucket of its own unless it is
//! small; small neighbours are packed into one, so that ten thousand biases are not ten thousand
//! messages. The same on every rank, since it depends on sizes and types alone.
class BucketPlan {
 public:
  static constexpr std::size_t small_bytes = std::size_t{16} << 10;
  static constexpr std::size_t packed_bytes = std::size_t{256} << 10;

  struct Bucket {
    std::vector<std::size_t> entries;  //!< indices into TrainState::entries()
    std::size_t count = 0;             //!< gradient elements
    DType dtype = DType::f32;          //!< of the gradients
    std::byte* data = nullptr;         //!< where it is contiguous: the gradient itself, or its pack

    [[nodiscard]] std::size_t bytes() const { return count * size_of(dtype); }
    bool on_device = false;  //!< its tensors' memory; the pack is always the host's
    [[nodiscard]] bool packed() const { return on_device || entries.size() > 1; }
  };

  explicit BucketPlan(const TrainState& state) : state_{state} {
    const auto& entries = state.entries();
    bool open = false;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const TrainState::Entry& e = entries[i];
      if (e.kind != TrainState::Kind::tensor || !e.tied_to.empty() || e.count == 0) continue;
      bool small = e.gradient_bytes() < small_bytes;
      if (!(small && open && buckets_.back().dtype == e.gradient_dtype &&
            buckets_.back().on_device == (e.memory != nullptr) &&
            buckets_.back().bytes() + e.gradient_bytes() <= packed_bytes)) {
        buckets_.emplace_back();
        buckets_.back().dtype = e.gradient_dtype;
        buckets_.back().on_device = e.memory != nullptr;
      }
      open = small;
      buckets_.back().entries.push_back(i);
      buckets_.back().count += e.count;
    }
    std::size_t packs = 0;
    for (const Bucket& b : buckets_)
      if (b.packed()) packs += Arena::aligned(b.bytes());
    pack_ = Arena{ByteCount{packs}};
    std::byte* at = pack_.data();
    for (Bucket& b : buckets_) {
      b.data = b.packed() ? at : entries[b.entries.front()].gradient;
      if (b.packed()) at += Arena::aligned(b.bytes());
    }
  }

  [[nodiscard]] std::size_t size() const { return buckets_.size(); }
  [[nodiscard]] const Bucket& operator[](std::size_t i) const { return buckets_[i]; }

  //! The entry of a tensor, or of the one that it is tied to. Throws StateError for an unknown
  //! name.
  [[nodiscard]] std::size_t entry(std::string_view name) const {
    const TrainState::Entry* e = state_.find(name);
    if (e != nullptr && !e->tied_to.empty()) e = state_.find(e->tied_to);
    if (e == nullptr || e->kind != TrainState::Kind::tensor)
      throw StateError{"ready(\"" + std::string{name} + "\"): no tensor of that name was added"};
    return static_cast<std::size_t>(e - state_.entries().data());
  }
  //! The bucket of an entry, or size() when it is in none.
  [[nodiscard]] std::size_t find(std::size_t index) const {
    for (std::size_t b = 0; b < buckets_.size(); ++b)
      if (std::ranges::find(buckets_[b].entries, index) != buckets_[b].entries.end()) return b;
    return buckets_.size();
  }

  //! Gradients into the pack, and back; nothing to do for a bucket of one tensor in host memory.
  void pack(std::size_t i) { move(i, true); }
  void unpack(std::size_t i) { move(i, false); }

  //! The tensors of a bucket with their gradients in host memory: themselves, or in the pack.
  template <class Body>
  void each_gradient(std::size_t i, const Body& body) const {
    const Bucket& b = buckets_[i];
    const std::byte* at = b.data;
    for (std::size_t index : b.entries) {
      const TrainState::Entry& e = state_.entries()[index];
      body(e, b.on_device ? at : e.gradient);
      at += e.gradient_bytes();
    }
  }

  [[nodiscard]] comm::Buffer buffer(std::size_t i) const {
    return {buckets_[i].data, buckets_[i].count, buckets_[i].dtype, comm::Reduction::mean,
            static_cast<std::uint32_t>(i)};
  }

 private:
  void move(std::size_t i, bool in) {
    const Bucket& b = buckets_[i];
    if (!b.packed()) return;
    std::byte* at = b.data;
    for (std::size_t index : b.entries) {
      const TrainState::Entry& e = state_.entries()[index];
      if (in)
        e.read(e.gradient, at, e.gradient_bytes());
      else
        e.write(at, e.gradient, e.gradient_bytes());
      at += e.gradient_bytes();
    }
  }

  const TrainState& state_;
  std::vector<Bucket> buckets_;
  Arena pack_;
};

}  // namespace mend
