#include <mend/core/rank.hpp>

#include <doctest/doctest.h>

#include <type_traits>
#include <vector>

using mend::Rank;

// A rank reads as an int, and is never made from one by accident.
static_assert(std::is_convertible_v<Rank, int>);
static_assert(!std::is_convertible_v<int, Rank>);
static_assert(std::is_constructible_v<Rank, int>);
static_assert(Rank{} == Rank{0});
static_assert(Rank{1} < Rank{2} && Rank{2} != Rank{1});
static_assert(Rank{3} == 3);

TEST_CASE("a rank is an index") {
  std::vector<int> values{10, 11, 12};
  CHECK(values[static_cast<std::size_t>(Rank{2})] == 12);
  CHECK(Rank{2} + 1 == 3);
}
