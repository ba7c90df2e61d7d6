#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "mend/core/arena.hpp"
#include "mend/core/byte_count.hpp"

namespace mend::detail {

//! Memory that is taken piece by piece and given back all at once. What a round did not use is
//! returned to the system at its end, so that a few expensive steps do not cost memory for good.
class PageStack {
 public:
  //! Aligned for eight bytes, with 64 readable bytes behind it. Throws StateError where there is no
  //! memory; what was taken before stays.
  std::byte* take(std::size_t bytes) {
    bytes = (bytes + 7) / 8 * 8;
    while (page_ < pages_.size() && pages_[page_].size() - at_ < bytes + slack) {
      ++page_;
      at_ = 0;
    }
    if (page_ == pages_.size()) pages_.emplace_back(ByteCount{std::max(page_bytes, bytes + slack)});
    std::byte* piece = pages_[page_].data() + at_;
    at_ += bytes;
    used_ += bytes;
    return piece;
  }
  void clear() {
    pages_.resize(std::min(pages_.size(), used_ == 0 ? 0 : page_ + 1));
    page_ = at_ = used_ = 0;
  }
  //! Bytes held, and bytes taken since clear.
  [[nodiscard]] std::size_t size() const {
    std::size_t bytes = 0;
    for (const Arena& page : pages_) bytes += page.size();
    return bytes;
  }
  [[nodiscard]] std::size_t used() const { return used_; }

 private:
  static constexpr std::size_t page_bytes = std::size_t{256} << 10, slack = 64;

  std::vector<Arena> pages_;
  std::size_t page_ = 0, at_ = 0, used_ = 0;
};

}  // namespace mend::detail
