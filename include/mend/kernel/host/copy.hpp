#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "mend/kernel/host/simd.hpp"

namespace mend::kernel {

//! Copies n bytes between places that do not overlap. A large copy goes past the cache
//! (non-temporal stores): it saves reading the destination first, a third of the traffic, and does
//! not evict what the trainer works on. Cost: 2 n bytes of traffic.
inline void copy(void* to, const void* from, std::size_t n) {
  auto* t = static_cast<std::byte*>(to);
  auto* f = static_cast<const std::byte*>(from);
#if defined(__x86_64__)
  constexpr std::size_t large = std::size_t{1} << 20, line = 64;
  if (n >= large) {
    const std::size_t head = (line - reinterpret_cast<std::uintptr_t>(t) % line) % line;
    std::memcpy(t, f, head);
    std::size_t at = head;
    typedef long long Vector __attribute__((vector_size(16)));
    for (; at + line <= n; at += line) {
      __builtin_prefetch(f + at + 1024, 0, 3);
      __builtin_prefetch(f + at + 4096, 0, 2);
      Vector part[4];
      std::memcpy(part, f + at, line);
      auto* destination = reinterpret_cast<Vector*>(t + at);
      for (int k = 0; k < 4; ++k)
        asm volatile("movntdq {%1, %0|%0, %1}" : "=m"(destination[k]) : "x"(part[k]));
    }
    order_stores_past_cache();
    t += at;
    f += at;
    n -= at;
  }
#endif
  if (n != 0) std::memcpy(t, f, n);
}

}  // namespace mend::kernel
