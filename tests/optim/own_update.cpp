#include <mend/optim/own_update.hpp>

#include <doctest/doctest.h>

#include <mend/optim/rule.hpp>

#include <vector>

TEST_CASE("the trainer's own update is called with the step") {
  std::vector<int> steps;
  const mend::OwnUpdate update{[&](mend::Step s) { steps.push_back(int(s)); }};
  update(3);
  update(mend::Step{4});
  CHECK(steps == std::vector<int>{3, 4});
  static_assert(!mend::Rule<mend::OwnUpdate>, "nothing can undo or replay it");
}
