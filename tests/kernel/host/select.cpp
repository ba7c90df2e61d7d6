#include <mend/kernel/host/select.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <type_traits>
#include <vector>

#include "kernel/numbers.hpp"

using namespace mend::kernel;

namespace {

//! The plain definition: sorted by magnitude, then by index.
template <class T>
std::vector<std::uint32_t> sorted_out(const std::vector<T>& x, std::size_t k) {
  using Word = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  const auto word = [&](std::uint32_t i) { return std::bit_cast<Word>(x[i]) << 1; };
  std::vector<std::uint32_t> all(x.size());
  std::iota(all.begin(), all.end(), 0u);
  std::stable_sort(all.begin(), all.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return word(a) > word(b); });
  all.resize(std::min(k, all.size()));
  std::sort(all.begin(), all.end());
  return all;
}

template <class T>
void check_largest(const std::vector<T>& x) {
  const std::size_t n = x.size();
  for (std::size_t k : {std::size_t{0}, std::size_t{1}, std::size_t{2}, n / 100, n / 3, n / 2,
                        n - n / 3, n - 1, n, n + 1}) {
    if (n == 0 && k > 1) continue;
    CAPTURE(n);
    CAPTURE(k);
    const auto expected = sorted_out(x, k);
    for (Simd simd : test::levels()) CHECK(largest(x.data(), n, k, simd) == expected);
  }
}

}  // namespace

TEST_CASE_TEMPLATE("the largest are those that sorting finds, at every length", T, float, double) {
  std::vector<std::size_t> lengths{0, 1, 2, 3, 300, 513, 1000, 5000};
  for (std::size_t n = 63; n <= 130; ++n) lengths.push_back(n);
  for (std::size_t n : lengths) check_largest(test::numbers<T>(n, n));
}

TEST_CASE_TEMPLATE("orders that fill the room again and again", T, float, double) {
  constexpr std::size_t n = 20001;
  std::vector<T> rising(n), falling(n), saw(n), few(n), equal(n, T(3)), zeros(n), late(n);
  for (std::size_t i = 0; i < n; ++i) {
    rising[i] = static_cast<T>(i) * (i % 2 == 0 ? T(1) : T(-1));
    falling[i] = static_cast<T>(n - i);
    saw[i] = static_cast<T>(i % 1000);
    few[i] = static_cast<T>(test::mix(i) % 3);
    zeros[i] = i % 5 == 0 ? -T(0) : T(0);
    late[i] = i > n - 40 ? T(1) + std::numeric_limits<T>::epsilon() : T(1);
  }
  for (const auto& x : {rising, falling, saw, few, equal, zeros, late}) check_largest(x);
}

TEST_CASE_TEMPLATE("a NaN is larger than infinity; of equal ones the first is taken", T, float,
                   double) {
  using Limits = std::numeric_limits<T>;
  std::vector<T> x(1000, T(1));
  x[999] = -Limits::quiet_NaN();
  x[500] = -Limits::infinity();
  x[700] = Limits::infinity();
  x[600] = Limits::max();
  CHECK(largest(x.data(), x.size(), 1) == std::vector<std::uint32_t>{999});
  CHECK(largest(x.data(), x.size(), 2) == std::vector<std::uint32_t>{500, 999});
  CHECK(largest(x.data(), x.size(), 4) == std::vector<std::uint32_t>{500, 600, 700, 999});
  CHECK(largest(x.data(), x.size(), 6) == std::vector<std::uint32_t>{0, 1, 500, 600, 700, 999});
  // Nothing but NaNs, the largest of all bit patterns among them.
  x.assign(3000, Limits::quiet_NaN());
  x[2500] = std::bit_cast<T>(~detail::WordOf<T>{0});
  CHECK(largest(x.data(), x.size(), 2) == std::vector<std::uint32_t>{0, 2500});
  check_largest(x);
}

TEST_CASE_TEMPLATE("denormal numbers are told apart", T, float, double) {
  std::vector<T> x(2000);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<T>(test::mix(i) % 1000) * std::numeric_limits<T>::denorm_min();
  check_largest(x);
}

TEST_CASE_TEMPLATE("a million elements", T, float, double) {
  const auto x = test::numbers<T>(1'000'003, 5);
  for (std::size_t k : {std::size_t{1}, std::size_t{10'000}, std::size_t{999'999}})
    CHECK(largest(x.data(), x.size(), k) == sorted_out(x, k));
}

TEST_CASE_TEMPLATE("what is not +0 is found, up to a limit", T, float, double) {
  for (std::size_t n : {0, 1, 2, 7, 8, 9, 63, 64, 65, 1000}) {
    CAPTURE(n);
    auto x = test::numbers<T>(n, n);
    for (std::size_t i = 0; i < n; ++i)
      if (test::mix(i) % 2 == 0) x[i] = i % 3 == 0 ? -T(0) : T(0);
    std::vector<std::uint32_t> expected;
    for (std::size_t i = 0; i < n; ++i)
      if (x[i] != 0 || std::signbit(x[i])) expected.push_back(static_cast<std::uint32_t>(i));
    const std::size_t count = expected.size();
    for (Simd simd : test::levels()) {
      CHECK(non_zero(x.data(), n, n, simd) == std::optional{expected});
      CHECK(non_zero(x.data(), n, count, simd) == std::optional{expected});
      if (count > 0) CHECK_FALSE(non_zero(x.data(), n, count - 1, simd).has_value());
    }
  }
}
