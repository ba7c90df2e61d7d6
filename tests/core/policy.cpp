#include <mend/core/policy.hpp>

#include <doctest/doctest.h>

namespace {

struct Keeps {
  using kind = mend::kind::undo;
};
struct MyKind : mend::kind::recovery {};
struct Mine {
  using kind = MyKind;
};
struct NoKind {};
struct KindIsValue {
  int kind = 0;
};

static_assert(mend::Policy<Keeps>);
static_assert(!mend::Policy<NoKind>);
static_assert(!mend::Policy<KindIsValue>);
static_assert(!mend::Policy<int>);

static_assert(mend::Is<Keeps, mend::kind::undo>);
static_assert(!mend::Is<Keeps, mend::kind::recovery>);
static_assert(!mend::Is<NoKind, mend::kind::undo>);
static_assert(mend::Is<Mine, mend::kind::recovery>, "a kind of one's own counts as its base");

template <class... P>
constexpr int recoveries() {
  return (0 + ... + int{mend::Is<P, mend::kind::recovery>});
}

}  // namespace

TEST_CASE("policies are counted by kind") {
  CHECK(recoveries<Keeps, Mine, Mine>() == 2);
  CHECK(recoveries<>() == 0);
}
