#include <mend/trace/event.hpp>

#include <doctest/doctest.h>

#include <set>
#include <string_view>

using mend::trace::Event;
using mend::trace::EventKind;

TEST_CASE("every kind has a name of its own") {
  std::set<std::string_view> names;
  for (int kind = 0; kind <= static_cast<int>(EventKind::stall); ++kind)
    names.insert(mend::trace::name_of(static_cast<EventKind>(kind)));
  CHECK(names.size() == 12);
  CHECK(names.count("?") == 0);
}

TEST_CASE("an event without a name goes by its kind's") {
  Event reduce{.kind = EventKind::reduce};
  CHECK(reduce.label() == "reduce");
  reduce.name = "bucket 2";
  CHECK(reduce.label() == "bucket 2");
}
