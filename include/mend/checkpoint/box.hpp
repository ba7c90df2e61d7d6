#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "mend/core/bytes.hpp"
#include "mend/core/placement.hpp"

namespace mend::checkpoint {

//! What two blocks of one global array have in common; of() is theirs.
struct Box {
  std::vector<std::int64_t> at, extent;

  [[nodiscard]] static Box common(const Slice& a, const Slice& b) {
    Box box;
    for (std::size_t i = 0; i < a.of.size(); ++i) {
      std::int64_t from = std::max(a.at[i], b.at[i]);
      std::int64_t to = std::min(a.at[i] + a.extent[i], b.at[i] + b.extent[i]);
      box.at.push_back(from);
      box.extent.push_back(std::max<std::int64_t>(to - from, 0));
    }
    return box;
  }
  //! In elements.
  [[nodiscard]] std::uint64_t volume() const {
    std::uint64_t n = 1;
    for (std::int64_t e : extent) n *= static_cast<std::uint64_t>(e);
    return n;
  }

  //! copy(to, from, bytes) for each run of this box that is contiguous in both blocks: offsets in
  //! bytes into their row-major contents.
  void each_run(const Slice& into, const Slice& from, std::size_t element_size, auto copy) const {
    if (volume() == 0) return;
    // Dimensions from `d` on are one run: all but the first of them are whole in both blocks.
    std::size_t d = at.size(), run = element_size;
    while (d > 0) {
      --d;
      run *= static_cast<std::size_t>(extent[d]);
      if (extent[d] != into.extent[d] || extent[d] != from.extent[d]) break;
    }
    std::vector<std::int64_t> index = at;
    auto offset = [&](const Slice& block) {
      std::size_t n = 0;
      for (std::size_t i = 0; i < index.size(); ++i)
        n = n * static_cast<std::size_t>(block.extent[i]) +
            static_cast<std::size_t>(index[i] - block.at[i]);
      return n * element_size;
    };
    for (;;) {
      copy(offset(into), offset(from), run);
      std::size_t i = d;
      for (; i > 0; --i) {
        if (++index[i - 1] < at[i - 1] + extent[i - 1]) break;
        index[i - 1] = at[i - 1];
      }
      if (i == 0) return;
    }
  }
};

}  // namespace mend::checkpoint
