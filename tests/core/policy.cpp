#include <mend/core/policy.hpp>

#include <doctest/doctest.h>

namespace {

struct Clip {
  using kind = mend::kind::clip;
  float bound = 1;
};
struct NoKind {};
struct KindIsAValue {  // near miss: a member of that name that is no type
  int kind = 0;
};
struct OwnKind : mend::kind::undo {};
struct OwnUndo {  // a kind may be refined
  using kind = OwnKind;
};

static_assert(mend::Policy<Clip> && mend::Policy<OwnUndo>);
static_assert(!mend::Policy<NoKind> && !mend::Policy<KindIsAValue> && !mend::Policy<int>);
static_assert(mend::Is<Clip, mend::kind::clip>);
static_assert(!mend::Is<Clip, mend::kind::undo>);
static_assert(mend::Is<OwnUndo, mend::kind::undo>);
static_assert(!mend::Is<NoKind, mend::kind::clip>);

}  // namespace

TEST_CASE("a policy is a value; asking for its kind costs nothing") {
  CHECK(sizeof(Clip) == sizeof(float));
  CHECK(mend::Is<Clip, Clip::kind>);
}
