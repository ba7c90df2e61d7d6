#include <mend/core/arena.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

using mend::Arena;
using mend::ByteCount;

static_assert(!std::is_copy_constructible_v<Arena> && !std::is_copy_assignable_v<Arena>);
static_assert(std::is_nothrow_move_constructible_v<Arena>);
static_assert(!std::is_convertible_v<std::uint64_t, Arena>);
static_assert(!std::is_convertible_v<ByteCount, Arena>);

TEST_CASE("memory is aligned, zeroed and writable to its last byte") {
  for (std::uint64_t size :
       {1u, 63u, 64u, 4096u, 4097u, (2u << 20) - 1, 2u << 20, (5u << 20) + 3}) {
    Arena arena{ByteCount{size}};
    REQUIRE(arena.size() == size);
    CHECK(reinterpret_cast<std::uintptr_t>(arena.data()) % Arena::alignment == 0);
    if (size >= 2u << 20) CHECK(reinterpret_cast<std::uintptr_t>(arena.data()) % (2u << 20) == 0);
    CHECK(std::all_of(arena.data(), arena.data() + size,
                      [](std::byte b) { return b == std::byte{}; }));
    std::fill_n(arena.data(), size, std::byte{0xff});
    CHECK(arena.data()[size - 1] == std::byte{0xff});
  }
}

TEST_CASE("no bytes, no memory") {
  CHECK(Arena{}.data() == nullptr);
  CHECK(Arena{}.size() == 0);
  CHECK(Arena{ByteCount{0}}.data() == nullptr);
}

TEST_CASE("moving keeps the address") {
  Arena a{ByteCount{100}};
  std::byte* data = a.data();
  Arena b{std::move(a)};
  CHECK(b.data() == data);
  CHECK(a.data() == nullptr);  // NOLINT: moved-from on purpose
  CHECK(a.size() == 0);        // NOLINT
  Arena c{ByteCount{3u << 20}};
  c = std::move(b);
  CHECK(c.data() == data);
  CHECK(c.size() == 100);
  std::vector<Arena> many;
  for (std::uint64_t i = 1; i < 50; ++i) many.emplace_back(ByteCount{i});
  for (std::uint64_t i = 1; i < 50; ++i) CHECK(many[i - 1].size() == i);
}

TEST_CASE("more than there is: an error, also where the size would wrap around") {
  for (std::uint64_t size : {std::uint64_t{1} << 62, std::numeric_limits<std::uint64_t>::max(),
                             std::numeric_limits<std::uint64_t>::max() - (2u << 20) + 1})
    CHECK_THROWS_AS(Arena{ByteCount{size}}, mend::StateError);
}

TEST_CASE("sizes round up to whole lines") {
  static_assert(mend::Arena::aligned(0) == 0 && mend::Arena::aligned(1) == 64);
  CHECK(mend::Arena::aligned(64) == 64);
  CHECK(mend::Arena::aligned(65) == 128);
}
