#include <mend/optim/undo/snapshot.hpp>

#include <doctest/doctest.h>

#include "optim/undo/every_rule.hpp"

TEST_CASE("a snapshot restores the bits of every rule, after any prefix of tensors") {
  test::restores_every_rule<mend::SnapshotUndo>();
}

TEST_CASE("a snapshot restores doubles") {
  test::restores<mend::SnapshotUndo, double>(mend::Adam{});
  test::restores<mend::SnapshotUndo, double>(mend::Sgd{});
}
