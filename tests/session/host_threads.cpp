#include <mend/session/host_threads.hpp>

#include <mend/comm/threads.hpp>
#include <mend/optim/adam.hpp>
#include <mend/optim/undo/snapshot.hpp>
#include <mend/session/session.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <vector>

#include "comm/system.hpp"

namespace {

using namespace mend;
using comm::ThreadComm;

static_assert(Is<HostThreads, kind::device>);

constexpr std::size_t n = (std::size_t{1} << 19) + 99;  // parts for two threads, and a rest

std::vector<float> trained(auto... policies) {
  std::vector<float> w(n, 1), g(n);
  TrainState state;
  state.add("w", w, g);
  ThreadComm comm;
  Session session{state, Adam{.lr = 1e-2}, comm, policies...};
  session.train(3, [&](Step s) {
    for (std::size_t i = 0; i < n; ++i)
      g[i] = w[i] * static_cast<float>(i % 311 + static_cast<std::size_t>(s.value()));
  });
  return w;
}

TEST_CASE("any number of threads gives the same bits, with every kind of update") {
  std::vector<float> one = trained();
  for (int count : {1, 2, 3, 7}) {
    std::vector<float> many = trained(HostThreads{count});
    CHECK(std::memcmp(one.data(), many.data(), n * sizeof(float)) == 0);
    many = trained(HostThreads{count}, SnapshotUndo{});
    CHECK(std::memcmp(one.data(), many.data(), n * sizeof(float)) == 0);
  }
}

TEST_CASE("threads begin and end with the session") {
  std::size_t before = mend_test::running_threads();
  std::vector<float> w(3), g(3);
  TrainState state;
  state.add("w", w, g);
  ThreadComm comm;
  {
    Session session{state, Adam{}, comm, HostThreads{3}};
    CHECK(mend_test::running_threads() == before + 2);  // the caller is the third
  }
  CHECK(mend_test::eventually([&] { return mend_test::running_threads() == before; }));
}

TEST_CASE("less than one is refused, and the state stays free") {
  std::vector<float> w(3), g(3);
  TrainState state;
  state.add("w", w, g);
  ThreadComm comm;
  CHECK_THROWS_AS((Session{state, Adam{}, comm, HostThreads{0}}), OptionError);
  CHECK_THROWS_AS((Session{state, Adam{}, comm, HostThreads{-2}}), OptionError);
  Session session{state, Adam{}, comm};
}

}  // namespace
