#include <mend/session/session.hpp>

#include <doctest/doctest.h>

#include <mend/comm/threads.hpp>
#include <mend/optim/adam.hpp>
#include <mend/optim/undo/exact.hpp>
#include <mend/optim/undo/ping_pong.hpp>
#include <mend/optim/undo/roll_forward.hpp>
#include <mend/store/safetensors.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using namespace mend;
using mend::comm::ThreadComm;

namespace {

struct Two {
  std::vector<float> a, ga, b, gb;
  TrainState state;

  Two() : a(5000, 1), ga(5000), b(5000, 2), gb(5000) { state.add("a", a, ga).add("b", b, gb); }
  void gradients(Step s) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      ga[i] = 1e-3f * static_cast<float>(i % 13 + static_cast<std::size_t>(s.value()));
      gb[i] = 1e-2f * static_cast<float>(i % 7);
    }
  }
};

}  // namespace

TEST_CASE_TEMPLATE("who catches what left a step finds the last commit, and goes on from there",
                   Undo, ExactUndo, PingPong) {
  Two plain, cut;
  ThreadComm comm, other;
  Session uninterrupted{plain.state, Adam{.lr = 0.1}, comm, Undo{}};
  uninterrupted.train(3, [&](Step s) { plain.gradients(s); });

  Session session{cut.state, Adam{.lr = 0.1}, other, Undo{}};
  session.train(2, [&](Step s) { cut.gradients(s); });
  const Hash128 committed = cut.state.hash();
  const std::vector<float> b = cut.b;
  bool thrown = false;
  try {
    session.train(3, [&](Step s) {
      cut.gradients(s);
      session.ready("b");
      REQUIRE(cut.b != b);  // it is updated
      throw std::runtime_error{"no more data"};
    });
  } catch (const std::runtime_error&) {
    thrown = true;
  }
  CHECK(thrown);
  CHECK(cut.state.hash() == committed);
  std::ranges::fill(cut.gb, 0.0f);  // as trainers do
  session.train(3, [&](Step s) { cut.gradients(s); });
  CHECK(cut.state.hash() == plain.state.hash());
}

TEST_CASE("a loop that is left early leaves the last commit") {
  Two two;
  std::vector<float> committed;
  {
    ThreadComm comm;
    Session session{two.state, Adam{.lr = 0.1}, comm, ExactUndo{}};
    while (std::optional<Step> s = session.next(9)) {
      if (*s == Step{2}) committed = two.b;
      two.gradients(*s);
      session.ready("b");
      if (*s == Step{2}) {
        CHECK(two.b != committed);
        break;
      }
    }
  }
  CHECK(two.b == committed);
}

TEST_CASE("a container that is resized in the step function is found before anything is written") {
  Two two;
  ThreadComm comm;
  Session session{two.state, Adam{}, comm, ExactUndo{}};
  CHECK_THROWS_WITH_AS(session.train(1,
                                     [&](Step) {
                                       two.b.resize(100000);
                                       session.ready("b");
                                     }),
                       "the value of tensor 'b' was moved or resized after registration; register "
                       "buffers of final size",
                       StateError);
}

TEST_CASE("whatever is thrown, who catches it finds the last commit") {
  Two two;
  ThreadComm comm;
  Session session{two.state, Adam{.lr = 0.1}, comm, ExactUndo{}};
  const Hash128 committed = two.state.hash();
  const auto step = [&](Step s) {
    two.gradients(s);
    session.ready("b");
    throw 42;
  };
  CHECK_THROWS_AS(session.train(1, step), int);
  CHECK(two.state.hash() == committed);
}

TEST_CASE_TEMPLATE("a container that is resized after its early update is not written to", Undo,
                   ExactUndo, PingPong) {
  for (bool gradient : {false, true}) {
    Two two;
    ThreadComm comm;
    Session session{two.state, Adam{.lr = 0.1}, comm, Undo{}};
    const auto step = [&](Step s) {
      two.gradients(s);
      session.ready("b");
      (gradient ? two.gb : two.b).resize(100000);
    };
    CHECK_THROWS_AS(session.train(1, step), StateError);
    CHECK_THROWS_AS(session.train(1, step), StateError);
  }
  Two two;  // and out of a loop, where only the session's end looks back
  ThreadComm comm;
  Session session{two.state, Adam{.lr = 0.1}, comm, Undo{}};
  while (std::optional<Step> s = session.next(9)) {
    two.gradients(*s);
    session.ready("b");
    break;
  }
  two.b = std::vector<float>(100000);
  CHECK_THROWS_AS(session.discard(), StateError);
}

TEST_CASE_TEMPLATE("half of a step cannot be saved; discard() leaves the last commit", Undo,
                   ExactUndo, PingPong, RollForward) {
  const std::string path =
      std::string{std::getenv("TMPDIR") != nullptr ? std::getenv("TMPDIR") : "/tmp"} +
      "/mend_half_updated.safetensors";
  Two plain, cut;
  ThreadComm comm, other, third;
  Session uninterrupted{plain.state, Adam{.lr = 0.1}, comm, Undo{}};
  uninterrupted.train(9, [&](Step s) { plain.gradients(s); });
  {
    Session session{cut.state, Adam{.lr = 0.1}, other, Undo{}};
    session.discard();  // nothing to do
    while (std::optional<Step> s = session.next(9)) {
      cut.gradients(*s);
      session.ready("b");
      if (*s == Step{5}) break;
    }
    if (Undo::reverts) {
      CHECK_THROWS_WITH_AS(save(cut.state, path), doctest::Contains("call session.discard()"),
                           StateError);
      CHECK_THROWS_AS((void)cut.state.hash(), StateError);
    }
    session.discard();
    save(cut.state, path);
    CHECK(cut.state.step == 5);
    CHECK(session.step() == Step{5});
  }
  Two loaded;
  Session session{loaded.state, Adam{.lr = 0.1}, third, Undo{}};
  load(loaded.state, path);
  session.train(9, [&](Step s) { loaded.gradients(s); });
  CHECK(loaded.state.hash() == plain.state.hash());
  std::remove(path.c_str());
}
