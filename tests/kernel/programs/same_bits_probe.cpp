// Prints the lines of golden.hpp, and hashes of what the reductions give, for every SIMD level. No
// line may depend on the level, the compiler or its flags: same_bits.sh compares them with
// same_bits.txt.
#include <mend/core/arena.hpp>
#include <mend/kernel/host/apply.hpp>
#include <mend/kernel/host/exact.hpp>
#include <mend/kernel/host/norms.hpp>
#include <mend/kernel/host/reduce.hpp>
#include <mend/kernel/host/simd.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "../golden.hpp"

namespace {

using golden::hash, golden::mix, golden::number;
using mend::kernel::Simd;

template <class T, class R>
struct Level {
  using State = golden::State<T, R>;
  using Coefficients = typename R::Coefficients;
  Simd simd;

  void apply(const Coefficients& c, State& s, const std::vector<T>& g, T scale) const {
    mend::kernel::apply<R>(c, s.arrays[0].data(), s.slots(), g.data(), g.size(), scale, simd);
  }
  void revert(const Coefficients& c, State& s, const std::vector<T>& g, T scale) const {
    mend::kernel::revert<R>(c, s.arrays[0].data(), s.slots(), g.data(), g.size(), scale, simd);
  }
  auto norms(const Coefficients& c, State& s, const std::vector<T>& g, T scale) const {
    std::array<const T*, R::slots.size()> slots;
    std::ranges::copy(s.slots(), slots.begin());
    return mend::kernel::norms<R>(c, static_cast<const T*>(s.arrays[0].data()), slots, g.data(),
                                  g.size(), scale, nullptr, simd);
  }
  bool undo(const Coefficients& c, State& s, const State& applied, const std::vector<T>& g,
            T scale) const {
    using namespace mend::kernel;
    static const mend::Arena codes{mend::ByteCount{exact_codes_bytes<R>(golden::n)}};
    static std::vector<T> values(exact_values_size<R>(golden::n)),
        groups(exact_groups_size<R>(golden::n));
    const ExactRecord<T> record{codes.data(), values.data(), groups.data()};
    const auto sizes =
        apply_exact<R>(c, s.arrays[0].data(), s.slots(), g.data(), g.size(), scale, record, simd);
    const bool same = s.same(applied);
    revert_exact<R>(c, s.arrays[0].data(), s.slots(), g.data(), g.size(), scale, record, sizes,
                    simd);
    return same;
  }
  std::vector<std::uint16_t> narrow(mend::DType type, const std::vector<float>& x) const {
    std::vector<std::uint16_t> low(x.size());
    mend::kernel::from_float(type, x.data(), low.data(), x.size(), simd);
    return low;
  }
};

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
    golden::each_rule([&]<class R>(const char* name, const R& rule) {
      for (const std::string& line : {golden::line<float>(name, rule, Level<float, R>{simd}),
                                      golden::line<double>(name, rule, Level<double, R>{simd})})
        std::printf("%-8s %s\n", mend::kernel::name_of(simd).data(), line.c_str());
    });
    for (mend::DType type :
         {mend::DType::f32, mend::DType::f64, mend::DType::bf16, mend::DType::f16, mend::DType::i8,
          mend::DType::u16, mend::DType::i32, mend::DType::u64})
      probe_reductions(type, simd);
  }
}
