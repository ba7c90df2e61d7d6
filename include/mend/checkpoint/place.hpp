#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mend/core/placement.hpp"
#include "mend/core/train_state.hpp"

namespace mend::checkpoint {

//! Which part of an entry a tensor of a shard holds.
struct Place {
  enum class Kind : std::uint8_t {
    whole,  //!< all of a replicated entry
    rows,   //!< some rows of one, which is cut along its first dimension
    rank,   //!< the writing rank's own entry
    slice   //!< the writing rank's block of a global array
  };

  Kind kind = Kind::whole;
  std::int64_t first_row = 0, all_rows = 0;  //!< of rows
  Slice slice{};                             //!< of a slice

  //! Of an entry that is not cut. The bytes of a state have no place in an array.
  [[nodiscard]] static Place of(const TrainState::Entry& e) {
    if (!e.placement.per_rank) return {};
    if (e.placement.slice.of.empty() || e.kind == TrainState::Kind::state)
      return {.kind = Kind::rank};
    return {.kind = Kind::slice, .slice = e.placement.slice};
  }

  //! "whole", "rows:4/16", "rank" or "slice:8,256;4,0;4,256" (of; at; extent), without spaces.
  [[nodiscard]] std::string text() const;
  //! Empty where a text is none of those that text() writes.
  [[nodiscard]] static std::optional<Place> parse(std::string_view text);
};

namespace detail {

inline std::string joined(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (std::int64_t n : numbers) text += (text.empty() ? "" : ",") + std::to_string(n);
  return text;
}

//! Counts with one separator between them; empty where the text is anything else.
inline std::optional<std::vector<std::int64_t>> split(std::string_view text, char separator) {
  std::vector<std::int64_t> numbers;
  for (;;) {
    std::int64_t n = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (error != std::errc{} || n < 0) return std::nullopt;
    numbers.push_back(n);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (text.empty()) return numbers;
    if (text[0] != separator) return std::nullopt;
    text.remove_prefix(1);
  }
}

}  // namespace detail

inline std::string Place::text() const {
  if (kind == Kind::whole) return "whole";
  if (kind == Kind::rank) return "rank";
  if (kind == Kind::rows)
    return "rows:" + std::to_string(first_row) + "/" + std::to_string(all_rows);
  return "slice:" + detail::joined(slice.of) + ";" + detail::joined(slice.at) + ";" +
         detail::joined(slice.extent);
}

inline std::optional<Place> Place::parse(std::string_view text) {
  if (text == "whole") return Place{};
  if (text == "rank") return Place{.kind = Kind::rank};
  if (text.starts_with("rows:")) {
    auto numbers = detail::split(text.substr(5), '/');
    if (!numbers || numbers->size() != 2) return std::nullopt;
    return Place{.kind = Kind::rows, .first_row = (*numbers)[0], .all_rows = (*numbers)[1]};
  }
  if (!text.starts_with("slice:")) return std::nullopt;
  text.remove_prefix(6);
  Place place{.kind = Kind::slice};
  for (auto* list : {&place.slice.of, &place.slice.at, &place.slice.extent}) {
    std::size_t n = list == &place.slice.extent ? text.size() : text.find(';');
    if (n == text.npos) return std::nullopt;
    auto numbers = detail::split(text.substr(0, n), ',');
    if (!numbers) return std::nullopt;
    *list = std::move(*numbers);
    text.remove_prefix(n == text.size() ? n : n + 1);
  }
  const Slice& s = place.slice;
  if (s.at.size() != s.of.size() || s.extent.size() != s.of.size()) return std::nullopt;
  for (std::size_t i = 0; i < s.of.size(); ++i)
    if (s.extent[i] > s.of[i] || s.at[i] > s.of[i] - s.extent[i]) return std::nullopt;
  return place;
}

}  // namespace mend::checkpoint
