#include <mend/optim/undo/snapshot.hpp>

#include <doctest/doctest.h>

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

using namespace mend;

namespace {

template <class T = float, class R>
void trial(R rule) {
  test::UndoTrial<SnapshotUndo, R, T>{rule}.restores_after_any_prefix();
  CHECK(test::UndoTrial<SnapshotUndo, R, T>{rule}.changed_after_cycles(100) == 0);
}

}  // namespace

TEST_CASE("a snapshot restores the bits of every rule, after any prefix of tensors") {
  trial(Sgd{.lr = 0.1});
  trial(Momentum{});
  trial(Momentum{.nesterov = true, .weight_decay = 0.01});
  trial(Adam{});
  trial(AdamW{.weight_decay = 0.1});
  trial(AmsGrad{});
  trial(Adagrad{});
  trial(RmsProp{});
  trial(Lion{});
  trial(NAdam{});
  trial(Lamb{});
  trial(Lars{});
}

TEST_CASE("a snapshot restores doubles") {
  trial<double>(Adam{});
  trial<double>(Sgd{});
}
