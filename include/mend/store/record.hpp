#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "mend/core/bytes.hpp"
#include "mend/core/error.hpp"
#include "mend/core/hash.hpp"
#include "mend/store/store.hpp"

namespace mend::store {

//! The frame of a record in a segment; little-endian. The payload follows, then the next frame.
struct RecordFrame {
  std::uint64_t magic = 0;     //!< "mendrec1"
  std::uint64_t length = 0;    //!< bytes of payload
  std::uint64_t sequence = 0;  //!< 0, 1, 2, ... within the segment
  Hash128 checksum{};          //!< of the 24 bytes before and the payload, seeded with the segment

  static constexpr std::uint64_t expected_magic = 0x31636572'646e656d;

  [[nodiscard]] Hash128 hash_with(ByteView payload, std::uint64_t seed) const {
    HashSum sum = hash_range(std::as_bytes(std::span{this, 1}).first(covered));
    sum += hash_range(payload, covered);
    return finish(sum, covered + payload.size(), seed);
  }

  //! A record counts in the segment that it was written to and in no other, so that what a power
  //! loss leaves of an older file in a newer one's place is never taken for one of its records.
  //! Folders do not matter: a segment may be copied elsewhere under its own name.
  [[nodiscard]] static std::uint64_t seed_of(std::string_view segment) {
    return hash_bytes(std::as_bytes(std::span{segment.substr(segment.rfind('/') + 1)})).lo;
  }

 private:
  static constexpr std::size_t covered = 24;
};
static_assert(sizeof(RecordFrame) == 40);

//! Writes records to a segment. Durable are those appended before sync() returned. After an error
//! the segment takes nothing more: go on in a new one. One thread at a time.
template <class Appender>
class RecordWriter {
 public:
  //! `segment`: the name under which `appender` was got.
  RecordWriter(Appender appender, std::string_view segment)
      : appender_{std::move(appender)}, seed_{RecordFrame::seed_of(segment)} {}

  //! Blocks as the store does. Cost: one pass over the payload besides the writing.
  void append(ByteView payload) {
    RecordFrame frame{RecordFrame::expected_magic, payload.size(), sequence_, {}};
    frame.checksum = frame.hash_with(payload, seed_);
    appender_.append(std::as_bytes(std::span{&frame, 1}));
    appender_.append(payload);
    ++sequence_;
    length_ += sizeof frame + payload.size();
  }
  void sync() { appender_.sync(); }

  //! Bytes of the whole records so far: where a manifest may seal the segment.
  [[nodiscard]] std::uint64_t length() const { return length_; }

 private:
  Appender appender_;
  std::uint64_t seed_, sequence_ = 0, length_ = 0;
};

//! Reads the records of a segment, from the first to the first torn byte. What comes behind it is
//! never looked at. Memory: the largest payload, and never more than the segment's own length.
class RecordReader {
 public:
  //! Fills a span from an offset, or throws.
  using Read = std::function<void(std::uint64_t offset, std::span<std::byte> into)>;

  //! `length`: bytes of the segment to look at.
  RecordReader(std::string_view segment, std::uint64_t length, Read read)
      : seed_{RecordFrame::seed_of(segment)}, length_{length}, read_{std::move(read)} {}
  //! `bytes` must outlive this.
  RecordReader(std::string_view segment, ByteView bytes)
      : RecordReader{segment, bytes.size(), [bytes](std::uint64_t offset, std::span<std::byte> to) {
                       std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), to.size(),
                                   to.begin());
                     }} {}
  //! The first `most` bytes of a segment, or all where it is shorter. Throws FileError with ENOENT
  //! where there is none.
  template <Store S>
  RecordReader(S store, const std::string& segment, std::uint64_t most = ~std::uint64_t{})
      : RecordReader{segment, std::min(most, size_in(store, segment)),
                     [store, segment](std::uint64_t offset, std::span<std::byte> into) mutable {
                       store.read_range(segment, offset, into);
                     }} {}

  //! The next record's payload, until the next call; empty at the end and at a torn record, which
  //! why_torn() tells apart. Throws what the reading throws.
  [[nodiscard]] std::optional<ByteView> next() {
    if (end_ == length_ || !why_torn_.empty()) return std::nullopt;
    std::uint64_t rest = length_ - end_;
    RecordFrame frame;
    if (rest < sizeof frame) return torn("the frame is cut short");
    read_(end_, std::as_writable_bytes(std::span{&frame, 1}));
    if (frame.magic != RecordFrame::expected_magic) return torn("no record begins here");
    if (frame.length > rest - sizeof frame) return torn("the payload is cut short");
    if (frame.sequence != sequence_)
      return torn("record " + std::to_string(frame.sequence) + " stands where " +
                  std::to_string(sequence_) + " belongs");
    payload_.resize(frame.length);
    read_(end_ + sizeof frame, payload_);
    if (frame.hash_with(payload_, seed_) != frame.checksum) return torn("the checksum differs");
    ++sequence_;
    end_ += sizeof frame + frame.length;
    return payload_;
  }

  //! Whole records so far, and the offset of the first byte behind them.
  [[nodiscard]] std::uint64_t count() const { return sequence_; }
  [[nodiscard]] std::uint64_t end() const { return end_; }
  //! "torn at 4096 of 5000 bytes: the checksum differs"; empty while nothing torn was met.
  [[nodiscard]] const std::string& why_torn() const { return why_torn_; }

 private:
  template <Store S>
  static std::uint64_t size_in(S& store, const std::string& segment) {
    std::optional<std::uint64_t> size = store.size(segment);
    if (!size) throw FileError{"the segment is not there", {.code = ENOENT, .path = segment}};
    return *size;
  }
  std::nullopt_t torn(const std::string& why) {
    why_torn_ =
        "torn at " + std::to_string(end_) + " of " + std::to_string(length_) + " bytes: " + why;
    return std::nullopt;
  }

  std::uint64_t seed_, length_, sequence_ = 0, end_ = 0;
  Read read_;
  Bytes payload_;
  std::string why_torn_;
};

}  // namespace mend::store
