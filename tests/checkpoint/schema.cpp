#include <mend/checkpoint/schema.hpp>

#include <doctest/doctest.h>

#include <vector>

#include "checkpoint/model.hpp"

using mend::PerRank;
using mend::TrainState;
using mend::checkpoint::schema_of;
using mend_test::Model;

TEST_CASE("the same state has one schema on every rank and rank count, whatever its values") {
  mend::Hash128 schema = schema_of(Model{1, 0, 1}.state);
  for (int size = 1; size <= 4; ++size)
    for (int rank = 0; rank < size; ++rank) CHECK(schema_of(Model{7, rank, size}.state) == schema);
}

TEST_CASE("what a checkpoint must fit is in the schema") {
  std::vector<float> w(6), g(6), other(6), other_g(6);
  std::vector<double> d(6);
  auto of = [&](auto add) {
    TrainState state;
    add(state);
    return schema_of(state);
  };
  mend::Hash128 one = of([&](TrainState& s) { s.add("w", w, g).add("v", other, other_g); });
  CHECK(one == of([&](TrainState& s) { s.add("w", other, other_g).add("v", w, g); }));
  CHECK(one != of([&](TrainState& s) { s.add("w", w, g); }));
  CHECK(one != of([&](TrainState& s) { s.add("v", other, other_g).add("w", w, g); }));
  CHECK(one != of([&](TrainState& s) { s.add("w", w, g).add("x", other, other_g); }));
  CHECK(one != of([&](TrainState& s) { s.add("w", w, g).add("v", w, g); }));  // tied
  CHECK(one != of([&](TrainState& s) {
          s.add("w", w, g, {.shape = {2, 3}}).add("v", other, other_g);
        }));
  CHECK(one != of([&](TrainState& s) { s.add("w", w, g).add_buffer("v", other); }));
  mend::Hash128 buffer = of([&](TrainState& s) { s.add_buffer("w", w); });
  CHECK(buffer != of([&](TrainState& s) { s.add_buffer("w", d); }));
  CHECK(buffer != of([&](TrainState& s) { s.add_buffer("w", w, PerRank{}); }));
  auto slice = [&](std::int64_t rows, std::int64_t at) {
    return of([&](TrainState& s) {
      s.add_buffer("w", w, mend::Slice{.of = {rows, 2}, .at = {at, 0}, .extent = {3, 2}});
    });
  };
  CHECK(slice(9, 0) == slice(9, 3));
  CHECK(slice(9, 0) != slice(8, 0));
  auto slots = [&](const char* slot) {
    return of([&](TrainState& s) {
      s.add("w", w, g);
      s.add_slot(s.entries()[0], slot, reinterpret_cast<std::byte*>(other.data()));
    });
  };
  CHECK(slots("m") == slots("m"));
  CHECK(slots("m") != slots("momentum"));
}
