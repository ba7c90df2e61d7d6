#include <mend/checkpoint/place.hpp>

#include <doctest/doctest.h>

#include <string>
#include <vector>

using mend::checkpoint::Place;

TEST_CASE("a place is a word, and comes back from it") {
  CHECK(Place{}.text() == "whole");
  CHECK(Place{.kind = Place::Kind::rank}.text() == "rank");
  CHECK(Place{.kind = Place::Kind::rows, .first_row = 4, .all_rows = 16}.text() == "rows:4/16");
  Place slice{.kind = Place::Kind::slice,
              .slice = {.of = {8, 256}, .at = {4, 0}, .extent = {4, 256}}};
  CHECK(slice.text() == "slice:8,256;4,0;4,256");
  for (const char* text :
       {"whole", "rank", "rows:4/16", "rows:0/0", "slice:8,256;4,0;4,256", "slice:0;0;0"}) {
    auto place = Place::parse(text);
    REQUIRE(place);
    CHECK(place->text() == text);
  }
}

TEST_CASE("what is no place is refused") {
  for (const char* text : {"",
                           "Whole",
                           "whole ",
                           "rows:",
                           "rows:4",
                           "rows:4/",
                           "rows:4/16/2",
                           "rows:-1/4",
                           "rows:4,16",
                           "rows:99999999999999999999/1",
                           "slice:",
                           "slice:8",
                           "slice:8;4",
                           "slice:8;4;5",
                           "slice:8;4;4;0",
                           "slice:8,2;4;4",
                           "slice:8;-1;4",
                           "slice:8;9;0",
                           "slice:8;4;x",
                           "slice:8;4;4 ",
                           "rank:1"})
    CHECK_MESSAGE(!Place::parse(text), text);
}

TEST_CASE("an entry's place follows from its placement") {
  mend::TrainState state;
  std::vector<float> w(4), g(4), a(4), b(4);
  state.add("w", w, g).add_buffer("a", a, mend::PerRank{});
  state.add_buffer("b", b, mend::Slice{.of = {8}, .at = {4}, .extent = {4}});
  state.add_state(
      "s", [] { return mend::Bytes{}; }, [](mend::ByteView) {},
      mend::Slice{.of = {8}, .at = {4}, .extent = {4}});
  auto kind = [&](int i) { return Place::of(state.entries()[static_cast<std::size_t>(i)]).kind; };
  CHECK(kind(0) == Place::Kind::whole);
  CHECK(kind(1) == Place::Kind::rank);
  CHECK(kind(2) == Place::Kind::slice);
  CHECK(kind(3) == Place::Kind::rank);
}
