#include <mend/optim/undo/approximate.hpp>

#include <doctest/doctest.h>

#include <mend/optim/adam.hpp>
#include <mend/optim/momentum.hpp>

#include <array>
#include <cmath>
#include <vector>

#include "optim/undo/trial.hpp"

using namespace mend;

static_assert(!ApproximateUndo::exact);

TEST_CASE("approximate undo changes bits, as the others' test would show") {
  CHECK(test::UndoTrial<ApproximateUndo, Adam>{Adam{}}.changed_after_cycles(1000) > 0);
  CHECK(test::UndoTrial<ApproximateUndo, Momentum>{Momentum{}}.changed_after_cycles(100) > 0);
}

TEST_CASE("approximate undo comes near") {
  const std::size_t n = 2 * undo_chunk;
  std::vector<float> p(n), m(n), v(n), g(n);
  for (std::size_t i = 0; i < n; ++i) {
    p[i] = test::number<float>(i, 3);
    g[i] = test::number<float>(i + n, 3);
  }
  const auto p0 = p;
  ApproximateUndo::Record<Adam> record;
  const UndoTensor tensor{n, DType::f32, false};
  record.reserve({&tensor, 1});
  const UpdateRange<Adam, float> range{Adam{}.at(0), p.data(), {m.data(), v.data()},
                                       g.data(),     n,        1.0f};
  record.apply(0, 0, range.part(0, undo_chunk));
  const auto half = p;
  CHECK(half != p0);
  record.revert(0, 0, range);  // the half that was not updated stays
  float worst = 0;
  for (std::size_t i = 0; i < n; ++i) worst = std::max(worst, std::fabs(p[i] / p0[i] - 1));
  CHECK(worst < 1e-5f);
  record.revert(0, 0, range);
  CHECK(p != half);  // nothing is taken back twice
}
