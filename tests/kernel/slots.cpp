#include <mend/kernel/slots.hpp>

#include <doctest/doctest.h>

#include <type_traits>

TEST_CASE("slots are as many values as the rule names, and none at all") {
  mend::Slots<double, 2> slots{{1, 2}};
  slots[0] = 3;
  const auto& view = slots;
  CHECK(view[0] == 3);
  CHECK(view[1] == 2);
  static_assert(sizeof(slots) == 2 * sizeof(double));
  static_assert(std::is_empty_v<mend::Slots<double, 0>>);
}
