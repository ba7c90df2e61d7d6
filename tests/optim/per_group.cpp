#include <mend/optim/per_group.hpp>

#include <doctest/doctest.h>

#include <mend/core/error.hpp>
#include <mend/kernel/host/norms.hpp>
#include <mend/optim/adam.hpp>
#include <mend/optim/adamw.hpp>
#include <mend/optim/amsgrad.hpp>
#include <mend/optim/check_rule.hpp>
#include <mend/optim/lamb.hpp>
#include <mend/optim/momentum.hpp>

#include <array>
#include <string>
#include <string_view>
#include <vector>

using mend::Momentum;
using mend::PerGroup;

namespace {

struct OneWay {
  static constexpr std::array<std::string_view, 0> slots{};
  struct Coefficients {
    float lr;
  };
  Coefficients at(mend::Step) const { return {1}; }
  template <class Real>
  MEND_RULE static void apply(Real& p, mend::Slots<Real, 0>&, Real g, const auto& c) {
    p = p - g * c.lr;
  }
};

}  // namespace

TEST_CASE("a group has its rule, and every other name the first one") {
  auto lr = [](mend::Step s) { return 0.1 / double(1 + s.value()); };
  const PerGroup rules{
      Momentum{.lr = lr, .weight_decay = 0.1},
      {{"no_decay", Momentum{.lr = lr, .weight_decay = 0}}, {"slow", Momentum{.lr = 1e-5}}}};
  CHECK(rules.for_group("no_decay").weight_decay == 0);
  CHECK(rules.for_group("slow").lr(0) == 1e-5);
  CHECK(rules.for_group("").weight_decay == 0.1);
  CHECK(rules.for_group("unknown").weight_decay == 0.1);
  CHECK(rules.names() == std::vector<std::string>{"no_decay", "slow"});
}

TEST_CASE("it is a rule itself, as invertible as the one inside") {
  static_assert(mend::InvertibleOptimizer<PerGroup<mend::Adam>>);
  static_assert(mend::Rule<PerGroup<OneWay>>);
  static_assert(!mend::InvertibleOptimizer<PerGroup<OneWay>>);
  CHECK(mend::check_rule(PerGroup{Momentum{.lr = 0.1}, {}}));
}

TEST_CASE("it has the bounds and the norms of the one inside") {
  using Bounded = PerGroup<mend::AdamW>;
  static_assert(mend::BoundedOptimizer<Bounded> && !mend::NormRule<Bounded>);
  static_assert(Bounded::kept_bits == mend::AdamW::kept_bits);
  CHECK(Bounded::bounded(mend::AdamW{}.at(0)));
  CHECK(!Bounded::bounded(mend::AdamW{.beta1 = 0.5}.at(0)));

  using Normed = PerGroup<mend::Lamb>;
  static_assert(mend::BoundedOptimizer<Normed> && mend::NormRule<Normed>);
  static_assert(Normed::norms == 2);
  const auto c = mend::Lamb{}.at(0);
  CHECK(Normed::with_norms(c, {3, 2}).update.step == mend::Lamb::with_norms(c, {3, 2}).update.step);
  const std::vector<float> p{3, 4}, zeros(2);
  CHECK(
      mend::kernel::norms<Normed>(c, p.data(), {zeros.data(), zeros.data()}, zeros.data(), 2) ==
      mend::kernel::norms<mend::Lamb>(c, p.data(), {zeros.data(), zeros.data()}, zeros.data(), 2));

  static_assert(!mend::BoundedOptimizer<PerGroup<OneWay>> && !mend::NormRule<PerGroup<OneWay>>);
  static_assert(!mend::InvertibleOptimizer<PerGroup<mend::AmsGrad>>);
  CHECK(mend::check_rule(PerGroup{mend::AdamW{}, {}}));
}

TEST_CASE("groups without a name of their own are refused") {
  CHECK_THROWS_WITH_AS(
      (PerGroup{Momentum{}, {{"a", Momentum{}}, {"b", Momentum{}}, {"a", Momentum{}}}}),
      "PerGroup: group 'a' is named twice", mend::OptionError);
  CHECK_THROWS_WITH_AS((PerGroup{Momentum{}, {{"", Momentum{}}}}), "PerGroup: a group needs a name",
                       mend::OptionError);
}

TEST_CASE("the options of every group are checked") {
  CHECK_NOTHROW(mend::check_options(PerGroup{Momentum{}, {{"a", Momentum{}}}}));
  CHECK_THROWS_WITH_AS(mend::check_options(PerGroup{Momentum{}, {{"a", Momentum{.beta = 1}}}}),
                       doctest::Contains("group 'a': Momentum: beta = 1 must"), mend::OptionError);
  CHECK_THROWS_AS(mend::check_options(PerGroup{Momentum{.beta = 1}, {{"a", Momentum{}}}}),
                  mend::OptionError);
}
