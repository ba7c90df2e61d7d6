#include <mend/optim/undo/roll_forward.hpp>

#include <doctest/doctest.h>

#include <mend/optim/sgd.hpp>

#include <vector>

TEST_CASE("rolling forward updates, keeps nothing and takes nothing back") {
  static_assert(!mend::RollForward::reverts && mend::RollForward::exact);
  std::vector<float> p{1, 2}, g{1, 1};
  mend::RollForward::Record<mend::Sgd> record;
  const mend::UpdateRange<mend::Sgd, float> range{
      mend::Sgd{.lr = 0.5}.at(0), p.data(), {}, g.data(), 2, 1.0f};
  record.apply(0, 0, range);
  CHECK(p == std::vector<float>{0.5f, 1.5f});
  record.revert(0, 0, range);
  CHECK(p == std::vector<float>{0.5f, 1.5f});
  CHECK(record.memory() == mend::ByteCount{});
}
