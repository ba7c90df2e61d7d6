// The rules against LibTorch's C++ optimizers, which others wrote: the same parameters, gradients
// and options, 200 steps. In double the two may differ by what roundings add up to; a coefficient
// that is off by a ten-thousandth is far outside.
#define DOCTEST_CONFIG_NO_SHORT_MACRO_NAMES  // LibTorch has a CHECK of its own
#include <doctest/doctest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <mend/kernel/host/apply.hpp>
#include <mend/optim/adagrad.hpp>
#include <mend/optim/adam.hpp>
#include <mend/optim/adamw.hpp>
#include <mend/optim/amsgrad.hpp>
#include <mend/optim/momentum.hpp>
#include <mend/optim/rmsprop.hpp>
#include <mend/optim/sgd.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernel/numbers.hpp"

namespace {

using torch::optim::AdagradOptions;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::RMSpropOptions;
using torch::optim::SGDOptions;

//! The largest difference between the parameters of both after 200 steps, relative to where a
//! parameter began and how far it went.
template <class T, class Optimizer, class Options, class Rule>
double difference(const Options& options, const Rule& rule) {
  constexpr std::size_t n = 1000, slot_count = Rule::slots.size();
  rule.check();
  std::vector<T> p(n), g(n), memory[slot_count + 1];
  std::array<T*, slot_count> slots;
  for (std::size_t k = 0; k != slot_count; ++k) {
    memory[k].resize(n);
    slots[k] = memory[k].data();
  }
  for (std::size_t i = 0; i < n; ++i) p[i] = test::number<T>(i, 4);
  const auto start = p;
  const auto type = std::is_same_v<T, float> ? torch::kFloat32 : torch::kFloat64;
  torch::Tensor q = torch::from_blob(p.data(), n, type).clone().set_requires_grad(true);
  q.mutable_grad() = torch::zeros(n, type);
  Optimizer optimizer{{q}, options};
  for (int t = 0; t < 200; ++t) {
    for (std::size_t i = 0; i < n; ++i)
      g[i] = test::number<T>(static_cast<std::uint64_t>(t) * n + i, 6);
    std::copy(g.begin(), g.end(), q.mutable_grad().template data_ptr<T>());
    optimizer.step();
    mend::kernel::apply<Rule>(rule.at(mend::Step{t}), p.data(), slots, g.data(), n);
  }
  double worst = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double theirs = q.template data_ptr<T>()[i], ours = p[i], began = start[i];
    const double apart = std::abs(ours - theirs) / (std::abs(theirs - began) + std::abs(began));
    worst = std::isfinite(apart) ? std::max(worst, apart) : std::numeric_limits<double>::infinity();
  }
  return worst;
}

//! `rule` is what LibTorch computes; each of `wrong`, the same but for one coefficient, is not.
template <class Optimizer, class Options, class Rule>
void compare(const Options& options, const Rule& rule, std::initializer_list<Rule> wrong) {
  constexpr double in_double = 1e-13, in_float = 1e-4, noticed = 1e-7;
  DOCTEST_CHECK(difference<double, Optimizer>(options, rule) < in_double);
  DOCTEST_CHECK(difference<float, Optimizer>(options, rule) < in_float);
  int which = 0;
  for (const Rule& other : wrong) {
    DOCTEST_CAPTURE(which++);
    DOCTEST_CHECK(difference<double, Optimizer>(options, other) > noticed);
  }
}

}  // namespace

DOCTEST_TEST_CASE("sgd") {
  using Torch = torch::optim::SGD;
  compare<Torch>(SGDOptions{0.1}, mend::Sgd{.lr = 0.1}, {{.lr = 0.10001}});
  compare<Torch>(SGDOptions{0.1}.weight_decay(0.2), mend::Sgd{.lr = 0.1, .weight_decay = 0.2},
                 {{.lr = 0.1, .weight_decay = 0.20002}});
}

DOCTEST_TEST_CASE("momentum") {
  using Torch = torch::optim::SGD;
  compare<Torch>(SGDOptions{0.01}.momentum(0.9), mend::Momentum{.lr = 0.01, .beta = 0.9},
                 {{.lr = 0.010001, .beta = 0.9},
                  {.lr = 0.01, .beta = 0.90009},
                  {.lr = 0.01, .beta = 0.9, .nesterov = true}});
  compare<Torch>(SGDOptions{0.01}.momentum(0.9).weight_decay(0.1),
                 mend::Momentum{.lr = 0.01, .beta = 0.9, .weight_decay = 0.1},
                 {{.lr = 0.01, .beta = 0.9, .weight_decay = 0.10001}});
  compare<Torch>(SGDOptions{0.01}.momentum(0.9).weight_decay(0.1).nesterov(true),
                 mend::Momentum{.lr = 0.01, .beta = 0.9, .nesterov = true, .weight_decay = 0.1},
                 {{.lr = 0.01, .beta = 0.90009, .nesterov = true, .weight_decay = 0.1},
                  {.lr = 0.01, .beta = 0.9, .nesterov = false, .weight_decay = 0.1}});
}

DOCTEST_TEST_CASE("adam") {
  using Torch = torch::optim::Adam;
  compare<Torch>(AdamOptions{0.01}, mend::Adam{.lr = 0.01},
                 {{.lr = 0.010001},
                  {.lr = 0.01, .beta1 = 0.90009},
                  {.lr = 0.01, .beta2 = 0.99909},
                  {.lr = 0.01, .eps = 1e-6}});
  compare<Torch>(
      AdamOptions{0.01}.betas({0.8, 0.95}).eps(1e-3).weight_decay(0.1),
      mend::Adam{.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.1},
      {{.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .eps = 1.0001e-3, .weight_decay = 0.1},
       {.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.10001}});
}

DOCTEST_TEST_CASE("adamw") {
  using Torch = torch::optim::AdamW;
  compare<Torch>(AdamWOptions{0.01}, mend::AdamW{.lr = 0.01},
                 {{.lr = 0.01, .weight_decay = 0.010001},
                  {.lr = 0.01, .weight_decay = 0},
                  {.lr = 0.01, .beta2 = 0.99909}});
  compare<Torch>(
      AdamWOptions{0.01}.betas({0.8, 0.95}).eps(1e-3).weight_decay(0.3),
      mend::AdamW{.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.3},
      {{.lr = 0.01, .beta1 = 0.80008, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.3},
       {.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .eps = 1.0001e-3, .weight_decay = 0.3}});
}

DOCTEST_TEST_CASE("amsgrad") {
  using Torch = torch::optim::Adam;
  // A short memory, so that the maximum is often not the newest.
  compare<Torch>(AdamOptions{0.01}.betas({0.9, 0.5}).amsgrad(true),
                 mend::AmsGrad{.lr = 0.01, .beta2 = 0.5},
                 {{.lr = 0.010001, .beta2 = 0.5}, {.lr = 0.01, .beta2 = 0.50005}});
  compare<Torch>(
      AdamOptions{0.01}.betas({0.8, 0.9}).eps(1e-3).weight_decay(0.1).amsgrad(true),
      mend::AmsGrad{.lr = 0.01, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3, .weight_decay = 0.1},
      {{.lr = 0.01, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3, .weight_decay = 0.10001}});
  DOCTEST_CHECK(difference<double, Torch>(AdamOptions{0.01}.betas({0.9, 0.5}).amsgrad(true),
                                          mend::Adam{.lr = 0.01, .beta2 = 0.5}) > 1e-3);
}

DOCTEST_TEST_CASE("adagrad") {
  using Torch = torch::optim::Adagrad;
  compare<Torch>(AdagradOptions{0.1}, mend::Adagrad{.lr = 0.1},
                 {{.lr = 0.10001}, {.lr = 0.1, .eps = 1e-5}});
  compare<Torch>(AdagradOptions{0.1}.eps(1e-3).weight_decay(0.1),
                 mend::Adagrad{.lr = 0.1, .eps = 1e-3, .weight_decay = 0.1},
                 {{.lr = 0.1, .eps = 1.0001e-3, .weight_decay = 0.1},
                  {.lr = 0.1, .eps = 1e-3, .weight_decay = 0.10001}});
}

DOCTEST_TEST_CASE("rmsprop") {
  using Torch = torch::optim::RMSprop;
  compare<Torch>(RMSpropOptions{0.01}, mend::RmsProp{.lr = 0.01},
                 {{.lr = 0.010001}, {.lr = 0.01, .alpha = 0.99009}, {.lr = 0.01, .eps = 1e-6}});
  compare<Torch>(RMSpropOptions{0.01}.alpha(0.9).eps(1e-3).weight_decay(0.1),
                 mend::RmsProp{.lr = 0.01, .alpha = 0.9, .eps = 1e-3, .weight_decay = 0.1},
                 {{.lr = 0.01, .alpha = 0.9, .eps = 1.0001e-3, .weight_decay = 0.1},
                  {.lr = 0.01, .alpha = 0.9, .eps = 1e-3, .weight_decay = 0.10001}});
}
