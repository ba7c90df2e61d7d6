#include <mend/kernel/host/exact.hpp>

#include <doctest/doctest.h>

#include <mend/core/step.hpp>
#include <mend/kernel/host/apply.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <vector>

#include "kernel/numbers.hpp"

using namespace mend;
using namespace mend::kernel;

namespace {

// p follows a decaying sum of gradients. Without bounds: its revert is tried at once.
struct Tried {
  static constexpr std::array<std::string_view, 1> slots{"m"};
  struct Coefficients {
    double beta = 0.9;
  };
  template <class Real>
  MEND_RULE static void apply(Real& p, Slots<Real, 1>& s, Real g, const auto& c) {
    s[0] = fma(c.beta, s[0], g);
    p = p - s[0] * 0.01;
  }
  template <class Real>
  MEND_RULE static void revert(Real& p, Slots<Real, 1>& s, Real g, const auto& c) {
    p = p + s[0] * 0.01;
    s[0] = (s[0] - g) / c.beta;
  }
};

// The same with bounds, as optim/bounded_rule.hpp asks.
struct Bounded : Tried {
  static constexpr std::array<int, 2> kept_bits{2, 6};
  using Tried::apply;
  using Tried::revert;
  template <class Real, class Record>
  MEND_RULE static void apply(Real& p, Slots<Real, 1>& s, Real g, const auto& c, Record& record) {
    s[0] = fma(c.beta, s[0], g);
    const Real u = s[0] * 0.01;
    p = p - u;
    record.keep(0, p, p + u);
    record.keep(1, s[0], s[0] - g);
  }
  template <class Real, class Record>
  MEND_RULE static void revert(Real& p, Slots<Real, 1>& s, Real g, const auto& c, Record& record) {
    const Real old = p + s[0] * 0.01, rest = s[0] - g;
    record.recall(0, p, old, old);
    record.recall(1, s[0], rest, rest / c.beta);
  }
};

// Four slots of its own: a record of one register per row.
struct Wide {
  static constexpr std::array<std::string_view, 4> slots{"a", "b", "c", "d"};
  struct Coefficients {};
  template <class Real>
  MEND_RULE static void apply(Real& p, Slots<Real, 4>& s, Real g, const auto&) {
    for (std::size_t k = 0; k < 4; ++k) s[k] = s[k] + g * (0.5 + static_cast<double>(k));
    p = p - s[3];
  }
  template <class Real>
  MEND_RULE static void revert(Real& p, Slots<Real, 4>& s, Real g, const auto&) {
    p = p + s[3];
    for (std::size_t k = 0; k < 4; ++k) s[k] = s[k] - g * (0.5 + static_cast<double>(k));
  }
};

template <class Rule, class T>
struct Arrays {
  static constexpr std::size_t slot_count = Rule::slots.size();
  std::size_t n, offset;
  std::array<std::vector<T>, 1 + slot_count> state;
  std::vector<T> g;

  //! `offset` elements off a line, so many of them special.
  Arrays(std::size_t size, std::size_t off, std::uint64_t seed, bool special)
      : n{size}, offset{off} {
    for (std::size_t k = 0; k < state.size(); ++k) state[k] = values(seed + k, special);
    g = values(seed + 10, special);
  }
  [[nodiscard]] std::vector<T> values(std::uint64_t seed, bool special) const {
    if (special) return test::numbers<T>(n + offset, seed);
    std::vector<T> v(n + offset);
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = test::number<T>(seed * 1000003 + i, 2);
    return v;
  }
  std::array<T*, slot_count> slots() {
    std::array<T*, slot_count> s;
    for (std::size_t k = 0; k < slot_count; ++k) s[k] = state[k + 1].data() + offset;
    return s;
  }
  T* p() { return state[0].data() + offset; }
  [[nodiscard]] bool same(const Arrays& other) const {
    for (std::size_t k = 0; k < state.size(); ++k)
      if (!test::same_bits(state[k], other.state[k])) return false;
    return true;
  }
};

// Whether apply_exact does what apply does, and revert_exact takes it back; `kept`: whole values.
template <class Rule, class T>
void round_trip(std::size_t n, std::size_t offset, bool special, Simd simd,
                std::size_t* kept = {}) {
  CAPTURE(n);
  CAPTURE(offset);
  CAPTURE(special);
  CAPTURE(name_of(simd));
  const typename Rule::Coefficients c{};
  Arrays<Rule, T> a{n, offset, n + 7, special};
  const Arrays<Rule, T> before = a;
  Arrays<Rule, T> plain = a;
  kernel::apply<Rule>(c, plain.p(), plain.slots(), a.g.data() + offset, n, T(0.5), simd);

  alignas(64) static std::byte codes[1 << 16];
  std::vector<T> values(exact_values_size<Rule>(n)), groups(exact_groups_size<Rule>(n));
  REQUIRE(exact_codes_bytes<Rule>(n) <= sizeof codes);
  std::memset(codes, 0xa5, sizeof codes);
  const ExactRecord<T> record{codes, values.data(), groups.data()};
  const ExactSizes sizes =
      apply_exact<Rule>(c, a.p(), a.slots(), a.g.data() + offset, n, T(0.5), record, simd);
  CHECK(a.same(plain));
  CHECK(sizes.values <= values.size() - 16);
  CHECK(sizes.groups < groups.size());
  CHECK(std::all_of(codes + exact_codes_bytes<Rule>(n), std::end(codes),
                    [](std::byte b) { return b == std::byte{0xa5}; }));
  revert_exact<Rule>(c, a.p(), a.slots(), a.g.data() + offset, n, T(0.5), record, sizes, simd);
  CHECK(a.same(before));
  if (kept != nullptr) *kept += sizes.values + sizes.groups;
}

template <class Rule, class T>
void round_trips() {
  for (Simd simd : {Simd::scalar, Simd::baseline, Simd::avx2, Simd::avx512}) {
    if (!supported(simd)) continue;
    for (bool special : {false, true})
      for (std::size_t offset : {0, 1, 5})
        for (std::size_t n : {0, 1, 3, 4, 15, 16, 17, 63, 64, 65, 127, 255, 256, 257, 1000, 4096})
          round_trip<Rule, T>(n, offset, special, simd);
  }
}

}  // namespace

TEST_CASE_TEMPLATE("an exact record takes an update back, at every width and size", T, float,
                   double) {
  round_trips<Tried, T>();
  round_trips<Bounded, T>();
}
TEST_CASE("so it does for rules with many slots") {
  round_trips<Wide, float>();
  round_trips<Wide, double>();
}

TEST_CASE("ordinary values fit into their codes") {
  std::size_t tried = 0, bounded = 0;
  round_trip<Tried, float>(4096, 0, false, best_simd(), &tried);
  round_trip<Bounded, float>(4096, 0, false, best_simd(), &bounded);
  CHECK(tried < 2 * 4096 / 20);
  CHECK(bounded < 2 * 4096 / 20);
}

TEST_CASE("a negative zero costs its group, once") {
  const std::size_t n = 1024;
  std::vector<float> p(n, 1), m(n, 0.5f), g(n, 1e-3f);
  p[5] = m[6] = -0.0f;  // one group
  m[700] = -0.0f;       // another
  const auto p0 = p, m0 = m;
  alignas(64) std::byte codes[2 * n];
  std::vector<float> values(exact_values_size<Bounded>(n)), groups(exact_groups_size<Bounded>(n));
  const ExactRecord<float> record{codes, values.data(), groups.data()};
  const auto sizes =
      apply_exact<Bounded>({}, p.data(), {m.data()}, g.data(), n, 1.0f, record, Simd::scalar);
  CHECK(sizes.groups == 2 * (1 + 2 * 4));  // scalar groups: four elements, 8 bits each
  CHECK(sizes.values == 3);                // a remainder of zero is outside every guard
  revert_exact<Bounded>({}, p.data(), {m.data()}, g.data(), n, 1.0f, record, sizes, Simd::scalar);
  CHECK(test::same_bits(p, p0));
  CHECK(test::same_bits(m, m0));
}
