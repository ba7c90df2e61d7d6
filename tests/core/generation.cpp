#include <mend/core/generation.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <type_traits>

using mend::Generation;

static_assert(!std::is_convertible_v<std::uint32_t, Generation>);
static_assert(!std::is_convertible_v<Generation, std::uint32_t>);
static_assert(Generation{} == Generation{0});
static_assert(Generation{4}.next() == Generation{5});
static_assert(Generation{4} < Generation{5});

TEST_CASE("generations count from one; zero is none") {
  Generation none;
  CHECK(none.value() == 0);
  CHECK(none.next().value() == 1);
  CHECK(none < none.next());
}
