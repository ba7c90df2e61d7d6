#include <mend/compress/error_feedback21.hpp>

#include <doctest/doctest.h>

#include <mend/compress/merge.hpp>
#include <mend/compress/quantize.hpp>
#include <mend/compress/random_k.hpp>
#include <mend/compress/top_k.hpp>
#include <mend/core/error.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "compress/pieces.hpp"
#include "kernel/numbers.hpp"

using mend::ErrorFeedback21, mend::TopK, mend::RandomK, mend::Quantize8, mend::Step;

namespace {

constexpr std::size_t n = 1000, ranks = 3;

//! The gradient of a rank at a step; it settles as steps go by.
template <class T>
std::vector<T> gradient(std::size_t rank, std::int64_t step) {
  std::vector<T> g(n);
  for (std::size_t i = 0; i < n; ++i)
    g[i] = test::number<T>(rank * n + i, 3) +
           test::number<T>(static_cast<std::uint64_t>(step + 1) * n + i, 3) *
               static_cast<T>(std::ldexp(1.0, -static_cast<int>(step)));
  return g;
}

template <class T>
struct Run {
  std::vector<T> estimates[ranks], mean = std::vector<T>(n), consumed{};
  std::vector<mend::Bytes> pieces{};
  Run() {
    for (auto& e : estimates) e.resize(n);
  }

  template <class Feedback>
  void consume(const Feedback& feedback, std::int64_t step) {
    pieces.assign(ranks, {});
    std::vector<mend::ByteView> views;
    for (std::size_t r = 0; r < ranks; ++r) {
      std::vector<T> scratch(n);
      const auto g = gradient<T>(r, step);
      feedback.encode(std::span<const T>{g}, {1, Step{step}, mend::Rank{static_cast<int>(r)}},
                      std::span<const T>{estimates[r]}, std::span<T>{scratch}, pieces[r]);
      views.emplace_back(pieces[r]);
    }
    consumed.assign(n, T(1));
    mend::merge<typename Feedback::Codec>(std::span<const mend::ByteView>{views},
                                          std::span<T>{consumed});
    feedback.consume(std::span<const T>{mean}, std::span<T>{consumed});
  }
  template <class Feedback>
  void commit(const Feedback& feedback) {
    for (std::size_t r = 0; r < ranks; ++r)
      feedback.commit(mend::ByteView{pieces[r]}, std::span<T>{estimates[r]},
                      std::span<const T>{consumed}, std::span<T>{mean});
  }
};

template <class T>
void check_replay(const auto& feedback) {
  using C = typename std::remove_cvref_t<decltype(feedback)>::Codec;
  Run<T> run;
  std::vector<T> replayed(n);
  for (std::int64_t step = 0; step < 15; ++step) {
    run.consume(feedback, step);
    const auto held = test::decoded<C, T>(run.pieces[1], n);
    for (std::size_t i = 0; i < n; ++i) replayed[i] = replayed[i] + held[i];
    run.commit(feedback);
    CHECK(test::same_bits(replayed, run.estimates[1]));
    CHECK(test::same_bits(run.mean, run.consumed));
  }
}

//! How far what is consumed is from the mean of the gradients, over how long that is.
double distance(const auto& feedback, std::int64_t steps) {
  Run<double> run;
  for (std::int64_t step = 0; step < steps; ++step) {
    run.consume(feedback, step);
    run.commit(feedback);
  }
  double off = 0, all = 0;
  for (std::size_t i = 0; i < n; ++i) {
    double mean = 0;
    for (std::size_t r = 0; r < ranks; ++r) mean += gradient<double>(r, steps - 1)[i] / ranks;
    off += (run.consumed[i] - mean) * (run.consumed[i] - mean);
    all += mean * mean;
  }
  return std::sqrt(off / all);
}

}  // namespace

TEST_CASE_TEMPLATE("the pieces of a rank replay its estimate bit for bit", T, float, double) {
  check_replay<T>(ErrorFeedback21{TopK{.keep = 0.05f}});
  check_replay<T>(ErrorFeedback21{RandomK{.keep = 0.05f, .seed = 1}});
  check_replay<T>(ErrorFeedback21{Quantize8{}});
}

TEST_CASE("what is consumed comes close to the mean of the gradients") {
  CHECK(distance(ErrorFeedback21{TopK{.keep = 0.1f}}, 1) > 0.1);
  CHECK(distance(ErrorFeedback21{TopK{.keep = 0.1f}}, 60) < 1e-6);
  CHECK(distance(ErrorFeedback21{Quantize8{}}, 60) < 1e-6);
}

TEST_CASE("a step that is not committed changes nothing, and gives the same again") {
  const ErrorFeedback21 feedback{TopK{.keep = 0.1f}};
  Run<float> run;
  run.consume(feedback, 0);
  run.commit(feedback);
  const Run<float> before = run;
  run.consume(feedback, 1);
  const Run<float> first = run;
  for (std::size_t r = 0; r < ranks; ++r)
    CHECK(test::same_bits(run.estimates[r], before.estimates[r]));
  CHECK(test::same_bits(run.mean, before.mean));
  run.consume(feedback, 1);
  CHECK(run.pieces == first.pieces);
  CHECK(test::same_bits(run.consumed, first.consumed));
}

TEST_CASE("what it is made of") {
  const ErrorFeedback21 feedback{TopK{.keep = 0.01f}};
  CHECK(feedback.slots.size() == 2);
  CHECK_NOTHROW(feedback.check());
  CHECK_THROWS_AS(ErrorFeedback21{TopK{.keep = 0}}.check(), mend::OptionError);
}
