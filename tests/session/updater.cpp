#include <mend/session/updater.hpp>

#include <mend/kernel/host/apply.hpp>
#include <mend/kernel/host/half.hpp>
#include <mend/optim/adam.hpp>
#include <mend/optim/lamb.hpp>
#include <mend/optim/momentum.hpp>
#include <mend/optim/per_group.hpp>
#include <mend/optim/sgd.hpp>
#include <mend/optim/undo/exact.hpp>
#include <mend/optim/undo/ping_pong.hpp>
#include <mend/optim/undo/snapshot.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using namespace mend;

struct BFloat16 {
  std::uint16_t bits;
};

}  // namespace

template <>
inline constexpr mend::DType mend::dtype_of<BFloat16> = mend::DType::bf16;

namespace {

// ---- the rules once more, one parameter at a time, in plain C++ ---------------------------------

// Every product and sum rounded on its own, whatever the compiler may contract elsewhere.
template <class T>
T rounded(T x) {
  volatile T y = x;
  return y;
}
template <class T>
using Plain = std::function<void(T& p, std::array<T, 2>& s, T g, int t)>;

template <class T>
Plain<T> plain_sgd(double lr) {
  return [=](T& p, std::array<T, 2>&, T g, int) { p = p - rounded(g * static_cast<T>(lr)); };
}
template <class T>
Plain<T> plain_momentum(double lr, double beta, bool nesterov, double decay) {
  return [=](T& p, std::array<T, 2>& s, T g, int) {
    T e = decay != 0 ? std::fma(static_cast<T>(decay), p, g) : g;
    s[0] = std::fma(static_cast<T>(beta), s[0], e);
    T step = nesterov ? std::fma(static_cast<T>(beta), s[0], e) : s[0];
    p = p - rounded(static_cast<T>(lr) * step);
  };
}
template <class T>
Plain<T> plain_adam(double lr) {
  return [=](T& p, std::array<T, 2>& s, T g, int t) {
    double power1 = 1, power2 = 1;  // t is small: one product per step
    for (int i = 0; i < t; ++i) {
      power1 = power1 * 0.9;
      power2 = power2 * 0.999;
    }
    T step = static_cast<T>(lr / (1 - power1));
    T scale = static_cast<T>(1 / std::sqrt(1 - power2));
    s[0] = std::fma(static_cast<T>(0.9), s[0], rounded(static_cast<T>(1 - 0.9) * g));
    s[1] =
        std::fma(static_cast<T>(0.999), s[1], rounded(rounded(static_cast<T>(1 - 0.999) * g) * g));
    T below = std::fma(std::sqrt(s[1]), scale, static_cast<T>(1e-8));
    p = p - rounded(step * rounded(s[0] / below));
  };
}

template <class T>
T number(std::uint64_t i) {
  std::uint64_t z = (i + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  return static_cast<T>(static_cast<double>(z >> 40) * 0x1p-23 - 1);
}

// Three updates of two tensors, one of them large, against the plain rule.
template <class T, class R>
void equals(const R& rule, const Plain<T>& plain) {
  constexpr std::size_t sizes[] = {3, 5000};
  std::vector<T> values[2], gradients[2];
  std::vector<std::array<T, 2>> slots[2];
  TrainState state;
  for (std::size_t k = 0; k < 2; ++k) {
    values[k].resize(sizes[k]);
    gradients[k].resize(sizes[k]);
    slots[k].resize(sizes[k]);
    for (std::size_t i = 0; i < sizes[k]; ++i) values[k][i] = number<T>(i + k);
    state.add(std::to_string(k), values[k], gradients[k]);
  }
  std::vector<T> expected[] = {values[0], values[1]};
  state.freeze();
  Updater<R> updater{state, rule, 1};
  BucketPlan plan{state};
  for (int t = 1; t <= 3; ++t) {
    updater.begin(Step{t - 1});
    for (std::size_t k = 0; k < 2; ++k)
      for (std::size_t i = 0; i < sizes[k]; ++i) {
        gradients[k][i] = number<T>(i * 7 + static_cast<std::size_t>(t) * 1000 + k);
        plain(expected[k][i], slots[k][i], gradients[k][i], t);
      }
    for (std::size_t b = 0; b < plan.size(); ++b) updater.apply(plan[b], 1);
  }
  for (std::size_t k = 0; k < 2; ++k)
    CHECK(std::memcmp(values[k].data(), expected[k].data(), sizes[k] * sizeof(T)) == 0);
  for (std::size_t s = 0; s < R::slots.size(); ++s) {  // what is kept per parameter, too
    const TrainState::Entry* e = state.find("1." + std::string{R::slots[s]});
    REQUIRE(e != nullptr);
    for (std::size_t i = 0; i < sizes[1]; ++i)
      CHECK(std::memcmp(e->value + i * sizeof(T), &slots[1][i][s], sizeof(T)) == 0);
  }
  state.release();
}

TEST_CASE_TEMPLATE("an update is the rule, applied to every parameter", T, float, double) {
  equals<T>(Sgd{.lr = 0.1}, plain_sgd<T>(0.1));
  equals<T>(Momentum{.lr = 0.1}, plain_momentum<T>(0.1, 0.9, false, 0));
  equals<T>(Momentum{.lr = 0.1, .beta = 0.5, .nesterov = true},
            plain_momentum<T>(0.1, 0.5, true, 0));
  equals<T>(Momentum{.lr = 0.1, .weight_decay = 1e-2}, plain_momentum<T>(0.1, 0.9, false, 1e-2));
  equals<T>(Adam{.lr = 1e-2}, plain_adam<T>(1e-2));
}

// ---- slots --------------------------------------------------------------------------------------

TEST_CASE("slots are zero, aligned, named after their tensors, and go with the session") {
  std::vector<float> a(3), ga(3), b(5), gb(5), mean(2), empty;
  TrainState state;
  state.add("a", a, ga)
      .add_buffer("mean", mean)
      .add("tied", a, ga)
      .add("b", b, gb, {.shape = {5, 1}});
  state.add("empty", empty, empty);
  state.freeze();
  {
    Updater<Adam> updater{state, Adam{}, 1};
    std::vector<std::string> names;
    for (const TrainState::Entry& e : state.entries())
      if (e.kind == TrainState::Kind::slot) {
        names.push_back(e.name);
        CHECK(reinterpret_cast<std::uintptr_t>(e.value) % Arena::alignment == 0);
        for (std::size_t i = 0; i < e.bytes(); ++i) CHECK(e.value[i] == std::byte{0});
      }
    CHECK(names == std::vector<std::string>{"a.m", "b.m", "a.v", "b.v"});
    CHECK(state.find("b.v")->shape == Shape{5, 1});
    CHECK(state.find("b.v")->dtype == DType::f32);
    CHECK(Updater<Adam>::slot_count == 2);
  }
  state.release();
  CHECK(state.find("a.m") == nullptr);
  CHECK(state.entries().size() == 5);
}

TEST_CASE("a tensor whose slot would take a name that is there is refused") {
  std::vector<float> a(3), ga(3), other(3);
  TrainState state;
  state.add("a", a, ga).add_buffer("a.m", other);
  state.freeze();
  CHECK_THROWS_WITH_AS((Updater<Momentum>{state, Momentum{}, 1}),
                       "the name 'a.m' is taken; names must differ", StateError);
}

// ---- undo ---------------------------------------------------------------------------------------

template <class Undo>
void takes_back(bool narrow) {
  constexpr std::size_t n = 2 * undo_chunk + 3;
  std::vector<float> a(n), ga(n), b(5), gb(5);
  std::vector<BFloat16> low(n), glow(n), copy(5);
  TrainState state;
  if (narrow)
    state.add("a", low, glow);
  else
    state.add("a", a, ga);
  state.add("b", b, gb).add_copy("b", copy);
  state.freeze();
  Updater<Adam, Undo> updater{state, Adam{.lr = 0.1}, 2};
  BucketPlan plan{state};
  auto draw = [&](std::size_t t) {
    for (std::size_t i = 0; i < n; ++i) {
      ga[i] = number<float>(i + t * n);
      glow[i] = {kernel::float_to_bf16(ga[i])};
    }
    for (std::size_t i = 0; i < 5; ++i) gb[i] = number<float>(i + t * 77);
  };
  for (std::size_t t = 0; t < 3; ++t) {
    draw(t);
    updater.begin(Step{static_cast<std::int64_t>(t)});
    for (std::size_t k = 0; k < plan.size(); ++k) updater.apply(plan[k], 0.5);
    updater.drop();
  }
  low[7].bits = 0xffc0;  // NaNs of three kinds, which nothing but an update makes one
  low[8].bits = 0x7f81;
  low[5000].bits = 0xfe01;
  const Hash128 before = state.hash();
  const BFloat16 copy_before = copy[2];
  draw(3);
  updater.begin(Step{3});
  updater.apply(plan[0], 0.5);
  const Hash128 half = state.hash();
  CHECK(half != before);
  updater.apply(plan[1], 0.5);
  const Hash128 after = state.hash();
  CHECK(copy[2].bits != copy_before.bits);
  for (std::size_t k = 0; k < plan.size(); ++k) updater.revert(plan[k]);
  CHECK(copy[2].bits == copy_before.bits);
  CHECK(state.hash() == before);
  updater.revert(plan[0]);  // nothing is taken back twice
  CHECK(state.hash() == before);
  updater.drop();
  updater.begin(Step{3});
  for (std::size_t k = 0; k < plan.size(); ++k) updater.apply(plan[k], 0.5);
  CHECK(state.hash() == after);
  updater.revert(plan[1]);
  CHECK(state.hash() == half);
  state.release();
}

TEST_CASE("an update is taken back by every exact policy, in floats and in bf16") {
  for (bool narrow : {false, true}) {
    takes_back<SnapshotUndo>(narrow);
    takes_back<ExactUndo>(narrow);
    takes_back<PingPong>(narrow);
  }
}

// ---- coefficients -------------------------------------------------------------------------------

TEST_CASE("parameter groups have rates of their own") {
  std::vector<float> a(2, 1), ga(2, 1), b(2, 1), gb(2, 1);
  TrainState state;
  state.add("a", a, ga).add("b", b, gb, {.group = "slow"});
  state.freeze();
  Updater updater{state, PerGroup{Sgd{.lr = 0.5}, {{"slow", Sgd{.lr = 0.25}}}}, 1};
  BucketPlan plan{state};
  updater.begin(Step{0});
  updater.apply(plan[0], 1);
  CHECK(a == std::vector<float>{0.5f, 0.5f});
  CHECK(b == std::vector<float>{0.75f, 0.75f});
  CHECK(updater.learning_rate(Step{0}) == 0.5);
  state.release();
}

TEST_CASE("a group that no tensor is in is a mistake") {
  std::vector<float> a(2), ga(2);
  TrainState state;
  state.add("a", a, ga);
  state.freeze();
  CHECK_THROWS_WITH_AS((Updater{state, PerGroup{Sgd{}, {{"slwo", Sgd{}}}}, 1}),
                       "PerGroup: no tensor was added with group 'slwo'", OptionError);
}

TEST_CASE("so is a tensor's group that PerGroup does not name") {
  std::vector<float> a(2), ga(2), b(2), gb(2);
  TrainState state;
  state.add("a", a, ga, {.group = "no_decay"}).add("b", b, gb, {.group = "no_deacy"});
  state.freeze();
  CHECK_THROWS_WITH_AS(
      (Updater{state, PerGroup{Sgd{}, {{"no_decay", Sgd{}}}}, 1}),
      doctest::Contains("a tensor was added with group 'no_deacy', which PerGroup does not name"),
      OptionError);
}

TEST_CASE("a group without options of its own is a mistake") {
  std::vector<float> a(2), ga(2);
  TrainState state;
  state.add("a", a, ga, {.group = "no_decay"});
  state.freeze();
  CHECK_THROWS_WITH_AS(
      (Updater{state, Sgd{}, 1}),
      doctest::Contains("the parameter group 'no_decay' has no options of its own"), OptionError);
}

TEST_CASE("coefficients are fixed by begin, from the number of updates applied") {
  std::vector<double> a{10}, ga{1};
  TrainState state;
  state.add("a", a, ga);
  state.freeze();
  Updater updater{state, Sgd{.lr = [](Step s) { return 1.0 / static_cast<double>(s.value() + 1); }},
                  1};
  BucketPlan plan{state};
  updater.begin(Step{0});
  updater.apply(plan[0], 1);
  CHECK(a[0] == 9);
  updater.begin(Step{3});
  updater.apply(plan[0], 1);
  CHECK(a[0] == 8.75);
  CHECK(updater.learning_rate(Step{1}) == 0.5);
  state.release();
}

TEST_CASE("coefficients out of range are refused before the first step") {
  std::vector<float> a(2), ga(2);
  TrainState state;
  state.add("a", a, ga);
  state.freeze();
  CHECK_THROWS_AS((Updater{state, Adam{.beta1 = 1}, 1}), OptionError);
  CHECK_THROWS_AS((Updater{state, Sgd{.lr = -1}, 1}), OptionError);
}

TEST_CASE("the gradient's scale is applied inside the rule; the gradient is not written") {
  std::vector<float> a{1}, ga{3};
  TrainState state;
  state.add("a", a, ga);
  state.freeze();
  Updater updater{state, Sgd{.lr = 0.5}, 1};
  BucketPlan plan{state};
  updater.begin(Step{0});
  updater.apply(plan[0], 0.1);
  CHECK(a[0] == 1 - 0.5f * (3 * 0.1f));
  CHECK(ga[0] == 3);
  state.release();
}

// ---- types --------------------------------------------------------------------------------------

TEST_CASE("a narrow gradient is widened, a low-precision copy rounded anew") {
  constexpr std::size_t n = 5001;  // beyond one block of the widening, and no multiple of anything
  std::vector<float> wide(n), gradient(n), master(n), expected(n);
  std::vector<BFloat16> narrow(n), low(n), elsewhere(7, {0xffff});
  for (std::size_t i = 0; i < n; ++i) {
    master[i] = wide[i] = number<float>(i);
    narrow[i].bits = kernel::float_to_bf16(number<float>(i + 9));
    gradient[i] = kernel::bf16_to_float(narrow[i].bits);
  }
  TrainState state, reference;
  state.add("w", master, narrow).add_copy("w", low);
  reference.add("w", wide, gradient);
  state.freeze();
  reference.freeze();
  Updater<Adam> updater{state, Adam{}, 1}, plain{reference, Adam{}, 1};
  BucketPlan plan{state}, plain_plan{reference};
  for (int t = 0; t < 2; ++t) {
    updater.begin(Step{t});
    plain.begin(Step{t});
    updater.apply(plan[0], 0.5);
    plain.apply(plain_plan[0], 0.5);
    CHECK(std::memcmp(master.data(), wide.data(), n * 4) == 0);
    for (std::size_t i = 0; i < n; ++i) CHECK(low[i].bits == kernel::float_to_bf16(master[i]));
  }
  CHECK(elsewhere[0].bits == 0xffff);
  state.release();
  reference.release();
}

TEST_CASE_TEMPLATE("a tensor of a narrow type is rounded after every update, its slots are floats",
                   R, Sgd, Adam, Lamb) {
  constexpr std::size_t n = 5000;
  std::vector<BFloat16> w(n), g(n);
  std::vector<float> wide(n), gwide(n);
  for (std::size_t i = 0; i < n; ++i) {
    w[i] = {kernel::float_to_bf16(number<float>(i))};
    wide[i] = kernel::bf16_to_float(w[i].bits);
  }
  TrainState state, reference;
  state.add("w", w, g);
  reference.add("w", wide, gwide);
  state.freeze();
  reference.freeze();
  Updater<R> updater{state, R{.lr = 0.1}, 1}, plain{reference, R{.lr = 0.1}, 1};
  BucketPlan plan{state}, wide_plan{reference};
  for (int t = 0; t < 3; ++t) {
    for (std::size_t i = 0; i < n; ++i) {
      g[i] = {kernel::float_to_bf16(number<float>(i + static_cast<std::size_t>(t + 1) * n))};
      gwide[i] = kernel::bf16_to_float(g[i].bits);
    }
    updater.begin(Step{t});
    plain.begin(Step{t});
    updater.apply(plan[0], 0.5);
    plain.apply(wide_plan[0], 0.5);
    for (float& x : wide) x = kernel::bf16_to_float(kernel::float_to_bf16(x));
  }
  for (std::size_t i = 0; i < n; ++i) REQUIRE(w[i].bits == kernel::float_to_bf16(wide[i]));
  for (std::string_view slot : R::slots) {
    const TrainState::Entry *a = state.find("w." + std::string{slot}),
                            *b = reference.find("w." + std::string{slot});
    CHECK(a->dtype == DType::f32);
    CHECK(std::memcmp(a->value, b->value, n * sizeof(float)) == 0);
  }
  state.release();
  reference.release();
}

TEST_CASE("a rule with norms sees those of each tensor") {
  std::vector<float> a(70000), ga(70000), b(10), gb(10);
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = number<float>(i);
    ga[i] = number<float>(i + 1000000);
  }
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = 100 * (gb[i] = number<float>(i + 5));
  auto expected_a = a, expected_b = b;
  TrainState state;
  state.add("a", a, ga).add("b", b, gb);
  state.freeze();
  const Lamb rule{.lr = 0.1};
  Updater<Lamb> updater{state, rule, 2};
  BucketPlan plan{state};
  updater.begin(Step{0});
  for (std::size_t k = 0; k < plan.size(); ++k) updater.apply(plan[k], 0.25);
  auto plain = [&](std::vector<float>& p, const std::vector<float>& g) {
    std::vector<float> m(p.size()), v(p.size());
    auto c = rule.at(Step{0});
    c = Lamb::with_norms(c, kernel::norms<Lamb>(c, std::as_const(p).data(), {m.data(), v.data()},
                                                g.data(), p.size(), 0.25f));
    kernel::apply<Lamb>(c, p.data(), {m.data(), v.data()}, g.data(), p.size(), 0.25f);
  };
  plain(expected_a, ga);
  plain(expected_b, gb);
  CHECK(a == expected_a);
  CHECK(b == expected_b);
  state.release();
}

TEST_CASE("any number of threads gives the same bits") {
  constexpr std::size_t n = (std::size_t{1} << 19) + 777;
  std::vector<float> first;
  for (int threads : {1, 2, 3, 8}) {
    std::vector<float> w(n), g(n);
    for (std::size_t i = 0; i < n; ++i) {
      w[i] = number<float>(i);
      g[i] = number<float>(i + n);
    }
    TrainState state;
    state.add("w", w, g);
    state.freeze();
    Updater<Adam> updater{state, Adam{}, threads};
    BucketPlan plan{state};
    for (int t = 0; t < 2; ++t) {
      updater.begin(Step{t});
      updater.apply(plan[0], 1);
    }
    if (first.empty()) first = w;
    CHECK(std::memcmp(first.data(), w.data(), 4 * n) == 0);
    state.release();
    for (bool exact : {true, false}) {  // records that several threads write
      for (std::size_t i = 0; i < n; ++i) w[i] = number<float>(i);
      state.freeze();
      const auto twice = [&](auto undo) {
        Updater<Adam, decltype(undo)> undone{state, Adam{}, threads};
        for (int t = 0; t < 2; ++t) {
          undone.begin(Step{t});
          undone.apply(plan[0], 1);
          const Hash128 after = state.hash();
          undone.revert(plan[0]);
          undone.drop();
          undone.apply(plan[0], 1);
          CHECK(state.hash() == after);
          undone.drop();
        }
      };
      exact ? twice(ExactUndo{}) : twice(PingPong{});
      CHECK(std::memcmp(first.data(), w.data(), 4 * n) == 0);
      state.release();
    }
  }
}

}  // namespace
