#include <mend/core/byte_count.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <type_traits>

using mend::ByteCount;
using namespace mend::literals;

// Never an element count by accident, in either direction.
static_assert(!std::is_convertible_v<std::uint64_t, ByteCount>);
static_assert(!std::is_convertible_v<ByteCount, std::uint64_t>);
static_assert(ByteCount{3} + ByteCount{4} == ByteCount{7});
static_assert(ByteCount{3} < ByteCount{4});
static_assert(2_KiB == ByteCount{2048});
static_assert(3_MiB == ByteCount{3u << 20});
static_assert((8192_MiB).value() == std::uint64_t{8} << 30);

TEST_CASE("byte counts add up") {
  ByteCount total;
  total += 1_KiB;
  total += ByteCount{1};
  CHECK(total.value() == 1025);
}
