// Top-k of 20 million normally distributed floats, k = 1 %: TopK, from the gradient to the piece,
// against std::nth_element on an array of indices and values, whose filling is not counted.
#include <fmt/core.h>

#include <mend/compress/top_k.hpp>
#include <mend/core/bytes.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <span>
#include <vector>

#include "bars.hpp"

namespace {

struct Element {
  std::uint32_t index;
  float value;
};

std::vector<float> normal_numbers(std::size_t n) {
  std::mt19937_64 random{1};
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

}  // namespace

int main() {
  constexpr std::size_t n = 20'000'000, k = n / 100;
  constexpr int rounds = 9;
  const std::vector<float> gradient = normal_numbers(n);
  std::vector<Element> elements(n);
  std::vector<double> ours, theirs;
  for (int round = 0; round < rounds; ++round) {
    mend::Bytes piece;
    double start = bench::seconds();
    mend::TopK{.keep = 0.01f}.encode(std::span<const float>{gradient}, {}, piece);
    ours.push_back(bench::seconds() - start);

    for (std::size_t i = 0; i < n; ++i) elements[i] = {static_cast<std::uint32_t>(i), gradient[i]};
    start = bench::seconds();
    std::nth_element(
        elements.begin(), elements.begin() + (k - 1), elements.end(),
        [](const Element& a, const Element& b) { return std::abs(a.value) > std::abs(b.value); });
    theirs.push_back(bench::seconds() - start);

    // Both end at the same magnitude.
    std::vector<float> chosen(n);
    mend::TopK::add(mend::ByteView{piece}, std::span<float>{chosen});
    float least = std::abs(elements[0].value);
    for (float x : chosen)
      if (x != 0) least = std::min(least, std::abs(x));
    if (least != std::abs(elements[k - 1].value)) {
      fmt::print(stderr, "TopK chose down to {}, not {}\n", least, elements[k - 1].value);
      return EXIT_FAILURE;
    }
  }
  fmt::print("TopK {:.1f} ms, std::nth_element {:.1f} ms\n", 1e3 * bench::median(ours),
             1e3 * bench::median(theirs));
  bench::bar("topk_vs_nth_element", bench::median(theirs) / bench::median(ours), 2, true);
}
