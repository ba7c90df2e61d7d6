#include <mend/optim/loss_scale.hpp>

#include <doctest/doctest.h>

#include <mend/comm/threads.hpp>
#include <mend/core/hash.hpp>
#include <mend/optim/adam.hpp>
#include <mend/optim/clip_norm.hpp>
#include <mend/optim/sgd.hpp>
#include <mend/session/session.hpp>

#include <cfenv>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "session/support/cluster.hpp"

namespace {

using namespace mend;
using mend::comm::ThreadComm;

// Gradients in floats, scaled; an overflow at the steps that `bad` names.
struct Scaled {
  std::vector<float> w, g;
  float scale = 1024;
  TrainState state;

  Scaled() : w(100, 1.0f), g(100) { state.add("w", w, g).add_scalar("loss_scale", scale); }
  void step(Step s, bool overflow) {
    for (std::size_t i = 0; i < g.size(); ++i)
      g[i] = scale * 1e-2f * static_cast<float>(i % 7 + static_cast<std::size_t>(s.value()));
    if (overflow) g[3] = std::numeric_limits<float>::infinity();
  }
};

}  // namespace

TEST_CASE("gradients are unscaled in the update, and an overflow skips it and halves the scale") {
  Scaled scaled;
  std::vector<float> w(100, 1.0f), g(100);
  TrainState plain_state;
  plain_state.add("w", w, g);
  ThreadComm comm, plain_comm;
  Session session{scaled.state, Adam{.lr = 0.1}, comm, DynamicLossScale{.growth_interval = 2}};
  Session plain{plain_state, Adam{.lr = 0.1}, plain_comm};
  std::vector<float> scales;
  std::vector<bool> skipped;
  session.train(
      6, [&](Step s) { scaled.step(s, s == Step{1}); },
      [&](const Committed& done) {
        scales.push_back(scaled.scale);
        skipped.push_back(done.skipped);
      });
  CHECK(skipped == std::vector<bool>{false, true, false, false, false, false});
  CHECK(scales == std::vector<float>{1024, 512, 512, 1024, 1024, 2048});
  // Powers of two are exact: the same updates, without the skipped one, give the same bits.
  const int steps[] = {0, 2, 3, 4, 5};
  plain.train(5, [&](Step s) {
    for (std::size_t i = 0; i < g.size(); ++i)
      g[i] = 1e-2f * static_cast<float>(i % 7 + static_cast<std::size_t>(steps[s.value()]));
  });
  CHECK(scaled.w == w);
}

TEST_CASE("a clipped norm is that of unscaled gradients") {
  Scaled scaled;
  ThreadComm comm;
  Session session{scaled.state, Sgd{.lr = 1}, comm, ClipNorm{1e-3f}, DynamicLossScale{}};
  float norm = 0;
  session.train(
      1, [&](Step s) { scaled.step(s, false); },
      [&](const Committed& done) { norm = done.gradient_norm; });
  double squares = 0, moved = 0;
  for (std::size_t i = 0; i < 100; ++i) {
    const double g = 1e-2 * static_cast<double>(i % 7);
    squares += g * g;
    moved += (1 - static_cast<double>(scaled.w[i])) * (1 - static_cast<double>(scaled.w[i]));
  }
  CHECK(norm == doctest::Approx(std::sqrt(squares)));
  CHECK(std::sqrt(moved) == doctest::Approx(1e-3).epsilon(1e-3));
}

TEST_CASE("scale and count survive every kill, to the same bits") {
  auto trained = [](std::vector<mend_test::Fault> faults) {
    std::map<int, Hash128> final;
    std::mutex mutex;
    comm::WorldOptions world{.simulated = true, .chunk_bytes = 4096};
    world.faults = std::move(faults);
    mend_test::Ran ran = mend_test::run_threads(
        {.ranks = 2, .max_restarts = 32, .poison = 20}, world, [&](ThreadComm& comm) {
          Scaled scaled;
          Session session{scaled.state, Adam{.lr = 0.1}, comm, ReplicaRecovery{},
                          DynamicLossScale{.growth_interval = 2}};
          session.train(6, [&](Step s) { scaled.step(s, s == Step{2} && comm.rank() == 1); });
          std::lock_guard lock{mutex};
          final[comm.rank()] = scaled.state.hash();
        });
    CHECK(ran.outcome.finished);
    return std::pair{final, ran.trace};
  };
  const auto [expected, trace] = trained({});
  REQUIRE(expected.size() == 2);
  CHECK(expected.at(0) == expected.at(1));
  std::size_t killed = 0;
  for (const auto& t : trace) {
    if (t.who != 1 || t.point != "commit") continue;
    ++killed;
    CHECK(trained({{.who = t.who, .operation = t.operation}}).first == expected);
  }
  CHECK(killed >= 5);
}

TEST_CASE("a scale that is missing or no number is an error that says what to do") {
  std::vector<float> w(4), g(4);
  float scale = 0;
  TrainState without, zero;
  without.add("w", w, g);
  zero.add("w", w, g).add_scalar("loss_scale", scale);
  ThreadComm comm, other;
  CHECK_THROWS_WITH_AS(
      (Session{without, Sgd{}, comm, DynamicLossScale{}}),
      "DynamicLossScale needs a replicated float 'loss_scale': state.add_scalar(\"loss_scale\", a "
      "float of yours); nothing of that name is registered",
      StateError);
  double wide = 1;
  TrainState other_type;
  other_type.add("w", w, g).add_scalar("loss_scale", wide);
  CHECK_THROWS_WITH_AS((Session{other_type, Sgd{}, comm, DynamicLossScale{}}),
                       doctest::Contains("it is F64"), StateError);
  Session session{zero, Sgd{}, other, DynamicLossScale{}};
  CHECK_THROWS_AS(session.train(1, [](Step) {}), StateError);
}

TEST_CASE("the trainer's rounding mode changes nothing") {
  const auto run = [](int mode, auto policy) {
    Scaled scaled;
    ThreadComm comm;
    Session session{scaled.state, Adam{.lr = 0.1}, comm, policy};
    std::fesetround(mode);
    int inside = 0;
    session.train(
        8,
        [&](Step s) {
          std::fesetround(FE_TONEAREST);  // the same gradients
          scaled.step(s, s == Step{1});
          std::fesetround(mode);
        },
        [&](const Committed&) { inside = std::fegetround(); });
    const int after = std::fegetround();
    std::fesetround(FE_TONEAREST);
    CHECK(inside == mode);
    CHECK(after == mode);
    return scaled.state.hash();
  };
  const DynamicLossScale scaling{.growth = 1.1, .growth_interval = 2};
  CHECK(run(FE_UPWARD, scaling) == run(FE_TONEAREST, scaling));
}
