#include <mend/session/updater.hpp>

#include <mend/kernel/host/half.hpp>
#include <mend/optim/adam.hpp>
#include <mend/optim/momentum.hpp>
#include <mend/optim/per_group.hpp>
#include <mend/optim/sgd.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
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

TEST_CASE("what an update touches is the values and slots of a bucket, no more") {
  std::vector<float> a(3), ga(3), b(5), gb(5);
  std::vector<double> c(4), gc(4);
  TrainState state;
  state.add("a", a, ga).add("b", b, gb).add("c", c, gc);
  state.freeze();
  Updater<Adam> updater{state, Adam{}, 1};
  BucketPlan plan{state};
  REQUIRE(plan.size() == 2);
  std::vector<StateSpan> spans = updater.touched(plan[0]);
  REQUIRE(spans.size() == 6);
  CHECK(spans[0].data() == reinterpret_cast<std::byte*>(a.data()));
  CHECK(spans[0].size() == 12);
  CHECK(spans[1].data() == state.find("a.m")->value);
  CHECK(spans[2].data() == state.find("a.v")->value);
  CHECK(spans[3].data() == reinterpret_cast<std::byte*>(b.data()));
  CHECK(spans[5].size() == 20);
  CHECK(updater.touched(plan[1])[2].size() == 32);
  CHECK((Updater<Sgd>::slot_count) == 0);
  state.release();
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

TEST_CASE("a tensor of a narrow type is not trained in it") {
  std::vector<BFloat16> w(3), g(3);
  TrainState state;
  state.add("w", w, g);
  state.freeze();
  CHECK_THROWS_WITH_AS((Updater<Sgd>{state, Sgd{}, 1}),
                       "tensor 'w' is trained in BF16; register a float master and add_copy the "
                       "low-precision one",
                       StateError);
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
  }
}

}  // namespace
