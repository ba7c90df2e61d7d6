#include <mend/core/step.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <type_traits>

using mend::Step;

// Integers become steps by themselves; a number with a fraction, or a pointer, never does.
static_assert(std::is_convertible_v<int, Step>);
static_assert(std::is_convertible_v<std::int64_t, Step>);
static_assert(std::is_convertible_v<std::size_t, Step>);
static_assert(!std::is_constructible_v<Step, double>);
static_assert(!std::is_constructible_v<Step, float>);
static_assert(!std::is_constructible_v<Step, const char*>);
// A step becomes an integer only where that is said.
static_assert(!std::is_convertible_v<Step, int>);
static_assert(std::is_constructible_v<std::int64_t, Step>);
static_assert(!std::is_constructible_v<double, Step>);
static_assert(std::is_trivially_copyable_v<Step>);

static_assert(Step{}.value() == 0);
static_assert(Step{7}.next() == Step{8});
static_assert(Step{7} == 7 && Step{7} != 8);
static_assert(Step{-1} < Step{0} && Step{3} >= Step{3});
static_assert(static_cast<int>(Step{7}) == 7);
static_assert(Step{std::int64_t{1} << 40}.value() == std::int64_t{1} << 40);

TEST_CASE("every n-th step counts from zero") {
  CHECK(Step{0}.every(10));
  CHECK_FALSE(Step{1}.every(10));
  CHECK_FALSE(Step{9}.every(10));
  CHECK(Step{10}.every(10));
  CHECK(Step{7}.every(1));
}

TEST_CASE("steps order and index") {
  std::map<Step, int> at{{3, 30}, {1, 10}, {2, 20}};
  CHECK(at.begin()->first == 1);
  CHECK(at[Step{3}] == 30);
}
