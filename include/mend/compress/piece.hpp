#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>

#include "mend/core/bytes.hpp"
#include "mend/core/dtype.hpp"
#include "mend/core/error.hpp"

namespace mend {

//! A piece as mend's codecs write it, little-endian: form (u8), element type (u8, DType), 0 (u16),
//! elements of the tensor (u32), elements held (u32); then the body, by form. A view: the bytes
//! must outlive it.
struct Piece {
  enum class Form : std::uint8_t {
    dense = 1,      //!< every value
    sparse = 2,     //!< indices (u32, ascending), values
    sampled = 3,    //!< what the indices follow from (u64), values; random_k.hpp
    quantized = 4,  //!< blocks of scale and bytes; quantize.hpp
  };
  static constexpr std::size_t head_bytes = 12;

  Form form;
  DType type;
  std::uint32_t size;   //!< elements of the tensor
  std::uint32_t count;  //!< elements held
  ByteView body;

  //! Throws FileError where the bytes are no piece of a tensor of that type and size.
  [[nodiscard]] static Piece parse(ByteView bytes, DType type, std::size_t size) {
    if (bytes.size() < head_bytes) refuse("it is cut short");
    Head head;
    std::memcpy(&head, bytes.data(), sizeof head);
    if (head.form < 1 || head.form > 4 || head.zero != 0) refuse("its head is unknown");
    if (head.type != static_cast<std::uint8_t>(type))
      refuse("its elements are not " + std::string{name_of(type)});
    if (head.size != size)
      refuse("it is of a tensor of " + std::to_string(head.size) + " elements, not " +
             std::to_string(size));
    if (head.count > head.size) refuse("it holds more elements than the tensor has");
    return {static_cast<Form>(head.form), type, head.size, head.count, bytes.subspan(head_bytes)};
  }

  //! Throws OptionError for a tensor of 2^32 elements or more.
  static void check_size(std::size_t size) {
    if (size > std::numeric_limits<std::uint32_t>::max())
      throw OptionError{"a tensor of " + std::to_string(size) +
                        " elements: a compressed gradient counts to 2^32 - 1; split the tensor"};
  }
  //! Appends a head and room for a body, and returns where the body begins. size < 2^32.
  static std::byte* append(Bytes& out, Form form, DType type, std::size_t size, std::size_t count,
                           std::size_t body_bytes) {
    const std::size_t at = out.size();
    out.resize(at + head_bytes + body_bytes);
    const Head head{static_cast<std::uint8_t>(form), static_cast<std::uint8_t>(type), 0,
                    static_cast<std::uint32_t>(size), static_cast<std::uint32_t>(count)};
    std::memcpy(&out[at], &head, sizeof head);
    return out.data() + at + head_bytes;
  }

  [[noreturn]] static void refuse(std::string_view why) {
    throw FileError{"a piece of a compressed gradient cannot be used: " + std::string{why}};
  }
  void require(bool good, std::string_view why) const {
    if (!good) refuse(why);
  }

 private:
  struct Head {
    std::uint8_t form, type;
    std::uint16_t zero;
    std::uint32_t size, count;
  };
  static_assert(sizeof(Head) == head_bytes);
};

}  // namespace mend
