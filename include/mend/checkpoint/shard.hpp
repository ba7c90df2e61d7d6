#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mend/checkpoint/shard_plan.hpp"
#include "mend/core/bytes.hpp"
#include "mend/core/hash.hpp"
#include "mend/core/train_state.hpp"
#include "mend/store/manifest.hpp"
#include "mend/store/safetensors.hpp"
#include "mend/store/safetensors_header.hpp"
#include "mend/store/store.hpp"

namespace mend::checkpoint {

//! Which checkpoint a shard belongs to, and which part of it the shard is.
struct ShardLabel {
  std::int64_t step = 0, applied = 0;  //!< committed steps; updates applied
  std::string run{};                   //!< store::Manifest::Run::id
  std::uint64_t generation = 0;        //!< of the writer's claim
  int part = 0, parts = 1;             //!< part p is rank p's

  friend bool operator==(const ShardLabel&, const ShardLabel&) = default;
};

//! A piece of a plan, and its bytes in the host's memory.
struct ShardTensor {
  const ShardPlan::Piece* piece;
  ByteView bytes;
  std::optional<Hash128> hash{};  //!< of the bytes, where somebody has it already
};

namespace detail {

//! hash_bytes of what is added in pieces of any size.
class StreamHash {
 public:
  void add(ByteView bytes) {
    size_ += bytes.size();
    if (held_ != 0) {
      std::size_t n = std::min(bytes.size(), word_.size() - held_);
      if (n != 0) std::memcpy(word_.data() + held_, bytes.data(), n);
      bytes = bytes.subspan(n);
      if ((held_ += n) < word_.size()) return;
      add_words(word_);
    }
    std::size_t whole = bytes.size() / 8 * 8;
    add_words(bytes.first(whole));
    held_ = bytes.size() - whole;
    if (held_ != 0) std::memcpy(word_.data(), bytes.data() + whole, held_);
  }
  [[nodiscard]] Hash128 value() const {
    HashSum sum = sum_;
    sum += hash_range(ByteView{word_}.first(held_), hashed_);
    return finish(sum, size_);
  }

 private:
  void add_words(ByteView bytes) {
    sum_ += hash_range(bytes, hashed_);
    hashed_ += bytes.size();
    held_ = 0;
  }

  HashSum sum_;
  std::uint64_t hashed_ = 0, size_ = 0;
  std::array<std::byte, 8> word_{};  // the last bytes, which are no whole word
  std::size_t held_ = 0;
};

inline constexpr std::size_t write_chunk = std::size_t{1} << 20;

inline store::SafetensorsHeader shard_header(const ShardLabel& label,
                                             const store::SafetensorsHeader::Strings& tied,
                                             std::span<const ShardTensor> tensors,
                                             std::string_view hashes) {
  store::SafetensorsHeader header;
  std::string kinds, places;
  std::uint64_t end = 0;
  for (const ShardTensor& t : tensors) {
    const TrainState::Entry& e = *t.piece->entry;
    std::string_view separator = kinds.empty() ? "" : " ";
    kinds.append(separator).append(store::detail::kind_names[static_cast<std::size_t>(e.kind)]);
    places.append(separator).append(t.piece->place.text());
    bool state = e.kind == TrainState::Kind::state;
    std::uint64_t begin = std::exchange(end, end + t.bytes.size());
    header.tensors.push_back(
        {e.name, e.dtype, state ? Shape{static_cast<std::int64_t>(t.bytes.size())} : t.piece->shape,
         begin, end});
  }
  header.metadata = {{"format", "mend"},
                     {"mend.version", std::string{store::detail::format_version}},
                     {"mend.step", std::to_string(label.step)},
                     {"mend.applied", std::to_string(label.applied)},
                     {"mend.run", label.run},
                     {"mend.generation", std::to_string(label.generation)},
                     {"mend.rank", std::to_string(label.part)},
                     {"mend.size", std::to_string(label.parts)},
                     {"mend.kinds", kinds},
                     {"mend.places", places},
                     {"mend.hashes", std::string{hashes}},
                     {"mend.tied", store::SafetensorsHeader::text_of(tied)},
                     {"mend.checksum", std::string{store::detail::no_checksum}}};
  return header;
}

}  // namespace detail

//! Writes one part of a checkpoint as a .safetensors file under a name of its own, and returns what
//! a manifest says of it; then it is whole and as durable as the store makes it. Tensors in the
//! order of their plan. progress(n) is called between chunks of 1 MiB: the bytes of the first n
//! tensors are not needed any more. Where it throws, or the store does, nothing is left behind.
//! Blocks as the store does. Throws FileError; StateError where there are more names than a file
//! can list. Cost: two passes over the bytes,
//! one where the hashes are given.
template <Store S>
[[nodiscard]] store::Manifest::Shard write_shard(S& store, const ShardLabel& label,
                                                 const store::SafetensorsHeader::Strings& tied,
                                                 std::span<const ShardTensor> tensors,
                                                 auto&& progress) {
  store::Manifest::Shard shard{.name = store::shard_name(label.step, label.generation,
                                                         static_cast<std::size_t>(label.part))};
  std::string hashes;
  for (const ShardTensor& t : tensors) {
    progress(std::size_t{0});
    hashes.append(hashes.empty() ? "" : " ")
        .append((t.hash ? *t.hash : hash_bytes(t.bytes)).to_hex());
  }
  std::string header =
      store::detail::sealed(detail::shard_header(label, tied, tensors, hashes), shard.name);
  detail::StreamHash hash;
  typename S::Writer writer = store.put_new(shard.name);
  auto write = [&](ByteView bytes) {
    hash.add(bytes);
    writer.write(bytes);
    shard.length += bytes.size();
  };
  std::uint64_t length = header.size();
  write(std::as_bytes(std::span{&length, 1}));
  write(std::as_bytes(std::span{header}));
  std::size_t done = 0;
  for (const ShardTensor& t : tensors) {
    for (ByteView rest = t.bytes; !rest.empty();) {
      progress(done);
      ByteView chunk = rest.first(std::min(rest.size(), detail::write_chunk));
      write(chunk);
      rest = rest.subspan(chunk.size());
    }
    ++done;
  }
  progress(done);
  writer.publish();
  shard.hash = hash.value();
  return shard;
}

}  // namespace mend::checkpoint
