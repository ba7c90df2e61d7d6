#include <mend/kernel/host/apply.hpp>

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "kernel/numbers.hpp"

using namespace mend::kernel;

namespace {

// One rule of each shape: no slots, and two; every operation; natural and fused sums.
struct Plain {
  static constexpr std::array<std::string_view, 0> slots{};
  struct Coefficients {
    float lr;
  };
  template <class Real>
  MEND_RULE static void apply(Real& p, mend::Slots<Real, 0>&, Real g, const auto& c) {
    p = p - g * c.lr;
  }
  template <class Real>
  MEND_RULE static void revert(Real& p, mend::Slots<Real, 0>&, Real g, const auto& c) {
    p = p + g * c.lr;
  }
};
struct Rich {
  static constexpr std::array<std::string_view, 2> slots{"a", "b"};
  struct Coefficients {
    double decay, lr;
    bool centred;
  };
  template <class Real>
  MEND_RULE static void apply(Real& p, mend::Slots<Real, 2>& s, Real g, const auto& c) {
    s[0] = fma(c.decay, s[0], g * g * (1 - c.decay));
    if (c.centred) s[1] = s[1] * c.decay + g * (1 - c.decay);
    const Real size = select(s[0] > s[1] * s[1], s[0], max(abs(g), 1e-8));
    p = p - c.lr * copysign(min(abs(g) / (sqrt(size) + 1e-8), 10), g);
  }
};

template <class T, std::size_t slot_count>
struct State {
  std::vector<T> p, s[slot_count + 1];
  std::array<T*, slot_count> slots(std::size_t shift) {
    std::array<T*, slot_count> pointers;
    for (std::size_t k = 0; k != slot_count; ++k) pointers[k] = s[k].data() + shift;
    return pointers;
  }
};
template <class T, std::size_t slot_count>
State<T, slot_count> state_of(std::size_t n, std::uint64_t seed) {
  State<T, slot_count> state;
  state.p = test::numbers<T>(n, seed);
  for (std::size_t k = 0; k != slot_count; ++k) {
    state.s[k] = test::numbers<T>(n, seed + 1 + k);
    for (T& x : state.s[k])
      if (x < 0) x = -x;
  }
  return state;
}
template <class T, std::size_t slot_count>
bool same(const State<T, slot_count>& a, const State<T, slot_count>& b) {
  bool equal = test::same_bits(a.p, b.p);
  for (std::size_t k = 0; k != slot_count; ++k) equal = equal && test::same_bits(a.s[k], b.s[k]);
  return equal;
}

}  // namespace

TEST_CASE_TEMPLATE("the same bits as the scalar for every length, offset and level", T, float,
                   double) {
  constexpr std::size_t margin = 16;  // elements on both sides that must stay as they are
  const Rich::Coefficients c{0.9, 0.01, true};
  int wrong = 0;
  for (std::size_t n = 0; n <= 70; ++n)
    for (std::size_t shift : {0, 1, 2, 3, 4, 5, 8, 15, 16}) {
      const auto before = state_of<T, 2>(margin + shift + n + margin, 100 * n + shift);
      const auto g = test::numbers<T>(n + 1, n);
      auto expected = before;
      apply<Rich>(c, expected.p.data() + margin + shift, expected.slots(margin + shift), g.data(),
                  n, T(0.3), Simd::scalar);
      for (std::size_t i = 0; i < before.p.size(); ++i)
        if (i < margin + shift || i >= margin + shift + n)
          wrong += std::memcmp(&expected.p[i], &before.p[i], sizeof(T)) != 0;
      for (Simd simd : test::levels()) {
        auto found = before;
        apply<Rich>(c, found.p.data() + margin + shift, found.slots(margin + shift), g.data(), n,
                    T(0.3), simd);
        wrong += !same(found, expected);
      }
    }
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("arrays need not share an offset from a register", T, float, double) {
  const std::size_t n = 1000;
  const auto g = test::numbers<T>(n + 9, 1);
  const Rich::Coefficients c{0.9, 0.01, false};
  auto before = state_of<T, 2>(n + 16, 2);
  std::vector<State<T, 2>> found;
  for (Simd simd : test::levels()) {
    auto state = before;
    apply<Rich>(c, state.p.data() + 1, {state.s[0].data() + 7, state.s[1].data() + 10},
                g.data() + 9, n, T(1), simd);
    found.push_back(state);
  }
  for (const auto& state : found) CHECK(same(state, found[0]));
  CHECK(!same(found[0], before));
}

TEST_CASE_TEMPLATE("a rule is what its formula says", T, float, double) {
  const std::size_t n = 500;
  const auto g = test::numbers<T>(n, 3);
  const Plain::Coefficients c{0.01f};
  for (Simd simd : test::levels()) {
    auto p = test::numbers<T>(n, 4);
    const auto before = p;
    apply<Plain>(c, p.data(), {}, g.data(), n, T(0.37), simd);
    for (std::size_t i = 0; i < n; ++i) {
      volatile T scaled = g[i] * T(0.37);
      volatile T product = scaled * static_cast<T>(0.01f);
      CHECK(test::same_number<T>(p[i], before[i] - product));
    }
    auto back = p;
    revert<Plain>(c, back.data(), {}, g.data(), n, T(0.37), simd);
    for (std::size_t i = 0; i < n; ++i) {
      volatile T scaled = g[i] * T(0.37);
      volatile T product = scaled * static_cast<T>(0.01f);
      CHECK(test::same_number<T>(back[i], p[i] + product));
    }
  }
}

TEST_CASE("every NaN is written as the one quiet NaN") {
  const float quiet = std::numeric_limits<float>::quiet_NaN();
  for (Simd simd : test::levels()) {
    std::vector<float> p(40, 1.0f), g(40, 0.0f);
    p[0] = std::bit_cast<float>(0xffc12345);  // negative, with a payload
    p[1] = std::bit_cast<float>(0x7f800001);  // signalling
    p[17] = INFINITY;
    g[17] = INFINITY;
    g[18] = std::bit_cast<float>(0xffffffff);
    apply<Plain>({1.0f}, p.data(), {}, g.data(), 40, 1.0f, simd);
    for (std::size_t i : {0, 1, 17, 18})
      CHECK(std::bit_cast<std::uint32_t>(p[i]) == std::bit_cast<std::uint32_t>(quiet));
    CHECK(p[2] == 1);
  }
}

TEST_CASE("the trainer's rounding mode does not matter") {
  const std::size_t n = 300;
  const auto before = state_of<float, 2>(n, 5);
  const auto g = test::numbers<float>(n, 6);
  const Rich::Coefficients c{0.9, 0.01, true};
  auto nearest = before;
  apply<Rich>(c, nearest.p.data(), nearest.slots(0), g.data(), n);
  for (Simd simd : test::levels()) {
    auto upward = before;
    std::fesetround(FE_UPWARD);
    apply<Rich>(c, upward.p.data(), upward.slots(0), g.data(), n, 1.0f, simd);
    std::fesetround(FE_TONEAREST);
    CHECK(same(upward, nearest));
  }
}

TEST_CASE("gradients are only read, and nothing is done for no parameters") {
  const std::vector<float> g = test::numbers<float>(100, 8);
  auto copy = g;
  std::vector<float> p(100, 1.0f);
  apply<Plain>({0.5f}, p.data(), {}, copy.data(), 100);
  CHECK(test::same_bits(copy, g));
  apply<Plain, float>({0.5f}, nullptr, {}, nullptr, 0);
}
