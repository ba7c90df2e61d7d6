#include <mend/session/purity_check.hpp>

#include <mend/comm/threads.hpp>
#include <mend/optim/sgd.hpp>
#include <mend/session/session.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace {

using namespace mend;
using comm::ThreadComm;

static_assert(Is<PurityCheck, kind::check>);

struct Model {
  std::vector<float> w{1, 2}, g{0, 0}, mean{0};
  std::uint64_t rng = 7;
  std::string loader = "a";
  TrainState state;

  Model() {
    state.add("w", w, g)
        .add_buffer("mean", mean)
        .add_scalar("rng", rng)
        .add_state(
            "loader",
            [this] {
              ByteView b = std::as_bytes(std::span{loader});
              return Bytes{b.begin(), b.end()};
            },
            [this](ByteView b) {
              loader.assign(reinterpret_cast<const char*>(b.data()), b.size());
            },
            Replicated{});
  }
  void step() {
    rng = rng * 6364136223846793005 + 1442695040888963407;
    mean[0] += w[0];
    loader += 'b';
    g = {w[0] * static_cast<float>(rng % 100), mean[0]};
  }
};

TEST_CASE("a pure step function is called twice for the first steps, and nothing else differs") {
  Model checked, plain;
  ThreadComm comm;
  int calls = 0;
  {
    Session session{checked.state, Sgd{}, comm, PurityCheck{.steps = 3}};
    session.train(6, [&](Step) {
      ++calls;
      checked.step();
      session.ready("w");
    });
    Session reference{plain.state, Sgd{}, comm};
    reference.train(6, [&](Step) { plain.step(); });
  }
  CHECK(calls == 6 + 3);
  CHECK(checked.w == plain.w);
  CHECK(checked.mean == plain.mean);
  CHECK(checked.rng == plain.rng);
  CHECK(checked.loader == plain.loader);
}

std::string fault(auto&& step) {
  Model m;
  ThreadComm comm;
  Session session{m.state, Sgd{}, comm, PurityCheck{}};
  try {
    session.train(3, [&](Step) { step(m); });
  } catch (const StateError& e) {
    CHECK(e.step() == Step{0});
    return e.what();
  }
  return "nothing was found";
}

TEST_CASE("state that mend does not know of shows in what depends on it") {
  int hidden = 0;
  CHECK(
      fault([&](Model& m) {
        m.step();
        m.g[1] += static_cast<float>(++hidden);
      })
          .find("the step function is impure: 'w' differs between two calls for one step; register "
                "what it depends on (add_buffer, add_scalar, add_generator, add_state)") == 0);
  CHECK(fault([&](Model& m) {
          m.step();
          m.mean[0] += static_cast<float>(++hidden);
        }).find("'mean' differs") != std::string::npos);
  CHECK(fault([&](Model& m) {
          m.step();
          m.rng += static_cast<std::uint64_t>(++hidden);
        }).find("'rng' differs") != std::string::npos);
  CHECK(fault([&](Model& m) {
          m.step();
          m.loader += std::to_string(++hidden);
        }).find("'loader' differs") != std::string::npos);
  CHECK(fault([](Model& m) { m.step(); }) == "nothing was found");
}

TEST_CASE("what happens after the checked steps is not looked at") {
  Model m;
  ThreadComm comm;
  Session session{m.state, Sgd{}, comm, PurityCheck{.steps = 2}};
  int hidden = 0;
  session.train(4, [&](Step s) {
    m.step();
    if (s == Step{2}) m.mean[0] += static_cast<float>(++hidden);
  });
  CHECK(session.step() == Step{4});
}

TEST_CASE("an impure rank stops in its own words; the others learn why") {
  comm::Threads cluster{{.ranks = 2, .max_restarts = 0}, {.simulated = true}};
  comm::Outcome outcome = cluster.run([&](ThreadComm& comm) {
    Model m;
    Session session{m.state, Sgd{}, comm, ReplicaRecovery{}, PurityCheck{}};
    int hidden = 0;
    session.train(3, [&](Step) {
      m.step();
      if (comm.rank() == 1) m.g[0] += static_cast<float>(++hidden);
    });
  });
  CHECK(!outcome.finished);
  CHECK(outcome.reason.find("rank 1 threw at step 0: the step function is impure: 'w' differs") !=
        std::string::npos);
}

}  // namespace
