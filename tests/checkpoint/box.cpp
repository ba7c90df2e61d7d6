#include <mend/checkpoint/box.hpp>

#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <vector>

using mend::Slice;
using mend::checkpoint::Box;

TEST_CASE("what two blocks have in common") {
  Slice a{.of = {8, 6}, .at = {2, 0}, .extent = {4, 6}};
  Slice b{.of = {8, 6}, .at = {0, 3}, .extent = {3, 2}};
  Box box = Box::common(a, b);
  CHECK(box.at == std::vector<std::int64_t>{2, 3});
  CHECK(box.extent == std::vector<std::int64_t>{1, 2});
  CHECK(box.volume() == 2);
  Slice far{.of = {8, 6}, .at = {6, 0}, .extent = {2, 6}};
  CHECK(Box::common(a, far).volume() == 0);
}

TEST_CASE("runs move exactly the common elements, whatever the blocks are") {
  std::mt19937 random{3};
  std::vector<std::int64_t> of{5, 4, 3};
  auto block = [&] {
    Slice s{.of = of, .at = {}, .extent = {}};
    for (std::int64_t n : of) {
      auto at = static_cast<std::int64_t>(random() % static_cast<unsigned>(n));
      s.at.push_back(at);
      s.extent.push_back(1 + static_cast<std::int64_t>(random()) % (n - at));
      if (random() % 3 == 0) s.at.back() = 0, s.extent.back() = n;
    }
    return s;
  };
  //! The number of each element in the global array.
  auto contents = [&](const Slice& s) {
    std::vector<std::int64_t> values;
    for (std::int64_t i = 0; i < s.extent[0]; ++i)
      for (std::int64_t j = 0; j < s.extent[1]; ++j)
        for (std::int64_t k = 0; k < s.extent[2]; ++k)
          values.push_back(((s.at[0] + i) * of[1] + s.at[1] + j) * of[2] + s.at[2] + k);
    return values;
  };
  for (int trial = 0; trial < 500; ++trial) {
    Slice into = block(), from = block();
    std::vector<std::int64_t> expected = contents(into), source = contents(from);
    std::vector<std::int64_t> values(expected.size(), -1);
    Box box = Box::common(into, from);
    std::size_t moved = 0;
    box.each_run(into, from, 8, [&](std::size_t to, std::size_t at, std::size_t n) {
      std::memcpy(reinterpret_cast<char*>(values.data()) + to,
                  reinterpret_cast<const char*>(source.data()) + at, n);
      moved += n / 8;
    });
    CHECK(moved == box.volume());
    std::size_t right = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      CHECK((values[i] == -1 || values[i] == expected[i]));
      right += values[i] == expected[i];
    }
    CHECK(right == box.volume());
  }
}

TEST_CASE("rows that are whole in both blocks are one run") {
  Slice into{.of = {8, 6, 2}, .at = {2, 0, 0}, .extent = {4, 6, 2}};
  Slice from{.of = {8, 6, 2}, .at = {0, 0, 0}, .extent = {4, 6, 2}};
  int runs = 0;
  Box::common(into, from)
      .each_run(into, from, 4, [&](std::size_t to, std::size_t at, std::size_t n) {
        ++runs;
        CHECK(to == 0);
        CHECK(at == 2 * 12 * 4);
        CHECK(n == 2 * 12 * 4);
      });
  CHECK(runs == 1);
}
