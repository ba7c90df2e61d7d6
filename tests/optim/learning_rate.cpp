#include <mend/optim/learning_rate.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <type_traits>

namespace {

struct Rated {
  mend::LearningRate lr = 1e-3f;
};
struct Plain {
  float lr = 0.5f;
};
struct Unrated {};

}  // namespace

TEST_CASE("numbers of every type, and functions that return one") {
  CHECK(Rated{}.lr(0) == static_cast<double>(1e-3f));
  CHECK(Rated{.lr = 1e-3}.lr(7) == 1e-3);
  CHECK(Rated{.lr = 2}.lr(7) == 2);
  CHECK(Rated{.lr = [](mend::Step s) { return 1.0 / double(1 + s.value()); }}.lr(3) == 0.25);
  const auto in_float = [](mend::Step s) { return 6e-4f * float(s.value()); };
  CHECK(Rated{.lr = in_float}.lr(2) == static_cast<double>(6e-4f * 2));
  int calls = 0;
  auto counting = [&calls](mend::Step) {
    ++calls;
    return 1;
  };
  const mend::LearningRate shared = counting, copy = shared;
  CHECK(shared(0) + copy(0) == 2);
  CHECK(calls == 2);
}

TEST_CASE("what is neither is refused") {
  static_assert(!std::is_constructible_v<mend::LearningRate, const char*>);
  auto no_number = [](mend::Step) { return "fast"; };
  static_assert(!std::is_constructible_v<mend::LearningRate, decltype(no_number)>);
  auto no_step = [](const char*) { return 1.0; };
  static_assert(!std::is_constructible_v<mend::LearningRate, decltype(no_step)>);
}

TEST_CASE("a rate that cannot work is an error that names the rule, or the update") {
  CHECK_THROWS_WITH_AS(mend::LearningRate{-1}.check("Sgd"),
                       "Sgd: lr = -1 must be finite as a float and not negative",
                       mend::OptionError);
  CHECK_THROWS_AS(mend::LearningRate{std::nan("")}.check("Sgd"), mend::OptionError);
  CHECK_THROWS_AS(mend::LearningRate{HUGE_VAL}.check("Sgd"), mend::OptionError);
  CHECK_NOTHROW(mend::LearningRate{0}.check("Sgd"));
  const mend::LearningRate falling = [](mend::Step s) { return 1.0 - double(s.value()); };
  CHECK_NOTHROW(falling.check("Sgd"));
  CHECK(falling(1) == 0);
  CHECK_THROWS_WITH_AS(
      (void)falling(2),
      "the learning rate after 2 updates = -1 must be finite as a float and not negative",
      mend::OptionError);
}

TEST_CASE("a session reports the rate of any rule") {
  CHECK(mend::learning_rate_of(Rated{.lr = [](mend::Step s) { return double(s.value()); }}, 5) ==
        5);
  CHECK(mend::learning_rate_of(Plain{}, 5) == 0.5);
  CHECK(mend::learning_rate_of(Unrated{}, 5) == 0);
}
