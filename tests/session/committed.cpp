#include <mend/session/committed.hpp>

#include <doctest/doctest.h>

TEST_CASE("what is not known of a committed step is zero and false") {
  mend::Committed done;
  CHECK(done.step == mend::Step{0});
  CHECK(done.loss == 0);
  CHECK(done.gradient_norm == 0);
  CHECK(done.learning_rate == 0);
  CHECK(!done.repeated);
  CHECK(!done.skipped);
}
