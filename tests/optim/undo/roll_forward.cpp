#include <mend/optim/undo/roll_forward.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

TEST_CASE("rolling forward keeps nothing and cannot go back") {
  std::vector<std::byte> state(100, std::byte{1});
  const mend::StateSpan spans[] = {state};
  mend::RollForward::Record record;
  record.reserve(1, mend::ByteCount{100});
  record.save(0, spans);
  state[0] = std::byte{2};
  CHECK(!record.restore(0));
  CHECK(state[0] == std::byte{2});
  CHECK(record.memory() == mend::ByteCount{});
}
