#include <mend/compress/compressor.hpp>

#include <doctest/doctest.h>

#include <mend/compress/error_feedback.hpp>
#include <mend/compress/quantize.hpp>
#include <mend/compress/random_k.hpp>
#include <mend/compress/top_k.hpp>

#include <cstddef>
#include <span>
#include <string_view>

namespace {

// A codec of a user's own: everything, as it is, without a head.
struct Plain {
  static constexpr std::string_view name = "Plain";
  void check() const {}
  [[nodiscard]] std::size_t bound(std::size_t n, mend::DType type) const {
    return n * mend::size_of(type);
  }
  template <class T>
  void encode(std::span<const T>, const mend::PieceKey&, mend::Bytes&) const {}
  template <class T>
  static void add(mend::ByteView, std::span<T>) {}
  template <class T>
  static void subtract(mend::ByteView, std::span<T>) {}
};
struct Unnamed {
  void check() const {}
};

}  // namespace

TEST_CASE("what is a codec and what is not") {
  CHECK(mend::Compressor<Plain>);
  CHECK(mend::Compressor<mend::TopK>);
  CHECK(mend::Compressor<mend::RandomK>);
  CHECK(mend::Compressor<mend::Quantize8>);
  CHECK_FALSE(mend::Compressor<Unnamed>);
  CHECK_FALSE(mend::Compressor<int>);
  CHECK_FALSE(mend::Compressor<mend::ErrorFeedback<mend::TopK>>);  // it needs memory beside
}
