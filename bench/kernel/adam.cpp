// How close the host's Adam step comes to the memory's speed: against a hand-written kernel that only
// moves the same 28 bytes per parameter (reads p, m, v, g; writes p, m, v) on mend's arenas.
#include <fmt/core.h>

#include <mend/core/arena.hpp>
#include <mend/kernel/host/apply.hpp>
#include <mend/kernel/host/simd.hpp>
#include <mend/kernel/host/workers.hpp>
#include <mend/optim/adam.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t parameters = std::size_t{16} << 20, grain = std::size_t{1} << 18;
constexpr double bytes_per_parameter = 28;

struct Buffers {
  float *p, *m, *v, *g;
};

// The barrier between load and store keeps the compiler from seeing that nothing changes.
template <int bytes>
struct Mover {
  typedef float Vector __attribute__((vector_size(bytes), aligned(4), may_alias));
  static constexpr std::size_t width = bytes / sizeof(float);
};
#define MEND_MOVE(TARGET, BYTES)                                                       \
  TARGET void move_##BYTES(const Buffers& b, std::size_t begin, std::size_t end) {     \
    using Vector = Mover<BYTES>::Vector;                                               \
    for (std::size_t i = begin; i < end; i += Mover<BYTES>::width) {                   \
      Vector g = *reinterpret_cast<const Vector*>(b.g + i);                            \
      Vector p = *reinterpret_cast<const Vector*>(b.p + i);                            \
      Vector m = *reinterpret_cast<const Vector*>(b.m + i);                            \
      Vector v = *reinterpret_cast<const Vector*>(b.v + i);                            \
      asm volatile("" : "+v"(g), "+v"(p), "+v"(m), "+v"(v));                           \
      *reinterpret_cast<Vector*>(b.p + i) = p;                                         \
      *reinterpret_cast<Vector*>(b.m + i) = m;                                         \
      *reinterpret_cast<Vector*>(b.v + i) = v;                                         \
    }                                                                                  \
  }
MEND_MOVE(__attribute__((target("avx512f"))), 64)
MEND_MOVE(__attribute__((target("avx2"))), 32)

void adam(const Buffers& b, std::size_t begin, std::size_t end) {
  const mend::Adam rule{.lr = 1e-3f};
  mend::kernel::apply<mend::Adam>(rule.at(100), b.p + begin, {b.m + begin, b.v + begin}, b.g + begin,
                                  end - begin);
}
}
