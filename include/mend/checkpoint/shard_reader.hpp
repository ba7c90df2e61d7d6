#pragma once

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mend/checkpoint/place.hpp"
#include "mend/checkpoint/shard.hpp"
#include "mend/core/bytes.hpp"
#include "mend/core/dtype.hpp"
#include "mend/core/error.hpp"
#include "mend/core/hash.hpp"
#include "mend/core/train_state.hpp"
#include "mend/store/manifest.hpp"
#include "mend/store/safetensors.hpp"
#include "mend/store/safetensors_header.hpp"
#include "mend/store/store.hpp"

namespace mend::checkpoint {

//! A shard as write_shard() wrote it. The header is read and verified at once; memory is bounded by
//! the file's own size whatever it says. One thread at a time. Everything blocks as the store does
//! and throws FileError where the file cannot be read or trusted. Memory: the header, and 1 MiB
//! once data is read.
template <Store S>
class ShardReader {
 public:
  struct Tensor {
    std::string name;
    TrainState::Kind kind;
    DType dtype;
    Shape shape;
    std::uint64_t begin, end;  //!< bytes, from the start of the data
    std::string hash;          //!< of them, as text
    Place place;
    bool verified = false;  //!< its bytes were read once and had that hash

    [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(end - begin); }
  };

  ShardReader(S store, const store::Manifest::Shard& shard)
      : store_{std::move(store)}, name_{shard.name}, size_{shard.length} {
    std::optional<std::uint64_t> size = store_.size(name_);
    if (!size) throw FileError{"the shard is not there", {.code = ENOENT, .path = name_}};
    if (*size != size_)
      throw FileError{"the shard has " + std::to_string(*size) + " bytes and its manifest says " +
                          std::to_string(size_),
                      {.path = name_}};
    std::uint64_t length = 0;
    if (size_ < 8) fail("it is too short for a .safetensors file");
    store_.read_range(name_, 0, std::as_writable_bytes(std::span{&length, 1}));
    if (length > size_ - 8 || length > store::SafetensorsHeader::longest)
      fail("its header would have " + std::to_string(length) + " bytes");
    std::string text(static_cast<std::size_t>(length), '\0');
    store_.read_range(name_, 8, std::as_writable_bytes(std::span{text}));
    data_ = 8 + length;
    auto header = store::SafetensorsHeader::parse(text, size_ - data_, name_);
    auto notes = store::detail::read_notes(header, std::move(text), name_);
    if (!notes) fail("mend did not write it");
    take(header, *notes);
  }

  [[nodiscard]] const ShardLabel& label() const { return label_; }
  [[nodiscard]] const std::vector<Tensor>& tensors() const { return tensors_; }
  //! Each tied entry, and the entry that holds its bytes.
  [[nodiscard]] const store::SafetensorsHeader::Strings& tied() const { return tied_; }
  [[nodiscard]] const std::string& name() const { return name_; }

  //! Reads a tensor's bytes once and compares their hash; then `verified`.
  void verify(std::size_t i) {
    if (!tensors_[i].verified) stream(i, [](std::size_t, ByteView) {});
  }
  void verify() {
    for (std::size_t i = 0; i < tensors_.size(); ++i) verify(i);
    release();
  }

  //! A tensor's bytes, into as many; they are right once this returns.
  void read(std::size_t i, std::span<std::byte> into) {
    Tensor& t = tensors_[i];
    if (t.bytes() <= window_size) {
      stream(i, [&](std::size_t at, ByteView part) {
        std::copy(part.begin(), part.end(), into.begin() + static_cast<std::ptrdiff_t>(at));
      });
      return;
    }
    HashSum sum;
    for (std::size_t done = 0; done < t.bytes();) {  // while a chunk is in the cache, its hash
      std::size_t n = std::min(window_size, t.bytes() - done);
      store_.read_range(name_, data_ + t.begin + done, into.subspan(done, n));
      sum += hash_range(into.subspan(done, n), done);
      done += n;
    }
    compare(t, finish(sum, t.bytes()));
  }
  [[nodiscard]] Bytes read(std::size_t i) {
    Bytes bytes(tensors_[i].bytes());
    read(i, bytes);
    return bytes;
  }

  //! sink(offset, bytes) for a tensor, in order; they are right once this returns.
  void stream(std::size_t i, auto sink) {
    Tensor& t = tensors_[i];
    HashSum sum;
    for (std::size_t done = 0; done < t.bytes();) {
      ByteView part = look(t.begin + done, std::min(window_size, t.bytes() - done));
      sum += hash_range(part, done);
      sink(done, part);
      done += part.size();
    }
    compare(t, finish(sum, t.bytes()));
  }

  //! Gives back the memory that reading took.
  void release() { window_ = {}; }

 private:
  static constexpr std::size_t window_size = std::size_t{1} << 20;

  [[noreturn]] void fail(const std::string& what) const {
    throw FileError{"the shard is damaged: " + what, {.path = name_}};
  }

  //! Bytes of the data, no more than a window has. Thousands of small tensors are read by the
  //! window, not one by one.
  ByteView look(std::uint64_t at, std::size_t n) {
    if (at < window_at_ || at + n > window_at_ + window_.size()) {
      std::uint64_t rest = size_ - data_ - at;
      window_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(window_size, rest)));
      window_at_ = at;
      try {
        store_.read_range(name_, data_ + at, window_);
      } catch (...) {
        window_.clear();
        throw;
      }
    }
    return ByteView{window_}.subspan(static_cast<std::size_t>(at - window_at_), n);
  }
  void compare(Tensor& t, Hash128 hash) {
    t.verified = hash.to_hex() == t.hash;
    if (!t.verified) {
      window_.clear();  // the next look is a new one
      fail("the checksum of '" + t.name + "' differs");
    }
  }

  void take(store::SafetensorsHeader& header, store::detail::Notes& notes) {
    auto word = [&](std::string_view key) -> const std::string& {
      const std::string* value = header.find(key);
      if (value == nullptr) fail("its header lacks " + std::string{key});
      return *value;
    };
    const std::string& digits = word("mend.generation");
    auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), label_.generation);
    if (error != std::errc{} || end != digits.data() + digits.size())
      fail("its mend.generation is not a count");
    constexpr std::int64_t most = 1 << 30;
    if (notes.size < 1 || notes.size > most || notes.rank >= notes.size)
      fail("it cannot be part " + std::to_string(notes.rank) + " of " + std::to_string(notes.size));
    label_.step = notes.step;
    label_.applied = notes.applied;
    label_.run = word("mend.run");
    label_.part = static_cast<int>(notes.rank);
    label_.parts = static_cast<int>(notes.size);
    tied_ = std::move(notes.tied);
    std::vector<std::string> places = store::detail::words(word("mend.places"));
    if (places.size() != header.tensors.size()) fail("places are missing");
    for (std::size_t i = 0; i < places.size(); ++i) {
      auto& t = header.tensors[i];
      const auto* known = std::find(std::begin(store::detail::kind_names),
                                    std::end(store::detail::kind_names), notes.kinds[i]);
      if (known == std::end(store::detail::kind_names))
        fail("'" + t.name + "' has an unknown kind '" + notes.kinds[i] + "'");
      std::optional<Place> place = Place::parse(places[i]);
      if (!place || !fits(*place, t))
        fail("'" + t.name + "' has a place that it cannot have: '" + places[i] + "'");
      tensors_.push_back(
          {std::move(t.name),
           static_cast<TrainState::Kind>(known - std::begin(store::detail::kind_names)), t.dtype,
           std::move(t.shape), t.begin, t.end, std::move(notes.hashes[i]), std::move(*place)});
    }
  }
  //! Whether a tensor's own size is what its place says.
  static bool fits(const Place& place, const store::SafetensorsHeader::Tensor& t) {
    if (place.kind == Place::Kind::rows)
      return !t.shape.empty() && t.shape[0] > 0 && t.shape[0] <= place.all_rows &&
             place.first_row <= place.all_rows - t.shape[0];
    if (place.kind != Place::Kind::slice) return true;
    std::uint64_t size = size_of(t.dtype);
    for (std::int64_t extent : place.slice.extent)
      if (__builtin_mul_overflow(size, static_cast<std::uint64_t>(extent), &size)) return false;
    return size == t.end - t.begin;
  }

  S store_;
  std::string name_;
  std::uint64_t size_, data_ = 0;  // of the file; where its data begins
  ShardLabel label_;
  std::vector<Tensor> tensors_;
  store::SafetensorsHeader::Strings tied_;
  Bytes window_;  // bytes of the data from window_at_ on
  std::uint64_t window_at_ = 0;
};

}  // namespace mend::checkpoint
