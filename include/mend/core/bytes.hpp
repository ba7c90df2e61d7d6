#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "mend/core/error.hpp"

namespace mend {

using Bytes = std::vector<std::byte>;
using ByteView = std::span<const std::byte>;

//! Appends plain values and length-prefixed strings to a message; little-endian hosts only.
class ByteWriter {
 public:
  template <class T>
    requires(std::is_trivially_copyable_v<T>)
  ByteWriter& put(const T& value) {
    append(reinterpret_cast<const std::byte*>(&value), sizeof(T));
    return *this;
  }
  ByteWriter& put_bytes(ByteView bytes) {
    put<std::uint64_t>(bytes.size());
    append(bytes.data(), bytes.size());
    return *this;
  }
  ByteWriter& put_string(std::string_view text) {
    return put_bytes(std::as_bytes(std::span{text}));
  }

  [[nodiscard]] Bytes take() && { return std::move(bytes_); }

 private:
  void append(const std::byte* from, std::size_t n) { bytes_.insert(bytes_.end(), from, from + n); }

  Bytes bytes_;
};

//! Reads what ByteWriter wrote. Throws CommError where the message is too short; allocates no more
//! than the message holds, whatever its length fields say.
class ByteReader {
 public:
  explicit ByteReader(ByteView bytes) : rest_{bytes} {}

  template <class T>
    requires(std::is_trivially_copyable_v<T>)
  T get() {
    // A byte from a message need not be one of the two that a bool may hold.
    if constexpr (std::is_same_v<T, bool>) return get<std::uint8_t>() != 0;
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  ByteView get_bytes() {
    auto size = get<std::uint64_t>();
    if (size > rest_.size()) throw CommError{"a message is shorter than its length field says"};
    return take(size);
  }
  std::string get_string() {
    ByteView b = get_bytes();
    return {reinterpret_cast<const char*>(b.data()), b.size()};
  }
  [[nodiscard]] bool empty() const { return rest_.empty(); }

 private:
  ByteView take(std::size_t size) {
    if (size > rest_.size()) throw CommError{"a message is shorter than its kind needs"};
    ByteView head = rest_.first(size);
    rest_ = rest_.subspan(size);
    return head;
  }

  ByteView rest_;
};

}  // namespace mend
