// Prints hashes per SIMD level, rule and element type over 1000 steps whose gradients hold every
// kind of special value: of the states, of what revert makes of them, of what the exact undo
// restores, of norms and low-precision copies; and of what the reductions give. No line may depend
// on the level, the compiler or its flags: same_bits.sh compares them with same_bits.txt.
#include <mend/core/arena.hpp>
#include <mend/kernel/host/apply.hpp>
#include <mend/kernel/host/exact.hpp>
#include <mend/kernel/host/norms.hpp>
#include <mend/kernel/host/reduce.hpp>
#include <mend/kernel/host/simd.hpp>
#include <mend/optim/adagrad.hpp>
#include <mend/optim/adam.hpp>
#include <mend/optim/adamw.hpp>
#include <mend/optim/amsgrad.hpp>
#include <mend/optim/lamb.hpp>
#include <mend/optim/lars.hpp>
#include <mend/optim/lion.hpp>
#include <mend/optim/momentum.hpp>
#include <mend/optim/nadam.hpp>
#include <mend/optim/norm_rule.hpp>
#include <mend/optim/rmsprop.hpp>
#include <mend/optim/rule.hpp>
#include <mend/optim/sgd.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
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

constexpr std::size_t n = 259;  // whole registers of every width, and a rest
constexpr std::int64_t steps = 1000;

template <class T>
std::vector<T> gradient(std::uint64_t step, bool tame) {
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
    // Huge ones only in the second half, infinities and NaNs in the last eighth: what they leave
    // in a state stays there.
    const std::size_t kinds = tame || i < n / 2 ? 8 : i < n - n / 8 ? 12 : 16;
    g[i] = r % 4 != 0 ? number<T>(r, 14) : special[(r >> 8) % kinds];
  }
  return g;
}

// A rule as a user writes it, with products that a compiler would like to fuse.
struct Own {
  double lr = 0.01;
  static constexpr std::array<std::string_view, 1> slots{"m"};
  struct Coefficients {
    double lr, beta;
  };
  Coefficients at(mend::Step) const { return {lr, 0.875}; }
  template <class Real>
  MEND_RULE static void apply(Real& p, mend::Slots<Real, 1>& s, Real g, const auto& c) {
    s[0] = s[0] * c.beta + g * (1 - c.beta);
    p = p - s[0] * c.lr;
  }
  template <class Real>
  MEND_RULE static void revert(Real& p, mend::Slots<Real, 1>& s, Real g, const auto& c) {
    p = p + s[0] * c.lr;
    s[0] = (s[0] - g * (1 - c.beta)) / c.beta;
  }
};

// A rule's arrays: the parameters, then the slots.
template <class T, class R>
struct State {
  static constexpr std::size_t slot_count = R::slots.size();
  std::array<std::vector<T>, 1 + slot_count> arrays;

  std::array<T*, slot_count> slots() {
    std::array<T*, slot_count> all;
    for (std::size_t k = 0; k != slot_count; ++k) all[k] = arrays[k + 1].data();
    return all;
  }
  [[nodiscard]] std::uint64_t hashed(std::uint64_t h) const {
    for (const auto& array : arrays) h = hash(h, array);
    return h;
  }
  [[nodiscard]] bool same(const State& other) const {
    for (std::size_t k = 0; k < arrays.size(); ++k)
      if (std::memcmp(arrays[k].data(), other.arrays[k].data(), n * sizeof(T)) != 0) return false;
    return true;
  }
};

// Memory for one call of apply_exact.
template <class R, class T>
struct Record {
  mend::Arena codes{mend::ByteCount{mend::kernel::exact_codes_bytes<R>(n)}};
  std::vector<T> values = std::vector<T>(mend::kernel::exact_values_size<R>(n));
  std::vector<T> groups = std::vector<T>(mend::kernel::exact_groups_size<R>(n));
  mend::kernel::ExactRecord<T> where{codes.data(), values.data(), groups.data()};
};

bool failed = false;

template <class T, class R>
void probe(const char* name, const R& rule, Simd simd) {
  using namespace mend::kernel;
  // A norm spreads what is not finite over the whole tensor: at the end only.
  static const std::vector<std::vector<T>> gradients = [] {
    std::vector<std::vector<T>> all;
    for (std::uint64_t step = 0; step < steps; ++step)
      all.push_back(gradient<T>(step, mend::NormRule<R> && step < 900));
    return all;
  }();
  State<T, R> now;
  now.arrays.fill(std::vector<T>(n));
  for (std::size_t i = 0; i < n; ++i) now.arrays[0][i] = i % 97 == 0 ? -T(0) : number<T>(~i, 8);

  std::uint64_t applied = 0, reverted = 0, undone = 0, norms_hash = 0, copies = 0;
  for (std::int64_t step = 0; step < steps; ++step) {
    const T* g = gradients[static_cast<std::size_t>(step)].data();
    const T scale = step % 3 == 0 ? T(0.37) : T(1);
    auto c = rule.at(mend::Step{step});
    const State<T, R> before = now;
    if constexpr (mend::NormRule<R>) {
      std::array<const T*, R::slots.size()> slots;
      std::ranges::copy(now.slots(), slots.begin());
      const auto of = norms<R>(c, now.arrays[0].data(), slots, g, n, scale, nullptr, simd);
      norms_hash = hash(norms_hash, std::vector<double>(of.begin(), of.end()));
      c = R::with_norms(c, of);
    }
    apply<R>(c, now.arrays[0].data(), now.slots(), g, n, scale, simd);
    applied = now.hashed(applied);
    if constexpr (mend::InvertibleOptimizer<R>) {
      State<T, R> back = now;
      revert<R>(c, back.arrays[0].data(), back.slots(), g, n, scale, simd);
      reverted = back.hashed(reverted);

      static Record<R, T> record;
      bool fits = true;
      if constexpr (requires { R::bounded(c); }) fits = R::bounded(c);
      if (fits) {
        back = before;
        const auto sizes =
            apply_exact<R>(c, back.arrays[0].data(), back.slots(), g, n, scale, record.where, simd);
        const bool same = back.same(now);
        revert_exact<R>(c, back.arrays[0].data(), back.slots(), g, n, scale, record.where, sizes,
                        simd);
        undone = back.hashed(undone);
        if (!same || !back.same(before)) {
          std::printf("%s %s f%zu: the exact undo differs at step %d\n", name_of(simd).data(), name,
                      8 * sizeof(T), static_cast<int>(step));
          failed = true;
          return;
        }
      }
    }
    if constexpr (sizeof(T) == 4) {
      std::vector<std::uint16_t> low(n);
      for (mend::DType type : {mend::DType::bf16, mend::DType::f16}) {
        from_float(type, now.arrays[0].data(), low.data(), n, simd);
        copies = hash(copies, low);
      }
    }
  }
  std::printf("%-8s %-12s f%zu apply %016" PRIx64, name_of(simd).data(), name, 8 * sizeof(T),
              applied);
  auto print = [](const char* what, std::uint64_t h) {
    if (h != 0) std::printf(" %s %016" PRIx64, what, h);
  };
  print("revert", reverted);
  print("undo", undone);
  print("norms", norms_hash);
  print("copies", copies);
  std::printf("\n");
}

void probe_reductions(mend::DType type, Simd simd) {
  constexpr std::size_t count = 70001;
  const std::size_t size = mend::size_of(type);
  std::vector<std::uint8_t> into(count * size), from(count * size);  // every bit pattern there is
  for (std::size_t i = 0; i < into.size(); ++i) {
    into[i] = static_cast<std::uint8_t>(mix(i));
    from[i] = static_cast<std::uint8_t>(mix(~i));
  }
  mend::kernel::accumulate(type, into.data(), from.data(), count, simd);
  std::uint64_t h = hash(0, into), squares = 0;
  if (is_floating(type)) {
    mend::kernel::scale_to_mean(type, into.data(), count, 3, simd);
    h = hash(h, into);
    if (size == 2) {
      std::vector<float> floats(count);
      mend::kernel::to_float(type, into.data(), floats.data(), count, simd);
      h = hash(h, floats);
      for (std::size_t i = 0; i < count; ++i)
        floats[i] = std::bit_cast<float>(static_cast<std::uint32_t>(mix(i)));
      mend::kernel::from_float(type, floats.data(), into.data(), count, simd);
      h = hash(h, into);
    }
    for (std::size_t i = 0; i < count; ++i) {  // finite ones
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
        mend::kernel::sum_of_squares(type, into.data(), count, nullptr, simd));
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
    both("own", Own{});
    both("sgd", mend::Sgd{.lr = 0.1});
    both("sgd_wd", mend::Sgd{.lr = 0.1, .weight_decay = 0.01});
    both("momentum", mend::Momentum{.lr = 0.01});
    both("nesterov_wd", mend::Momentum{.lr = 0.01, .nesterov = true, .weight_decay = 0.01});
    both("adam", mend::Adam{.lr = [](mend::Step s) { return 0.01 / double(1 + s.value()); }});
    both("adam_wd", mend::Adam{.lr = 0.01, .weight_decay = 0.01});
    both("adamw", mend::AdamW{.lr = 0.01});
    both("amsgrad", mend::AmsGrad{.lr = 0.01});
    both("nadam", mend::NAdam{.lr = 0.01, .weight_decay = 0.01});
    both("adagrad", mend::Adagrad{.lr = 0.1, .weight_decay = 0.01});
    both("rmsprop", mend::RmsProp{.lr = 0.01, .weight_decay = 0.01});
    both("lion", mend::Lion{.lr = 0.01, .weight_decay = 0.01});
    both("lamb", mend::Lamb{.lr = 0.01});
    both("lars", mend::Lars{.lr = 0.1, .weight_decay = 0.01});
    for (mend::DType type :
         {mend::DType::f32, mend::DType::f64, mend::DType::bf16, mend::DType::f16, mend::DType::i8,
          mend::DType::u16, mend::DType::i32, mend::DType::u64})
      probe_reductions(type, simd);
  }
  return failed ? 1 : 0;
}
