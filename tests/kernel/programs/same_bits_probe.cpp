// Prints one hash per SIMD level, rule, direction and element type of a state after 50 steps over
// gradients with every kind of special value, and of what the reductions give. No line may depend
// on the level, the compiler or its flags: same_bits.sh compares them with same_bits.txt.
#include <mend/kernel/host/apply.hpp>
#include <mend/kernel/host/reduce.hpp>
#include <mend/kernel/host/simd.hpp>
#include <mend/optim/adam.hpp>
#include <mend/optim/momentum.hpp>
#include <mend/optim/sgd.hpp>

#include <array>
#include <bit>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

namespace {

using mend::kernel::Simd;

std::uint64_t mix(std::uint64_t z) {
  z += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

template <class T>
std::uint64_t hash(std::uint64_t h, const std::vector<T>& values) {
  for (const T& x : values) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &x, sizeof x);
    h = mix(h ^ bits);
  }
  return h;
}

// A value of either sign with an exponent within `range` of 2^0; by integers alone.
template <class T>
T number(std::uint64_t seed, int range) {
  const std::uint64_t r = mix(seed);
  const int exponent = static_cast<int>(r % static_cast<unsigned>(2 * range)) - range;
  if constexpr (sizeof(T) == 4)
    return std::bit_cast<float>(
        static_cast<std::uint32_t>((127 + exponent) << 23 | (r >> 32 & 0x807fffff)));
  else
    return std::bit_cast<double>(static_cast<std::uint64_t>(1023 + exponent) << 52 |
                                 (mix(r) & 0x800fffffffffffff));
}

template <class T>
std::vector<T> gradient(std::size_t n, std::uint64_t step) {
  using Limits = std::numeric_limits<T>;
  const T special[] = {T(0),
                       -T(0),
                       Limits::denorm_min(),
                       -Limits::denorm_min(),
                       Limits::min() / 2,
                       -Limits::min(),
                       T(1e-30),
                       T(-1e-19),
                       T(1e10),
                       T(-1e18),
                       Limits::max(),
                       -Limits::max(),
                       Limits::infinity(),
                       -Limits::infinity(),
                       Limits::quiet_NaN(),
                       -Limits::quiet_NaN()};
  std::vector<T> g(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t r = mix(step << 32 | i);
    // Infinities and NaNs only in the last quarter, where they stay for good.
    g[i] = r % 4 != 0 ? number<T>(r, 14) : special[(r >> 8) % (i < n - n / 4 ? 12 : 16)];
  }
  return g;
}

template <class T, class R>
void probe(const char* name, const R& rule, Simd simd) {
  constexpr std::size_t n = 4099, slot_count = R::slots.size();
  std::vector<T> p(n), s[slot_count + 1];
  for (std::size_t i = 0; i < n; ++i) p[i] = i % 97 == 0 ? -T(0) : number<T>(~i, 8);
  std::array<T*, slot_count> slots;
  for (std::size_t k = 0; k < slot_count; ++k) {
    s[k].resize(n);
    slots[k] = s[k].data();
  }
  std::uint64_t reverted = 0;
  for (std::uint64_t step = 0; step < 50; ++step) {
    const auto g = gradient<T>(n, step);
    const T scale = step % 3 == 0 ? T(0.37) : T(1);
    const auto c = rule.at(step);
    mend::kernel::apply<R>(c, p.data(), slots, g.data(), n, scale, simd);
    std::vector<T> old_p = p, old_s[slot_count + 1];
    for (std::size_t k = 0; k < slot_count; ++k) old_s[k] = s[k];
    mend::kernel::revert<R>(c, p.data(), slots, g.data(), n, scale, simd);
    reverted = hash(reverted, p);
    for (std::size_t k = 0; k < slot_count; ++k) reverted = hash(reverted, s[k]);
    p = old_p;
    for (std::size_t k = 0; k < slot_count; ++k)
      std::copy(old_s[k].begin(), old_s[k].end(), slots[k]);
  }
  std::uint64_t applied = hash(0, p);
  for (std::size_t k = 0; k < slot_count; ++k) applied = hash(applied, s[k]);
  std::printf("%-8s %-12s f%zu apply %016" PRIx64 " revert %016" PRIx64 "\n",
              mend::kernel::name_of(simd).data(), name, 8 * sizeof(T), applied, reverted);
}

void probe_reductions(mend::DType type, Simd simd) {
  constexpr std::size_t n = 70001;
  const std::size_t size = mend::size_of(type);
  std::vector<std::uint8_t> into(n * size), from(n * size);  // every bit pattern there is
  for (std::size_t i = 0; i < into.size(); ++i) {
    into[i] = static_cast<std::uint8_t>(mix(i));
    from[i] = static_cast<std::uint8_t>(mix(~i));
  }
  mend::kernel::accumulate(type, into.data(), from.data(), n, simd);
  std::uint64_t h = hash(0, into), squares = 0;
  if (is_floating(type)) {
    mend::kernel::scale_to_mean(type, into.data(), n, 3, simd);
    h = hash(h, into);
    if (size == 2) {
      std::vector<float> floats(n);
      mend::kernel::to_float(type, into.data(), floats.data(), n, simd);
      h = hash(h, floats);
      for (std::size_t i = 0; i < n; ++i)
        floats[i] = std::bit_cast<float>(static_cast<std::uint32_t>(mix(i)));
      mend::kernel::from_float(type, floats.data(), into.data(), n, simd);
      h = hash(h, into);
    }
    for (std::size_t i = 0; i < n; ++i) {  // finite ones
      const float x = number<float>(i, 10);
      const double y = number<double>(i, 500);
      if (type == mend::DType::f64)
        std::memcpy(&into[i * size], &y, size);
      else if (type == mend::DType::f32)
        std::memcpy(&into[i * size], &x, size);
      else
        mend::kernel::from_float(type, &x, &into[i * size], 1, simd);
    }
    squares = std::bit_cast<std::uint64_t>(
        mend::kernel::sum_of_squares(type, into.data(), n, nullptr, simd));
  }
  std::printf("%-8s %-12s %s sum %016" PRIx64 " squares %016" PRIx64 "\n",
              mend::kernel::name_of(simd).data(), "reduce", name_of(type).data(), h, squares);
}

}  // namespace

int main() {
  for (Simd simd : {Simd::scalar, Simd::baseline, Simd::avx2, Simd::avx512}) {
    if (!mend::kernel::supported(simd)) continue;
    auto both = [&](const char* name, const auto& rule) {
      probe<float>(name, rule, simd);
      probe<double>(name, rule, simd);
    };
    both("sgd", mend::Sgd{.lr = 0.1});
    both("momentum", mend::Momentum{.lr = 0.01});
    both("nesterov_wd", mend::Momentum{.lr = 0.01, .nesterov = true, .weight_decay = 0.01});
    both("adam", mend::Adam{.lr = [](mend::Step s) { return 0.01 / double(1 + s.value()); }});
    for (mend::DType type :
         {mend::DType::f32, mend::DType::f64, mend::DType::bf16, mend::DType::f16, mend::DType::i8,
          mend::DType::u16, mend::DType::i32, mend::DType::u64})
      probe_reductions(type, simd);
  }
}
