#pragma once

#include <mend/checkpoint/full_writer.hpp>
#include <mend/checkpoint/publisher.hpp>
#include <mend/core/train_state.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace mend_test {

//! A number that depends on everything, so that nothing can lie in another's place unseen.
inline std::uint64_t mixed(std::uint64_t seed, std::uint64_t what, std::uint64_t index) {
  std::uint64_t x = seed * 0x9e3779b97f4a7c15 + what * 0xbf58476d1ce4e5b9 + index;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

//! Rank `rank` of `size`: one of everything that a checkpoint may hold. What is replicated, and
//! what of the global arrays it owns, is a function of the seed; so are per-rank entries, of the
//! seed and the rank.
struct Model {
  static constexpr std::int64_t columns = 6, all_rows = 13, all_cells = 29;

  Model(std::uint64_t seed, int rank_, int size_) : rank{rank_}, size{size_} {
    state.rank = rank;
    state.size = size;
    state.add("fc/weight", weight, gradient, {.shape = {7, 5}})
        .add("tied to fc", weight, gradient, {.shape = {7, 5}})
        .add("tall \xc3\xa9", tall, tall_gradient, {.shape = {1000, 3}})
        .add("wide", wide, wide_gradient, {.shape = {1, 300}})
        .add("none", none, none_gradient, {.shape = {0, 4}})
        .add("nothing", none, none_gradient, {.shape = {4, 0}});
    state.add_buffer("bytes", bytes).add_buffer("mean", mean, {}, {.before_image = false});
    state.add_scalar("position", position);
    state.add_state(
        "shared", [this] { return shared; }, load_into(shared), mend::Replicated{});
    state.add_state(
        "loader", [this] { return loader; }, load_into(loader),
        mend::PerRank{.on_resize = mend::OnResize::from_rank_0});
    state.add_buffer("own", own, mend::PerRank{.copies = 0, .on_resize = mend::OnResize::reset});
    // Blocks of rows, of uneven height, and of a line; one rank more than rows have none.
    first_row = all_rows * rank / size, rows = all_rows * (rank + 1) / size - first_row;
    first_cell = all_cells * rank / size, cells = all_cells * (rank + 1) / size - first_cell;
    field.resize(static_cast<std::size_t>(rows * columns));
    line.resize(static_cast<std::size_t>(cells));
    state.add_buffer(
        "field", field,
        mend::Slice{.of = {all_rows, columns}, .at = {first_row, 0}, .extent = {rows, columns}},
        {.before_image = false});
    state.add_buffer("line", line,
                     mend::Slice{.of = {all_cells}, .at = {first_cell}, .extent = {cells}});
    fill(seed);
  }

  void fill(std::uint64_t seed) {
    auto set = [&](auto& values, std::uint64_t what, std::uint64_t first = 0) {
      using T = std::decay_t<decltype(values[0])>;
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<T>(mixed(seed, what, first + i));
    };
    set(weight, 1), set(tall, 2), set(wide, 3), set(bytes, 4), set(mean, 5);
    position = static_cast<std::int64_t>(mixed(seed, 6, 0) >> 1);
    shared.resize(mixed(seed, 7, 0) % 50), loader.resize(mixed(seed, 8, own_id()) % 50);
    set(shared, 9), set(loader, 10, own_id() * 1000);
    set(own, 11, own_id() * 1000);
    set(field, 12, static_cast<std::uint64_t>(first_row * columns));
    set(line, 13, static_cast<std::uint64_t>(first_cell));
    state.step = static_cast<std::int64_t>(seed);
    state.applied = static_cast<std::int64_t>(seed) / 2;
  }
  [[nodiscard]] mend::Hash128 hash() const { return state.hash(); }

  mend::TrainState state;
  int rank, size;
  std::vector<float> weight = std::vector<float>(35), gradient = weight;
  std::vector<float> tall = std::vector<float>(3000), tall_gradient = tall;
  std::vector<float> wide = std::vector<float>(300), wide_gradient = wide;
  std::vector<float> none, none_gradient;
  std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(77);
  std::vector<double> mean = std::vector<double>(11);
  std::int64_t position = 0;
  mend::Bytes shared, loader;
  std::vector<std::uint16_t> own = std::vector<std::uint16_t>(9);
  std::int64_t first_row = 0, rows = 0, first_cell = 0, cells = 0;
  std::vector<double> field;
  std::vector<std::uint32_t> line;

 private:
  [[nodiscard]] std::uint64_t own_id() const { return static_cast<std::uint64_t>(rank); }
  static std::function<void(mend::ByteView)> load_into(mend::Bytes& bytes) {
    return [&bytes](mend::ByteView from) { bytes.assign(from.begin(), from.end()); };
  }
};

//! One part, written by a writer of its own. Throws its error.
template <mend::Store S>
mend::store::Manifest::Shard write_part(S store, const mend::TrainState& state,
                                        const mend::checkpoint::ShardLabel& label,
                                        mend::ByteCount staging = mend::ByteCount{1 << 20}) {
  mend::checkpoint::FullWriter<S> writer{std::move(store), staging};
  if (!writer.begin(state, label)) throw std::logic_error{"a new writer is busy"};
  auto report = writer.wait();
  if (report->error) throw mend::FileError{*report->error};
  return *report->shard;
}

//! A checkpoint of the model with that seed, by `size` ranks, through a publisher.
template <mend::Store S>
void write_checkpoint(S store, mend::checkpoint::Publisher<S>& publisher, std::uint64_t seed,
                      int size) {
  std::vector<mend::store::Manifest::Shard> shards;
  for (int rank = 0; rank < size; ++rank) {
    Model model{seed, rank, size};
    shards.push_back(write_part(store, model.state,
                                {.step = model.state.step,
                                 .applied = model.state.applied,
                                 .run = publisher.run(),
                                 .generation = publisher.generation(),
                                 .part = rank,
                                 .parts = size}));
  }
  publisher.commit(static_cast<std::int64_t>(seed), shards);
}

}  // namespace mend_test
