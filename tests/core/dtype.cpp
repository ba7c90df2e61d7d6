#include <mend/core/dtype.hpp>

#include <doctest/doctest.h>

#include <complex>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string_view>

using mend::DType;
using mend::dtype_of;
using mend::Element;

namespace {

struct Half {  // as a user's library has one
  std::uint16_t bits;
};
struct Unknown {};

}  // namespace

template <>
inline constexpr mend::DType mend::dtype_of<Half> = mend::DType::f16;

static_assert(dtype_of<float> == DType::f32 && dtype_of<double> == DType::f64);
static_assert(dtype_of<bool> == DType::boolean);
static_assert(dtype_of<std::byte> == DType::u8);
static_assert(dtype_of<std::int8_t> == DType::i8 && dtype_of<std::uint8_t> == DType::u8);
static_assert(dtype_of<std::int16_t> == DType::i16 && dtype_of<std::uint16_t> == DType::u16);
static_assert(dtype_of<std::int32_t> == DType::i32 && dtype_of<std::uint32_t> == DType::u32);
static_assert(dtype_of<long long> == DType::i64 && dtype_of<unsigned long> == DType::u64);
static_assert(dtype_of<Half> == DType::f16);
static_assert(Element<float> && Element<const double> && Element<Half> && Element<bool>);
static_assert(!Element<long double> && !Element<Unknown> && !Element<float*>);
static_assert(!Element<std::complex<float>> && !Element<void>);
#if defined(__SIZEOF_INT128__)
__extension__ using Int128 = __int128;
static_assert(!Element<Int128>);
#endif

TEST_CASE("sizes and names, each its own") {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(DType::boolean); ++i) {
    auto type = static_cast<DType>(i);
    std::string_view name = mend::name_of(type);
    names.insert(name);
    // The digits of a name are the bits of an element; BOOL takes a byte.
    std::size_t bits = 0;
    for (char c : name)
      if (c >= '0' && c <= '9') bits = 10 * bits + static_cast<std::size_t>(c - '0');
    CHECK(8 * mend::size_of(type) == (type == DType::boolean ? 8 : bits));
  }
  CHECK(names.size() == 13);
  CHECK(names.count("?") == 0);
}

TEST_CASE("four of them are floating-point") {
  int floating = 0;
  for (int i = 0; i <= static_cast<int>(DType::boolean); ++i)
    floating += mend::is_floating(static_cast<DType>(i));
  CHECK(floating == 4);
  CHECK(mend::is_floating(DType::bf16));
  CHECK_FALSE(mend::is_floating(DType::u16));
}

TEST_CASE("types that mend counts are as large as their elements") {
  CHECK(mend::size_of(dtype_of<bool>) == sizeof(bool));
  CHECK(mend::size_of(dtype_of<char>) == sizeof(char));
  CHECK(mend::size_of(dtype_of<wchar_t>) == sizeof(wchar_t));
  CHECK(mend::size_of(dtype_of<long>) == sizeof(long));
  CHECK(mend::size_of(dtype_of<char16_t>) == sizeof(char16_t));
}
