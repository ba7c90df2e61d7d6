#include <mend/core/placement.hpp>

#include <doctest/doctest.h>

#include <type_traits>

using mend::OnResize;
using mend::PerRank;
using mend::Placement;
using mend::Replicated;
using mend::Slice;

static_assert(std::is_convertible_v<Replicated, Placement>);
static_assert(std::is_convertible_v<PerRank, Placement>);
static_assert(std::is_convertible_v<Slice, Placement>);
static_assert(!std::is_constructible_v<Placement, int>);
static_assert(!std::is_constructible_v<Placement, bool>);

TEST_CASE("replicated by default") {
  Placement p;
  CHECK_FALSE(p.per_rank);
  CHECK(p.copies == 0);
}

TEST_CASE("per rank, with one partner's copy unless another number is said") {
  Placement one = PerRank{}, none = PerRank{.copies = 0};
  CHECK(one.per_rank);
  CHECK(one.copies == 1);
  CHECK(none.per_rank);
  CHECK(none.copies == 0);
}

TEST_CASE("a slice is per rank, and copied only where that is said") {
  Placement p = Slice{.of = {8, 4}, .at = {2, 0}, .extent = {2, 4}};
  CHECK(p.per_rank);
  CHECK(p.copies == 0);
  CHECK(p.slice.of == std::vector<std::int64_t>{8, 4});
  CHECK(p.slice.at == std::vector<std::int64_t>{2, 0});
  CHECK(p.slice.extent == std::vector<std::int64_t>{2, 4});
  CHECK(Placement{Slice{}, PerRank{.copies = 2}}.copies == 2);
}

TEST_CASE("another rank count is an error unless the placement says what to do") {
  CHECK(Placement{PerRank{}}.on_resize == OnResize::refuse);
  CHECK(Placement{PerRank{.on_resize = OnResize::reset}}.on_resize == OnResize::reset);
  CHECK(Placement{PerRank{.on_resize = OnResize::from_rank_0}}.on_resize == OnResize::from_rank_0);
  CHECK(Placement{Slice{}}.on_resize == OnResize::refuse);
}
