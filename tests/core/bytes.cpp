#include <mend/core/bytes.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

using mend::ByteReader;
using mend::Bytes;
using mend::ByteView;
using mend::ByteWriter;
using mend::CommError;
using namespace std::literals;

namespace {

template <class T>
concept CanPut = requires(ByteWriter w, const T& value) {
  w.put(value);
};
static_assert(CanPut<int> && CanPut<double>);
static_assert(!CanPut<std::string>);  // its pointer would travel, not its text

Bytes message() {
  ByteWriter w;
  w.put(std::uint32_t{0x01020304}).put_string("two\0words"sv).put(true).put(-1.5);
  w.put_bytes({}).put_bytes(Bytes(3, std::byte{7}));
  return std::move(w).take();
}

}  // namespace

TEST_CASE("what is written is read, in order") {
  Bytes bytes = message();
  CHECK(bytes.size() == 4 + 8 + 9 + 1 + 8 + 8 + 8 + 3);
  CHECK(bytes[0] == std::byte{4});  // little-endian
  ByteReader r{bytes};
  CHECK_FALSE(r.empty());
  CHECK(r.get<std::uint32_t>() == 0x01020304);
  CHECK(r.get_string() == "two\0words"s);
  CHECK(r.get<bool>());
  CHECK(r.get<double>() == -1.5);
  CHECK(r.get_bytes().empty());
  CHECK(r.get_bytes().size() == 3);
  CHECK(r.empty());
  CHECK_THROWS_AS(r.get<char>(), CommError);
}

TEST_CASE("a message cut short anywhere is an error, never a read past its end") {
  Bytes whole = message();
  for (std::size_t n = 0; n < whole.size(); ++n) {
    Bytes bytes(whole.begin(),
                whole.begin() + static_cast<std::ptrdiff_t>(n));  // ASan sees its end
    ByteReader r{bytes};
    auto read_all = [&] {
      (void)r.get<std::uint32_t>();
      (void)r.get_string();
      (void)r.get<bool>();
      (void)r.get<double>();
      (void)r.get_bytes();
      (void)r.get_bytes();
    };
    CHECK_THROWS_AS(read_all(), CommError);
  }
}

TEST_CASE("lengths that no message has allocate nothing") {
  for (std::uint64_t length : {std::numeric_limits<std::uint64_t>::max(), std::uint64_t{1} << 63,
                               std::uint64_t{1} << 40, std::uint64_t{3}}) {
    ByteWriter w;
    w.put(length).put('a').put('b');
    Bytes bytes = std::move(w).take();
    CHECK_THROWS_AS(ByteReader{bytes}.get_string(), CommError);
    CHECK_THROWS_AS(ByteReader{bytes}.get_bytes(), CommError);
  }
}

TEST_CASE("any byte of a message is a bool") {
  for (int value = 0; value < 256; ++value) {
    Bytes bytes{static_cast<std::byte>(value)};
    CHECK(ByteReader{bytes}.get<bool>() == (value != 0));
  }
}
