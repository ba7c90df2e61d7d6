#include <mend/comm/buffer.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace {

using mend::DType;
using mend::comm::Buffer;
using mend::comm::Reduction;

template <class T>
void takes(DType dtype) {
  std::vector<T> values(3);
  Buffer b = Buffer::of(std::span{values});
  CHECK(b.data == reinterpret_cast<std::byte*>(values.data()));
  CHECK(b.count == 3);
  CHECK(b.dtype == dtype);
  CHECK(b.bytes() == 3 * sizeof(T));
  CHECK(b.reduction == Reduction::mean);
  CHECK(b.tag == 0);
}

TEST_CASE("a buffer knows the type and size of what it borrows") {
  takes<float>(DType::f32);
  takes<double>(DType::f64);
  takes<std::int8_t>(DType::i8);
  takes<std::uint8_t>(DType::u8);
  takes<std::int16_t>(DType::i16);
  takes<std::uint16_t>(DType::u16);
  takes<std::int32_t>(DType::i32);
  takes<std::uint32_t>(DType::u32);
  takes<std::int64_t>(DType::i64);
  takes<std::uint64_t>(DType::u64);
  takes<std::byte>(DType::u8);
}

TEST_CASE("reduction and tag are what was asked for") {
  std::array<std::int32_t, 2> values{};
  Buffer b = Buffer::of(std::span{values}, Reduction::sum, 7);
  CHECK(b.reduction == Reduction::sum);
  CHECK(b.tag == 7);
  CHECK(b.count == 2);
}

TEST_CASE("an empty buffer has no bytes") {
  CHECK(Buffer{}.bytes() == 0);
  CHECK(Buffer::of(std::span<double>{}).bytes() == 0);
}

}  // namespace
