#include <mend/optim/undo/exact.hpp>

#include <doctest/doctest.h>

#include <sys/resource.h>

#include <mend/optim/adagrad.hpp>
#include <mend/optim/adam.hpp>
#include <mend/optim/adamw.hpp>
#include <mend/optim/lamb.hpp>
#include <mend/optim/lars.hpp>
#include <mend/optim/lion.hpp>
#include <mend/optim/momentum.hpp>
#include <mend/optim/nadam.hpp>
#include <mend/optim/rmsprop.hpp>
#include <mend/optim/sgd.hpp>

#include <array>
#include <cstddef>
#include <string_view>
#include <vector>

#include "optim/undo/trial.hpp"

using namespace mend;

namespace {

// A user's rule, without bounds.
struct Heavy {
  float lr = 1e-2f;
  static constexpr std::array<std::string_view, 1> slots{"m"};
  struct Coefficients {
    float lr;
  };
  [[nodiscard]] Coefficients at(Step) const { return {lr}; }
  template <class Real>
  MEND_RULE static void apply(Real& p, Slots<Real, 1>& s, Real g, const auto& c) {
    s[0] = s[0] * 0.875f + g;
    p = p - s[0] * c.lr;
  }
  template <class Real>
  MEND_RULE static void revert(Real& p, Slots<Real, 1>& s, Real g, const auto& c) {
    p = p + s[0] * c.lr;
    s[0] = (s[0] - g) / 0.875f;
  }
};
static_assert(!BoundedOptimizer<Heavy>);

// One without slots, whose record fills a word with many parameters.
struct Plain {
  static constexpr std::array<std::string_view, 0> slots{};
  struct Coefficients {};
  [[nodiscard]] Coefficients at(Step) const { return {}; }
  template <class Real>
  MEND_RULE static void apply(Real& p, Slots<Real, 0>&, Real g, const auto&) {
    p = p - g * 0.01f;
  }
  template <class Real>
  MEND_RULE static void revert(Real& p, Slots<Real, 0>&, Real g, const auto&) {
    p = p + g * 0.01f;
  }
};

template <class R, class T = float>
void restores(R rule) {
  test::UndoTrial<ExactUndo, R, T>{rule}.restores_after_any_prefix();
  CHECK(test::UndoTrial<ExactUndo, R, T>{rule}.changed_after_cycles(100) == 0);
}

}  // namespace

TEST_CASE("exact undo restores the bits of every rule, after any prefix of tensors") {
  restores(Sgd{.lr = 0.1});
  restores(Momentum{});
  restores(Momentum{.nesterov = true});
  restores(Momentum{.weight_decay = 0.01});
  restores(Adam{});
  restores(AdamW{.weight_decay = 0.1});
  restores(Adagrad{});
  restores(RmsProp{});
  restores(Lion{});
  restores(NAdam{});
  restores(Lamb{});
  restores(Lars{});
}

TEST_CASE("exact undo restores doubles") {
  restores<Adam, double>(Adam{});
  restores<Momentum, double>(Momentum{});
}

TEST_CASE("exact undo restores rules without bounds, and coefficients outside them") {
  restores(Heavy{});
  restores(Plain{});
  restores<Heavy, double>(Heavy{});
  restores(Adam{.beta1 = 0.5, .beta2 = 0});
  restores(Adam{.beta1 = 0});
  restores(Momentum{.nesterov = true, .weight_decay = 0.01});
}

TEST_CASE("a thousand cycles with other gradients change no bit") {
  CHECK(test::UndoTrial<ExactUndo, Adam>{Adam{}}.changed_after_cycles(1000) == 0);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#if defined(__has_feature)
#define MEND_TEST_SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define MEND_TEST_SANITIZED 0
#endif
TEST_CASE("without memory for its record a step throws and leaves every chunk whole" *
          doctest::skip(MEND_TEST_SANITIZED)) {
  constexpr std::size_t n = 1 << 20;
  std::vector<float> p(n), m(n), v(n), g(n);
  for (std::size_t i = 0; i < n; ++i) {
    p[i] = 1 + static_cast<float>(i % 100);
    g[i] = 1e-3f * static_cast<float>(i % 77 + 1);
  }
  const auto p0 = p;
  ExactUndo::Record<Adam> record;
  const UndoTensor tensor{n, DType::f32, false};
  record.reserve({&tensor, 1});
  const UpdateRange<Adam, float> range{Adam{}.at(0), p.data(), {m.data(), v.data()},
                                       g.data(),     n,        1.0f};
  bool scratch = false;  // what it needs beside pages: there, or missing too
  SUBCASE("pages") {}
  SUBCASE("not even scratch memory") { scratch = true; }
  if (!scratch) record.apply(0, 0, range.part(0, undo_chunk));
  rlimit old{}, small{};
  std::vector<void*> taken;
  taken.reserve(1 << 16);
  REQUIRE(::getrlimit(RLIMIT_AS, &old) == 0);
  small = old;
  small.rlim_cur = 1 << 20;  // less than is in use: nothing more can be mapped
  REQUIRE(::setrlimit(RLIMIT_AS, &small) == 0);
  if (scratch)  // what the process has left
    for (void* block; taken.size() < taken.capacity() && (block = std::malloc(100'000)) != nullptr;)
      taken.push_back(block);
  bool thrown = false;
  try {  // a first step needs more than the first page holds
    for (std::size_t at = scratch ? 0 : undo_chunk; at < n; at += undo_chunk)
      record.apply(0, at, range.part(at, undo_chunk));
  } catch (const StateError&) {
    thrown = true;
  }
  REQUIRE(::setrlimit(RLIMIT_AS, &old) == 0);
  for (void* block : taken) std::free(block);
  CHECK(thrown);
  CHECK((p != p0) == !scratch);
  record.revert(0, 0, range);
  CHECK(p == p0);
  CHECK(m == std::vector<float>(n));
  CHECK(v == std::vector<float>(n));
}
#endif

TEST_CASE("the record shrinks again after expensive steps") {
  constexpr std::size_t n = 1 << 18;
  std::vector<float> p(n, 1.0f), m(n), v(n), g(n);
  ExactUndo::Record<Adam> record;
  const UndoTensor tensor{n, DType::f32, false};
  record.reserve({&tensor, 1});
  std::size_t first = 0;
  for (int t = 0; t < 30; ++t) {
    for (std::size_t i = 0; i < n; ++i)
      g[i] = test::number<float>(i + n * static_cast<std::size_t>(t), 3);
    record.apply(
        0, 0,
        UpdateRange<Adam, float>{Adam{}.at(t), p.data(), {m.data(), v.data()}, g.data(), n, 1.0f});
    if (t == 0) first = record.used().value();
    record.drop();
  }
  record.apply(
      0, 0,
      UpdateRange<Adam, float>{Adam{}.at(30), p.data(), {m.data(), v.data()}, g.data(), n, 1.0f});
  CHECK(first > 8 * n);                       // values and slots, or nearly
  CHECK(record.used().value() < 13 * n / 8);  // bytes: under 13 bits per parameter
}
