// How close a step of a rule with tensor norms comes to the memory's speed: LAMB reads p, m, v and
// g for its norms, then updates; against kernels that only move the same bytes: a read of 16 bytes
// per parameter, then the 28 of an update. One core, arenas. The norms take the square root and the
// quotient a first time, at the divider's speed and not the memory's: hence the limit.
#include <fmt/core.h>

#include <mend/core/arena.hpp>
#include <mend/kernel/host/apply.hpp>
#include <mend/kernel/host/norms.hpp>
#include <mend/kernel/host/simd.hpp>
#include <mend/optim/lamb.hpp>

#include <array>
#include <cstddef>
#include <vector>

#include "bars.hpp"

namespace {

constexpr std::size_t n = std::size_t{16} << 20;

struct Arrays {
  float *p, *m, *v, *g;
};

#if defined(__x86_64__)
#define MEND_BENCH_TARGET __attribute__((target("avx512f,avx512vl,avx2")))
#define MEND_BENCH_KEEP(x) asm volatile("" : "+v"(x))
#else
#define MEND_BENCH_TARGET
#define MEND_BENCH_KEEP(x) asm volatile("" : "+w"(x))
#endif

typedef float Narrow __attribute__((vector_size(16), aligned(4), may_alias));
typedef float Wide __attribute__((vector_size(64), aligned(4), may_alias));

//! Reads all four arrays, then moves all and writes three.
template <class Vector>
inline __attribute__((always_inline)) void move(const Arrays& a) {
  constexpr std::size_t width = sizeof(Vector) / sizeof(float);
  const auto ahead = [&](std::size_t i) {
    if (i % 16 == 0)
      for (const float* array : {a.p, a.m, a.v, a.g}) mend::kernel::prefetch_ahead(array + i);
  };
  for (std::size_t i = 0; i < n; i += width) {
    ahead(i);
    for (const float* array : {a.p, a.m, a.v, a.g}) {
      Vector x = *reinterpret_cast<const Vector*>(array + i);
      MEND_BENCH_KEEP(x);
    }
  }
  for (std::size_t i = 0; i < n; i += width) {
    ahead(i);
    Vector g = *reinterpret_cast<const Vector*>(a.g + i);
    MEND_BENCH_KEEP(g);
    for (float* array : {a.p, a.m, a.v}) {
      Vector x = *reinterpret_cast<const Vector*>(array + i);
      MEND_BENCH_KEEP(x);
      *reinterpret_cast<Vector*>(array + i) = x;
    }
  }
}
#if defined(__x86_64__)
MEND_BENCH_TARGET void move_wide(const Arrays& a) { move<Wide>(a); }
#endif
void move_narrow(const Arrays& a) { move<Narrow>(a); }

void lamb(const Arrays& a) {
  auto c = mend::Lamb{}.at(100);
  c = mend::Lamb::with_norms(
      c, mend::kernel::norms<mend::Lamb>(c, static_cast<const float*>(a.p), {a.m, a.v},
                                         static_cast<const float*>(a.g), n));
  mend::kernel::apply<mend::Lamb>(c, a.p, {a.m, a.v}, static_cast<const float*>(a.g), n);
}

}  // namespace

int main() {
  mend::Arena memory{mend::ByteCount{4 * n * sizeof(float)}};
  auto* at = reinterpret_cast<float*>(memory.data());
  const Arrays a{at, at + n, at + 2 * n, at + 3 * n};
  for (std::size_t i = 0; i < 4 * n; ++i) at[i] = 1e-3f * static_cast<float>(1 + i % 1000);
  auto* mover = move_narrow;
#if defined(__x86_64__)
  if (mend::kernel::best_simd() == mend::kernel::Simd::avx512) mover = move_wide;
#endif
  std::vector<double> moved, updated, ratios;
  for (int i = 0; i < 21; ++i) {
    double start = bench::seconds();
    mover(a);
    moved.push_back(bench::seconds() - start);
    start = bench::seconds();
    lamb(a);
    updated.push_back(bench::seconds() - start);
    ratios.push_back(moved.back() / updated.back());
  }
  const double bytes = 44.0 * static_cast<double>(n) * 1e-9;
  fmt::print("move {:.1f} GB/s, LAMB {:.1f} GB/s\n", bytes / bench::median(moved),
             bytes / bench::median(updated));
  bench::bar("lamb_bandwidth_ratio", bench::median(ratios), 0.8, true);
}
