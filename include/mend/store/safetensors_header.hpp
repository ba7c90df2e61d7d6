#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mend/core/dtype.hpp"
#include "mend/core/error.hpp"
#include "mend/core/text.hpp"
#include "mend/store/json.hpp"

namespace mend::store {

//! The JSON at the head of a .safetensors file: which tensor lies where in the data behind it.
//!
//! The file is: the header's length (8 bytes, little-endian), the header, the data; tensors follow
//! one another without gaps. Source: github.com/huggingface/safetensors, "Format".
struct SafetensorsHeader {
  struct Tensor {
    std::string name;
    DType dtype = DType::f32;
    std::vector<std::int64_t> shape{};
    std::uint64_t begin = 0, end = 0;  //!< bytes, from the start of the data
  };
  using Strings = std::vector<std::pair<std::string, std::string>>;

  std::vector<Tensor> tensors{};  //!< in the order of their data
  Strings metadata{};             //!< "__metadata__"

  //! The format's own limit; a longer header is a damaged or hostile file.
  static constexpr std::uint64_t longest = 100'000'000;

  //! Reads a header strictly: every field once, no other fields, sizes as shapes and types say, the
  //! data covered without holes or overlaps. Memory is linear in the text, whatever it
  //! says. Throws FileError, with `path`, that says what is wrong at which byte.
  [[nodiscard]] static SafetensorsHeader parse(std::string_view text, std::uint64_t data_size,
                                               const std::string& path);

  //! A JSON object of strings, on its own, as metadata values may hold one.
  [[nodiscard]] static Strings parse_strings(std::string_view text, const std::string& path);

  //! As parse() reads it, filled with spaces so that data begins at a multiple of 64 bytes.
  [[nodiscard]] std::string text() const {
    std::string out = "{";
    if (!metadata.empty()) out += "\"__metadata__\":" + text_of(metadata);
    for (const Tensor& t : tensors) {
      if (out.size() > 1) out += ',';
      append_json(out, t.name);
      out += ":{\"dtype\":";
      append_json(out, name_of(t.dtype));
      out += ",\"shape\":[";
      for (std::size_t i = 0; i < t.shape.size(); ++i) {
        if (i != 0) out += ',';
        out += std::to_string(t.shape[i]);
      }
      out += "],\"data_offsets\":[" + std::to_string(t.begin) + "," + std::to_string(t.end) + "]}";
    }
    out += '}';
    out.resize((8 + out.size() + 63) / 64 * 64 - 8, ' ');
    return out;
  }
  [[nodiscard]] static std::string text_of(const Strings& strings) {
    std::string out = "{";
    for (const auto& [key, value] : strings) {
      if (out.size() > 1) out += ',';
      append_json(out, key);
      out += ':';
      append_json(out, value);
    }
    return out + '}';
  }

  [[nodiscard]] const std::string* find(std::string_view key) const {
    for (const auto& [k, value] : metadata)
      if (k == key) return &value;
    return nullptr;
  }
};

namespace detail {

//! Reads the JSON that a header consists of, and nothing else. Nothing in it nests freely, so that
//! there is no recursion to bound.
class HeaderReader : private JsonReader {
 public:
  HeaderReader(std::string_view text, const std::string& path)
      : JsonReader{text, "the header", path} {}

  SafetensorsHeader header() {
    SafetensorsHeader header;
    if (rest().substr(0, 1) != "{") fail("a header begins with '{'");
    object([&](std::string name) {
      if (name == "__metadata__")
        header.metadata = strings();
      else
        header.tensors.push_back(tensor(std::move(name)));
    });
    return header;
  }
  SafetensorsHeader::Strings strings() {
    SafetensorsHeader::Strings found;
    object([&](std::string key) { found.emplace_back(std::move(key), string()); });
    return found;
  }
  using JsonReader::end;

 private:
  SafetensorsHeader::Tensor tensor(std::string name) {
    SafetensorsHeader::Tensor t{.name = std::move(name)};
    bool dtype = false, shape = false, offsets = false;
    object([&](const std::string& field) {
      if (field == "dtype") {
        t.dtype = type(string());
        dtype = true;
      } else if (field == "shape") {
        array([&] { t.shape.push_back(integer()); });
        shape = true;
      } else if (field == "data_offsets") {
        std::vector<std::int64_t> at;
        array([&] { at.push_back(integer()); });
        if (at.size() != 2 || at[0] > at[1]) fail("'" + t.name + "' has no range of offsets");
        t.begin = static_cast<std::uint64_t>(at[0]);
        t.end = static_cast<std::uint64_t>(at[1]);
        offsets = true;
      } else {
        fail("'" + t.name + "' has an unknown field '" + field + "'");
      }
    });
    if (!dtype || !shape || !offsets) fail("'" + t.name + "' lacks dtype, shape or data_offsets");
    return t;
  }

  DType type(std::string_view name) {
    for (int i = 0; i <= static_cast<int>(DType::boolean); ++i)
      if (name_of(static_cast<DType>(i)) == name) return static_cast<DType>(i);
    fail("a dtype that mend does not know: '" + std::string{name} + "'");
  }
};

//! Bytes of a tensor; empty where the number does not fit.
inline std::optional<std::uint64_t> size_of(const SafetensorsHeader::Tensor& t) {
  std::uint64_t size = mend::size_of(t.dtype);
  for (std::int64_t extent : t.shape) {
    auto n = static_cast<std::uint64_t>(extent);
    if (n != 0 && size > std::numeric_limits<std::uint64_t>::max() / n) return std::nullopt;
    size *= n;
  }
  return size;
}

}  // namespace detail

inline SafetensorsHeader::Strings SafetensorsHeader::parse_strings(std::string_view text,
                                                                   const std::string& path) {
  detail::HeaderReader reader{text, path};
  Strings strings = reader.strings();
  reader.end();
  return strings;
}

inline SafetensorsHeader SafetensorsHeader::parse(std::string_view text, std::uint64_t data_size,
                                                  const std::string& path) {
  detail::HeaderReader reader{text, path};
  SafetensorsHeader header = reader.header();
  reader.end();
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const Tensor& a, const Tensor& b) {
                     return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
                   });
  auto fail = [&](const Tensor& t, const std::string& what) {
    throw FileError{"the header is damaged: '" + t.name + "' " + what, {.path = path}};
  };
  std::uint64_t end = 0;
  for (const Tensor& t : header.tensors) {
    if (t.begin != end)
      fail(t, t.begin < end ? "overlaps the tensor before it" : "leaves a gap before it");
    if (detail::size_of(t) != t.end - t.begin) fail(t, "has offsets that differ from its size");
    end = t.end;
  }
  if (end != data_size)
    throw FileError{"the file holds " + std::to_string(data_size) +
                        " bytes of data and its header " + std::to_string(end) +
                        "; it is cut short or damaged",
                    {.path = path}};
  return header;
}

}  // namespace mend::store
