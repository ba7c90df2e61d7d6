#include <mend/optim/skip_non_finite.hpp>

#include <doctest/doctest.h>

TEST_CASE("skipping is a check and no other kind of policy") {
  CHECK(mend::Is<mend::SkipNonFinite, mend::kind::check>);
  CHECK(!mend::Is<mend::SkipNonFinite, mend::kind::clip>);
}
