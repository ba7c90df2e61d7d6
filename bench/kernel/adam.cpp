// How close the host's Adam step comes to the memory's speed: against hand-written kernels that
// only move the same 28 bytes per parameter (read p, m, v, g; write p, m, v), the faster of two, on
// mend's arenas. The step runs on arenas and on vectors, whose data lie 16 bytes off a cache line.
#include <fmt/core.h>

#include <mend/core/arena.hpp>
#include <mend/kernel/host/apply.hpp>
#include <mend/kernel/host/simd.hpp>
#include <mend/kernel/host/workers.hpp>
#include <mend/optim/adam.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t parameters = std::size_t{16} << 20;
constexpr double bytes_per_parameter = 28;

struct Buffers {
  float *p, *m, *v, *g;
};
using Kernel = void (*)(const Buffers&, std::size_t begin, std::size_t end);

#if defined(__x86_64__)
#define MEND_BENCH_BARRIER(p, m, v, g) asm volatile("" : "+v"(p), "+v"(m), "+v"(v), "+v"(g))
#else
#define MEND_BENCH_BARRIER(p, m, v, g) asm volatile("" : "+w"(p), "+w"(m), "+w"(v), "+w"(g))
#endif
// The barrier keeps the compiler from seeing that nothing changes.
#define MEND_BENCH_MOVER(NAME, BYTES, TARGET)                                                    \
  template <bool prefetch>                                                                       \
  TARGET void NAME(const Buffers& b, std::size_t begin, std::size_t end) {                       \
    typedef float Vector __attribute__((vector_size(BYTES), aligned(4), may_alias));             \
    for (std::size_t i = begin; i < end; i += BYTES / sizeof(float)) {                           \
      if (prefetch && i % 16 == 0)                                                               \
        for (const float* array : {b.p, b.m, b.v, b.g}) mend::kernel::prefetch_ahead(array + i); \
      Vector p = *reinterpret_cast<const Vector*>(b.p + i);                                      \
      Vector m = *reinterpret_cast<const Vector*>(b.m + i);                                      \
      Vector v = *reinterpret_cast<const Vector*>(b.v + i);                                      \
      Vector g = *reinterpret_cast<const Vector*>(b.g + i);                                      \
      MEND_BENCH_BARRIER(p, m, v, g);                                                            \
      *reinterpret_cast<Vector*>(b.p + i) = p;                                                   \
      *reinterpret_cast<Vector*>(b.m + i) = m;                                                   \
      *reinterpret_cast<Vector*>(b.v + i) = v;                                                   \
    }                                                                                            \
  }
MEND_BENCH_MOVER(move_16, 16, )
#if defined(__x86_64__)
MEND_BENCH_MOVER(move_32, 32, __attribute__((target("avx2"))))
MEND_BENCH_MOVER(move_64, 64, __attribute__((target("avx512f,avx512vl"))))
#endif

template <bool prefetch>
Kernel widest_mover() {
#if defined(__x86_64__)
  if (mend::kernel::supported(mend::kernel::Simd::avx512)) return move_64<prefetch>;
  if (mend::kernel::supported(mend::kernel::Simd::avx2)) return move_32<prefetch>;
#endif
  return move_16<prefetch>;
}

void adam(const Buffers& b, std::size_t begin, std::size_t end) {
  static const mend::Adam::Coefficients c = mend::Adam{.lr = 1e-3f}.at(100);
  mend::kernel::apply<mend::Adam>(c, b.p + begin, {b.m + begin, b.v + begin}, b.g + begin,
                                  end - begin);
}

struct Row {
  const char* name;
  Kernel kernel;
  const Buffers* buffers;
  std::vector<double> seconds{};
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<long>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

//! The median of a's time over b's, moment by moment.
double ratio(const Row& a, const Row& b) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < a.seconds.size(); ++i) ratios.push_back(a.seconds[i] / b.seconds[i]);
  return median(ratios);
}

void bar(const std::string& name, double value, double limit) {
  fmt::print("bar {} {:.3f} {:.2f} {}\n", name, value, limit, value >= limit ? "ok" : "short");
}

// In each moment every kernel is timed on a slice of its own, so that caches hold none of it and a
// busy moment of the machine meets all kernels alike.
void measure(int threads, const Buffers& arenas, const Buffers& vectors) {
  Row rows[] = {{"move, arenas", widest_mover<false>(), &arenas},
                {"move, arenas, prefetched", widest_mover<true>(), &arenas},
                {"Adam, arenas", adam, &arenas},
                {"move, vectors", widest_mover<false>(), &vectors},
                {"Adam, vectors", adam, &vectors}};
  mend::kernel::Workers workers{threads};
  const std::size_t slice = std::size_t{1} << (threads == 1 ? 18 : 20), slices = parameters / slice;
  const std::size_t moments = 320 * (std::size_t{1} << 18) / slice + 64;
  for (std::size_t k = 0; k < moments; ++k)
    for (std::size_t r = 0; r < std::size(rows); ++r) {
      Row& row = rows[r];
      const std::size_t at = (k + slices / std::size(rows) * r) % slices * slice;
      const auto start = std::chrono::steady_clock::now();
      workers.parallel_for(slice, slice / 8, [&](std::size_t begin, std::size_t end) {
        row.kernel(*row.buffers, at + begin, at + end);
      });
      const std::chrono::duration<double> span = std::chrono::steady_clock::now() - start;
      row.seconds.push_back(span.count());
    }
  fmt::print("{} thread{}, {}\n", threads, threads == 1 ? "" : "s",
             name_of(mend::kernel::best_simd()));
  for (const Row& row : rows)
    fmt::print("  {:<26} {:6.1f} GB/s\n", row.name,
               bytes_per_parameter * static_cast<double>(slice) / median(row.seconds) * 1e-9);
  const Row& reference = ratio(rows[0], rows[1]) > 1 ? rows[1] : rows[0];  // the faster one
  const std::string suffix = threads == 1 ? "" : "_all_cores";
  bar("host_adam_bandwidth_ratio" + suffix, ratio(reference, rows[2]), 0.95);
  bar("host_adam_unaligned_ratio" + suffix, ratio(reference, rows[4]), 0.85);
}

}  // namespace

int main() {
  mend::Arena arena[4];
  std::vector<float> vector[4];
  float *in_arena[4], *in_vector[4];
  for (int i = 0; i < 4; ++i) {
    arena[i] = mend::Arena{mend::ByteCount{parameters * sizeof(float)}};
    in_arena[i] = reinterpret_cast<float*>(arena[i].data());
    vector[i].assign(parameters + 4, 0.0f);
    in_vector[i] = vector[i].data();
    while (reinterpret_cast<std::size_t>(in_vector[i]) % 64 != 16) ++in_vector[i];
    for (std::size_t k = 0; k < parameters; ++k)
      in_arena[i][k] = in_vector[i][k] = 1e-3f * static_cast<float>(1 + k % 1000);
  }
  const Buffers arenas{in_arena[0], in_arena[1], in_arena[2], in_arena[3]};
  const Buffers vectors{in_vector[0], in_vector[1], in_vector[2], in_vector[3]};
  measure(1, arenas, vectors);
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  if (cores > 1) measure(cores, arenas, vectors);
}
