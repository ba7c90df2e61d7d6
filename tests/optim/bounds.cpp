// Law 8, rule by rule: with the guard as documented the low bits of an old value restore it, for
// millions of adversarial samples, and with one guard loosened by a binade they do not.

#include <doctest/doctest.h>

#include <mend/optim/adagrad.hpp>
#include <mend/optim/adam.hpp>
#include <mend/optim/adamw.hpp>
#include <mend/optim/bounded_rule.hpp>
#include <mend/optim/check_rule.hpp>
#include <mend/optim/lamb.hpp>
#include <mend/optim/lars.hpp>
#include <mend/optim/lion.hpp>
#include <mend/optim/momentum.hpp>
#include <mend/optim/nadam.hpp>
#include <mend/optim/norm_rule.hpp>
#include <mend/optim/rmsprop.hpp>
#include <mend/optim/sgd.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

//! Whether `count` samples come back to the same bits; loose: see LowBitsTrial.
template <class R, class T>
bool exact(const typename R::Coefficients& c, std::uint64_t seed, int count,
           std::size_t loose = 1 + R::slots.size()) {
  mend::detail::LowBitsTrial<R, T> trial{c, seed};
  for (int i = 0; i < count; ++i)
    if (trial.next(loose) != decltype(trial)::Fault::none) return false;
  return true;
}

//! Every rule at its first updates and at a late one, in float and double.
template <class R>
void holds(const std::vector<R>& rules, double trust = 0) {
  constexpr int samples = 200000;
  std::array<bool, 1 + R::slots.size()> tight{};
  std::uint64_t seed = 0;
  for (const R& rule : rules)
    for (mend::Step applied : {0, 1, 9, 999}) {
      auto c = rule.at(applied);
      if constexpr (mend::NormRule<R>)
        if (trust > 0) c = R::with_norms(c, {trust, 1});
      CHECK(R::bounded(c));
      CAPTURE(seed);
      CHECK(exact<R, float>(c, ++seed, samples));
      CHECK(exact<R, double>(c, ++seed, samples));
      for (std::size_t k = 0; k < tight.size(); ++k)
        tight[k] = tight[k] || !exact<R, float>(c, ++seed, samples, k);
    }
  for (std::size_t k = 0; k < tight.size(); ++k) {
    CAPTURE(k);
    CHECK_MESSAGE(tight[k], "a guard loosened by one binade goes unnoticed");
  }
}

const double just_below_one = 0.99998, low2 = std::nextafter(0.75f, 1.0f),
             low4 = std::nextafter(0.78125f, 1.0f), low6 = std::nextafter(0.5625f, 1.0f);

}  // namespace

TEST_CASE("sgd") {
  holds<mend::Sgd>(
      {{.lr = 0.3}, {.lr = 0.5, .weight_decay = 0.01}, {.lr = 0.5, .weight_decay = 0.4999}});
}
TEST_CASE("momentum") {
  holds<mend::Momentum>({{.lr = 0.3},
                         {.lr = 0.1, .beta = low6, .weight_decay = 0.1},
                         {.lr = 0.1, .beta = just_below_one, .nesterov = true},
                         {.lr = 0.5, .nesterov = true, .weight_decay = 0.49}});
}
TEST_CASE("adam") {
  holds<mend::Adam>({{.lr = 0.3},
                     {.lr = 0.3, .beta1 = low4, .beta2 = low2, .eps = 1e-30, .weight_decay = 0.1},
                     {.lr = 0.3, .beta1 = just_below_one, .beta2 = 0.9999999}});
}
TEST_CASE("adamw") {
  holds<mend::AdamW>({{.lr = 0.3},
                      {.lr = 0.5, .beta1 = low4, .beta2 = low2, .weight_decay = 0.4999},
                      {.lr = 1e-3, .beta1 = just_below_one, .beta2 = 0.9999999}});
}
TEST_CASE("lamb") {
  holds<mend::Lamb>({{.lr = 0.3}, {.lr = 0.3, .beta1 = low4, .beta2 = low2}}, 20);
}
TEST_CASE("lars") {
  holds<mend::Lars>({{.lr = 2.5}, {.lr = 1, .beta = low6, .weight_decay = 0.1}}, 3);
  holds<mend::Lars>({{.lr = 0.1, .weight_decay = 0.1}});
}
TEST_CASE("lion") {
  holds<mend::Lion>({{.lr = 0.3},
                     {.lr = 0.5, .beta2 = low6, .weight_decay = 0.4999},
                     {.lr = 0.3, .beta2 = just_below_one, .weight_decay = 1e-7}});
}
TEST_CASE("rmsprop") {
  holds<mend::RmsProp>({{.lr = 0.3},
                        {.lr = 0.5, .alpha = low2, .weight_decay = 0.3},
                        {.lr = 0.1, .alpha = 0.9999999, .eps = 1e-3, .weight_decay = 3}});
}
TEST_CASE("adagrad") {
  holds<mend::Adagrad>(
      {{.lr = 0.3}, {.lr = 0.5, .weight_decay = 0.3}, {.lr = 0.1, .weight_decay = 3}});
}
TEST_CASE("nadam") {
  holds<mend::NAdam>({{.lr = 0.3},
                      {.lr = 0.5, .beta1 = low4, .beta2 = low2, .weight_decay = 0.3},
                      {.lr = 0.1, .beta1 = just_below_one, .beta2 = 0.9999999, .weight_decay = 3}});
}

TEST_CASE("options outside the bounds are said to be") {
  CHECK(!mend::Sgd::bounded(mend::Sgd{.lr = 1, .weight_decay = 0.25}.at(0)));
  CHECK(!mend::Momentum::bounded(mend::Momentum{.beta = 0.5625}.at(0)));
  CHECK(!mend::Momentum::bounded(mend::Momentum{.beta = 0.999999}.at(0)));
  CHECK(
      !mend::Momentum::bounded(mend::Momentum{.lr = 1, .nesterov = true, .weight_decay = 1}.at(0)));
  CHECK(!mend::Adam::bounded(mend::Adam{.beta1 = 0.78125}.at(0)));
  CHECK(!mend::Adam::bounded(mend::Adam{.beta1 = 0.9999999}.at(0)));
  CHECK(!mend::Adam::bounded(mend::Adam{.beta2 = 0.75}.at(0)));
  CHECK(!mend::AdamW::bounded(mend::AdamW{.lr = 1, .weight_decay = 0.25}.at(0)));
  CHECK(!mend::Lamb::bounded(mend::Lamb::with_norms(mend::Lamb{.lr = 1}.at(0), {25, 1})));
  CHECK(!mend::Lion::bounded(mend::Lion{.beta2 = 0.5}.at(0)));
  CHECK(!mend::RmsProp::bounded(mend::RmsProp{.alpha = 0.75}.at(0)));
}
