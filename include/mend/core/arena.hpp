#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "mend/core/byte_count.hpp"
#include "mend/core/error.hpp"

namespace mend {

//! Zeroed host memory aligned to 64 bytes (a cache line, an AVX-512 register), on huge pages where
//! that helps (from 2 MiB on). Owns it; moves, does not copy. Pages cost nothing until touched.
//! Throws StateError with errno when the system has no memory left.
class Arena {
 public:
  static constexpr std::size_t alignment = 64;
  //! n, rounded up to it: what a piece takes when the next one is to be aligned too.
  [[nodiscard]] static constexpr std::size_t aligned(std::size_t n) {
    return (n + alignment - 1) / alignment * alignment;
  }

  Arena() = default;
  explicit Arena(ByteCount size) : size_{size.value()} {
    if (size_ == 0) return;
    constexpr std::size_t huge = std::size_t{2} << 20;
    if (size_ > PTRDIFF_MAX - huge)
      throw StateError{"no machine has " + std::to_string(size_) + " bytes for an arena"};
    // One huge page more than asked for, so that the block can start on a huge page's border.
    mapped_size_ = size_ >= huge ? size_ + huge : size_;
    void* p =
        ::mmap(nullptr, mapped_size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
      throw StateError{"no memory for an arena of " + std::to_string(size_) + " bytes",
                       {.code = errno}};
    mapped_ = static_cast<std::byte*>(p);
    data_ = mapped_;
    if (mapped_size_ != size_) {
      auto address = reinterpret_cast<std::size_t>(mapped_);
      data_ = mapped_ + (huge - address % huge) % huge;
      ::madvise(data_, size_, MADV_HUGEPAGE);  // best effort: small pages hold the same bits
    }
  }
  Arena(Arena&& other) noexcept { swap(other); }
  Arena& operator=(Arena&& other) noexcept {
    Arena{std::move(other)}.swap(*this);
    return *this;
  }
  ~Arena() {
    if (mapped_ != nullptr) ::munmap(mapped_, mapped_size_);
  }

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  void swap(Arena& other) noexcept {
    std::swap(mapped_, other.mapped_);
    std::swap(mapped_size_, other.mapped_size_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  std::byte* mapped_ = nullptr;
  std::size_t mapped_size_ = 0;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace mend
