#pragma once

#include <mend/optim/adagrad.hpp>
#include <mend/optim/adam.hpp>
#include <mend/optim/adamw.hpp>
#include <mend/optim/amsgrad.hpp>
#include <mend/optim/lamb.hpp>
#include <mend/optim/lars.hpp>
#include <mend/optim/lion.hpp>
#include <mend/optim/momentum.hpp>
#include <mend/optim/nadam.hpp>
#include <mend/optim/rmsprop.hpp>
#include <mend/optim/sgd.hpp>

#include "optim/undo/trial.hpp"

namespace test {

template <class Policy, class T = float, class R>
void restores(R rule) {
  UndoTrial<Policy, R, T>{rule}.restores_after_any_prefix();
  CHECK(UndoTrial<Policy, R, T>{rule}.changed_after_cycles(100) == 0);
}

//! For a policy that serves every rule, also one that cannot be inverted.
template <class Policy>
void restores_every_rule() {
  using namespace mend;
  restores<Policy>(Sgd{.lr = 0.1});
  restores<Policy>(Momentum{});
  restores<Policy>(Momentum{.nesterov = true, .weight_decay = 0.01});
  restores<Policy>(Adam{});
  restores<Policy>(AdamW{.weight_decay = 0.1});
  restores<Policy>(AmsGrad{});
  restores<Policy>(Adagrad{});
  restores<Policy>(RmsProp{});
  restores<Policy>(Lion{});
  restores<Policy>(NAdam{});
  restores<Policy>(Lamb{});
  restores<Policy>(Lars{});
}

}  // namespace test
