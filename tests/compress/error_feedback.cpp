#include <mend/compress/error_feedback.hpp>

#include <doctest/doctest.h>

#include <mend/compress/quantize.hpp>
#include <mend/compress/random_k.hpp>
#include <mend/compress/top_k.hpp>
#include <mend/core/error.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "compress/pieces.hpp"
#include "kernel/numbers.hpp"

using mend::ErrorFeedback, mend::TopK, mend::RandomK, mend::Quantize8, mend::Step;

namespace {

//! One step; returns what the piece holds.
template <class Feedback, class T>
std::vector<T> send(const Feedback& feedback, const std::vector<T>& g, std::int64_t step,
                    const std::vector<T>& residual, std::vector<T>& next) {
  mend::Bytes out;
  feedback.encode(std::span<const T>{g}, {1, Step{step}}, std::span<const T>{residual},
                  std::span<T>{next}, out);
  return test::decoded<typename Feedback::Codec, T>(out, g.size());
}

template <class T>
void check_nothing_is_lost(const auto& feedback) {
  constexpr std::size_t n = 1000;
  std::vector<T> residual(n), next(n);
  for (std::int64_t step = 0; step < 20; ++step) {
    std::vector<T> g(n);
    for (std::size_t i = 0; i < n; ++i)
      g[i] = test::number<T>(static_cast<std::uint64_t>(step) * n + i);
    const auto sent = send(feedback, g, step, residual, next);
    bool exact = true;
    for (std::size_t i = 0; i < n; ++i) {
      const T x = g[i] + residual[i];
      exact = exact && sent[i] + next[i] == x && x - sent[i] == next[i];
      // Exact, not only to rounding: in a wider type too.
      exact = exact && static_cast<long double>(sent[i]) + static_cast<long double>(next[i]) ==
                           static_cast<long double>(x);
    }
    CHECK(exact);
    std::swap(residual, next);
  }
}

//! Whole numbers, whose sums are exact.
template <class T>
void check_sums(const auto& feedback) {
  constexpr std::size_t n = 777;
  std::vector<T> residual(n), next(n), all(n), arrived(n);
  for (std::int64_t step = 0; step < 30; ++step) {
    std::vector<T> g(n);
    for (std::size_t i = 0; i < n; ++i)
      g[i] = static_cast<T>(test::mix(static_cast<std::uint64_t>(step) * n + i) % 2001) - T(1000);
    const auto sent = send(feedback, g, step, residual, next);
    for (std::size_t i = 0; i < n; ++i) {
      all[i] += g[i];
      arrived[i] += sent[i];
    }
    std::swap(residual, next);
    for (std::size_t i = 0; i < n; ++i) REQUIRE(arrived[i] + residual[i] == all[i]);
  }
}

}  // namespace

TEST_CASE_TEMPLATE("a piece and the residual are the gradient and the old residual", T, float,
                   double) {
  check_nothing_is_lost<T>(ErrorFeedback{TopK{.keep = 0.05f}});
  check_nothing_is_lost<T>(ErrorFeedback{RandomK{.keep = 0.05f, .seed = 4}});
  check_nothing_is_lost<T>(ErrorFeedback{Quantize8{}});
}

TEST_CASE_TEMPLATE("what was sent and the residual are the sum of the gradients", T, float,
                   double) {
  check_sums<T>(ErrorFeedback{TopK{.keep = 0.05f}});
  check_sums<T>(ErrorFeedback{RandomK{.keep = 0.05f}});
}

TEST_CASE("the residual comes round: a small gradient is sent in the end") {
  const std::vector<float> g{1, 0.3f, 0, 0};
  std::vector<float> residual(4), next(4);
  const ErrorFeedback feedback{TopK{.keep = 0.25f}};
  std::vector<float> sent;
  int steps = 0;
  do {
    sent = send(feedback, g, steps, residual, next);
    std::swap(residual, next);
    REQUIRE(++steps < 10);
  } while (sent[1] == 0);
  CHECK(steps == 4);
  CHECK(sent[1] == 0.3f + 0.3f + 0.3f + 0.3f);
}

TEST_CASE("a step that is not committed leaves the residual as it was") {
  const ErrorFeedback feedback{TopK{.keep = 0.1f}};
  const auto g = test::finite_numbers<float>(100, 1);
  std::vector<float> residual = test::finite_numbers<float>(100, 2), next(100), again(100);
  const auto before = residual;
  std::vector<float> bad = g;
  bad[3] = std::numeric_limits<float>::infinity();
  const auto sent = send(feedback, bad, 1, residual, next);
  CHECK(std::isinf(sent[3]));  // seen by whoever checks
  CHECK(std::isnan(next[3]));
  CHECK(test::same_bits(residual, before));
  // Repeated, it gives the same.
  const auto first = send(feedback, g, 1, residual, next);
  CHECK(test::same_bits(send(feedback, g, 1, residual, again), first));
  CHECK(test::same_bits(next, again));
}

TEST_CASE("what it is made of") {
  const ErrorFeedback feedback{TopK{.keep = 0.01f}};
  static_assert(std::is_same_v<decltype(feedback), const ErrorFeedback<TopK>>);
  CHECK(feedback.slots.size() == 1);
  CHECK_NOTHROW(feedback.check());
  CHECK_THROWS_AS(ErrorFeedback{TopK{.keep = 0}}.check(), mend::OptionError);
}
