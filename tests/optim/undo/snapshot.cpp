#include <mend/optim/undo/snapshot.hpp>

#include <doctest/doctest.h>

#include <mend/core/error.hpp>
#include <mend/kernel/host/apply.hpp>
#include <mend/optim/adam.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "kernel/numbers.hpp"

namespace {

// Three buckets of different sizes, special values and all; the last large enough to be streamed.
struct Model {
  static constexpr std::size_t sizes[] = {1, 1000, 300001};
  std::vector<float> p[3], m[3], v[3], g[3];

  explicit Model(std::uint64_t seed) {
    for (std::size_t b = 0; b < 3; ++b) {
      p[b] = test::numbers<float>(sizes[b], 4 * seed + b);
      m[b] = test::numbers<float>(sizes[b], 5 * seed + b);
      v[b] = test::numbers<float>(sizes[b], 6 * seed + b);
      g[b] = test::numbers<float>(sizes[b], 7 * seed + b);
    }
  }
  std::vector<mend::StateSpan> state(std::size_t b) {
    return {std::as_writable_bytes(std::span{p[b]}), std::as_writable_bytes(std::span{m[b]}),
            std::as_writable_bytes(std::span{v[b]})};
  }
  void update(std::size_t b) {
    mend::kernel::apply<mend::Adam>(mend::Adam{}.at(5), p[b].data(), {m[b].data(), v[b].data()},
                                    g[b].data(), sizes[b]);
  }
  static mend::ByteCount bytes() { return mend::ByteCount{12 * (1 + 1000 + 300001)}; }
  friend bool operator==(const Model& a, const Model& b) {
    bool same = true;
    for (std::size_t i = 0; i < 3; ++i)
      same = same && test::same_bits(a.p[i], b.p[i]) && test::same_bits(a.m[i], b.m[i]) &&
             test::same_bits(a.v[i], b.v[i]);
    return same;
  }
};

}  // namespace

TEST_CASE(
    "after any prefix of buckets, in any order, going back gives the same bits, step after step") {
  mend::SnapshotUndo::Record record;
  record.reserve(3, Model::bytes());
  CHECK(record.memory() == Model::bytes());
  std::uint64_t seed = 0;
  std::size_t order[] = {0, 1, 2};
  do {
    for (std::size_t prefix = 0; prefix <= 3; ++prefix) {
      Model model{++seed};
      const Model before = model;
      for (std::size_t k = 0; k < prefix; ++k) {
        record.save(order[k], model.state(order[k]));
        model.update(order[k]);
      }
      CHECK((model == before) == (prefix == 0));
      for (std::size_t b : {2, 0, 1})
        CHECK(record.restore(b) == (std::find(order, order + prefix, b) != order + prefix));
      CHECK(model == before);
      record.drop();
      for (std::size_t b : {0, 1, 2}) CHECK(!record.restore(b));
    }
  } while (std::next_permutation(order, order + 3));
}

TEST_CASE("a second save of a bucket does not replace what was there before its update") {
  Model model{1};
  const Model before = model;
  mend::SnapshotUndo::Record record;
  record.reserve(3, Model::bytes());
  record.save(2, model.state(2));
  model.update(2);
  record.save(2, model.state(2));
  CHECK(record.restore(2));
  CHECK(model == before);
}

TEST_CASE("restoring twice, as a recovery that is interrupted does, changes nothing") {
  Model model{2};
  const Model before = model;
  mend::SnapshotUndo::Record record;
  record.reserve(3, Model::bytes());
  record.save(1, model.state(1));
  model.update(1);
  CHECK(record.restore(1));
  CHECK(record.restore(1));
  CHECK(model == before);
}

TEST_CASE("beyond what was reserved nothing is saved, and the rest stays restorable") {
  Model model{3};
  const Model before = model;
  mend::SnapshotUndo::Record record;
  record.reserve(3, mend::ByteCount{12 * 1001});
  record.save(0, model.state(0));
  record.save(1, model.state(1));
  model.update(0);
  model.update(1);
  CHECK_THROWS_WITH_AS(record.save(2, model.state(2)),
                       "SnapshotUndo: bucket 2 with 3600012 bytes is beyond what was reserved",
                       mend::StateError);
  CHECK_THROWS_AS(record.save(3, model.state(0)), mend::StateError);
  CHECK(record.restore(0));
  CHECK(record.restore(1));
  CHECK(!record.restore(2));
  CHECK(!record.restore(3));
  CHECK(model == before);
}

TEST_CASE("a record that was never reserved holds nothing") {
  mend::SnapshotUndo::Record record;
  CHECK(!record.restore(0));
  record.drop();
  CHECK(record.memory() == mend::ByteCount{});
}
