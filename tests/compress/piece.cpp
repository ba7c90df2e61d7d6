#include <mend/compress/piece.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

using mend::DType, mend::Piece;

namespace {

std::vector<int> numbers(const mend::Bytes& bytes) {
  std::vector<int> v;
  for (std::byte b : bytes) v.push_back(std::to_integer<int>(b));
  return v;
}

std::string refused(const mend::Bytes& bytes, DType type, std::size_t size) {
  try {
    (void)Piece::parse(bytes, type, size);
    return "nothing";
  } catch (const mend::FileError& e) {
    return e.what();
  }
}

}  // namespace

TEST_CASE("a head is twelve bytes, little-endian, and is read back") {
  mend::Bytes out{std::byte{9}};
  std::byte* body = Piece::append(out, Piece::Form::sparse, DType::f64, 0x01020304, 0x0506, 2);
  body[0] = std::byte{7};
  CHECK(numbers(out) == std::vector<int>{9, 2, 1, 0, 0, 4, 3, 2, 1, 6, 5, 0, 0, 7, 0});
  out.erase(out.begin());
  const Piece piece = Piece::parse(out, DType::f64, 0x01020304);
  CHECK(piece.form == Piece::Form::sparse);
  CHECK(piece.size == 0x01020304);
  CHECK(piece.count == 0x0506);
  CHECK(piece.body.size() == 2);
}

TEST_CASE("what is no piece of this tensor is refused") {
  mend::Bytes good;
  Piece::append(good, Piece::Form::dense, DType::f32, 5, 5, 20);
  CHECK(refused(good, DType::f32, 5) == "nothing");
  CHECK(refused(good, DType::f64, 5).find("not F64") != std::string::npos);
  CHECK(refused(good, DType::f32, 6).find("of 5 elements, not 6") != std::string::npos);
  CHECK(refused({good.begin(), good.begin() + 11}, DType::f32, 5).find("cut short") !=
        std::string::npos);
  for (std::size_t at : {0, 2, 3}) {
    auto bad = good;
    bad[at] = std::byte{0x55};
    CHECK(refused(bad, DType::f32, 5).find("head") != std::string::npos);
  }
  auto bad = good;
  bad[8] = std::byte{6};
  CHECK(refused(bad, DType::f32, 5).find("more elements") != std::string::npos);
}

TEST_CASE("a tensor whose elements 32 bits cannot count is refused") {
  CHECK_NOTHROW(Piece::check_size(0xffffffff));
  CHECK_THROWS_AS(Piece::check_size(std::size_t{1} << 32), mend::OptionError);
}
