#include <mend/checkpoint/shard_plan.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/model.hpp"

using mend::TrainState;
using mend::checkpoint::Place;
using mend::checkpoint::ShardPlan;
using mend_test::Model;

namespace {

//! The bytes of each entry that all parts together hold, in order; throws off where they overlap.
struct Shares {
  Shares(const TrainState& state, int parts) {
    for (int part = 0; part < parts; ++part) {
      std::size_t sum = 0;
      for (const ShardPlan::Piece& p : ShardPlan{state, part, parts}.pieces()) {
        if (p.entry->placement.per_rank) continue;
        CHECK(p.offset == covered[p.entry->name]);
        covered[p.entry->name] = p.offset + p.bytes;
        ++pieces[p.entry->name];
        sum += p.bytes;
        most_row = std::max(most_row,
                            p.entry->shape.empty() || p.entry->shape[0] == 0
                                ? 0
                                : p.entry->bytes() / static_cast<std::size_t>(p.entry->shape[0]));
      }
      bytes.push_back(sum);
    }
  }
  std::map<std::string, std::size_t> covered, pieces;
  std::vector<std::size_t> bytes;
  std::size_t most_row = 0;
};

}  // namespace

TEST_CASE("what is replicated is written once, in shares of like size") {
  for (int parts = 1; parts <= 8; ++parts) {
    Model model{1, 0, 1};
    Shares shares{model.state, parts};
    std::size_t total = 0;
    for (const auto& e : model.state.entries()) {
      if (e.placement.per_rank) continue;
      if (!e.tied_to.empty()) {
        CHECK(shares.pieces.count(e.name) == 0);
        continue;
      }
      CHECK(shares.covered[e.name] == e.bytes());
      CHECK(shares.pieces[e.name] >= 1);
      total += e.bytes();
    }
    for (std::size_t n : shares.bytes)
      CHECK(n <= total / static_cast<std::size_t>(parts) * 9 / 8 + shares.most_row + 16);
  }
}

TEST_CASE("a large tensor is cut by rows, small ones and single rows are not") {
  std::vector<float> large(1000 * 3), g(large.size()), small(10), small_g(10);
  std::vector<float> row(3000), row_g(3000);
  TrainState state;
  state.add("small", small, small_g).add("large", large, g, {.shape = {1000, 3}});
  state.add("row", row, row_g, {.shape = {1, 3000}});
  Shares shares{state, 4};
  CHECK(shares.pieces["small"] == 1);
  CHECK(shares.pieces["large"] >= 2);
  CHECK(shares.pieces["row"] == 1);
  for (int part = 0; part < 4; ++part)
    for (const auto& p : ShardPlan{state, part, 4}.pieces()) {
      if (p.place.kind != Place::Kind::rows) continue;
      CHECK(p.shape == mend::Shape{static_cast<std::int64_t>(p.bytes / 12), 3});
      CHECK(p.offset == static_cast<std::size_t>(p.place.first_row) * 12);
      CHECK(p.place.all_rows == 1000);
    }
}

TEST_CASE("every rank writes its own entries, and nobody else's") {
  for (int rank = 0; rank < 3; ++rank) {
    Model model{1, rank, 3};
    int own = 0;
    for (const auto& p : ShardPlan{model.state, rank, 3}.pieces())
      if (p.entry->placement.per_rank) ++own;
    CHECK(own == 4);
  }
}

TEST_CASE("wide elements lie first") {
  Model model{1, 0, 1};
  const auto pieces = ShardPlan{model.state, 0, 1}.pieces();
  std::size_t end = 0;
  for (const auto& p : pieces) {
    CHECK(end % size_of(p.entry->dtype) == 0);
    end += p.bytes;
  }
}

TEST_CASE(
    "ten thousand small tensors are whole, all but a few, and a state without bytes is planned") {
  std::vector<std::vector<float>> values(10'000, std::vector<float>(16)), gradients = values;
  TrainState state;
  for (std::size_t i = 0; i < values.size(); ++i)
    state.add("layer " + std::to_string(i), values[i], gradients[i]);
  Shares shares{state, 7};
  std::size_t pieces = 0;
  for (const auto& [name, n] : shares.pieces) pieces += n;
  CHECK(pieces == 10'000);
  auto [least, most] = std::minmax_element(shares.bytes.begin(), shares.bytes.end());
  CHECK(*most - *least <= 2 * 64);
  std::vector<float> none, no_g;
  TrainState empty;
  empty.add("none", none, no_g);
  Shares nothing{empty, 3};
  CHECK(nothing.pieces["none"] == 1);
}
