#include <mend/comm/tcp.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/fake_launcher.hpp"
#include "comm/system.hpp"

using namespace mend_test;

static_assert(CanAllReduce<Tcp> && CanAllGather<Tcp> && CanReduceScatter<Tcp> &&
              CanBroadcast<Tcp> && CanBarrier<Tcp> && Elastic<Tcp> && Channel<Tcp::Pipe>);

namespace {

void set(const WorkerEnvironment& e) {
  for (const auto& [name, value] : e.variables()) ::setenv(name.c_str(), value.c_str(), 1);
}
void unset() {
  for (const auto& [name, value] : WorkerEnvironment{}.variables()) ::unsetenv(name.c_str());
}

//! `size` workers of one process in one generation; main(comm) runs in a thread for each.
template <class Main>
void run(int size, Main&& main) {
  FakeLauncher launcher;
  std::vector<std::future<void>> workers;
  for (int r = 0; r < size; ++r)
    workers.push_back(std::async(std::launch::async, [&, me = launcher.worker(r, size)] {
      Tcp comm{std::make_unique<TcpLink>(me),
               {me.rank, me.size, me.incarnation, false, me.timeout}};
      main(comm);
    }));
  launcher.join(size);
  View view;
  view.generation = Generation{1};
  view.peers = launcher.peers();
  for (view.rank = 0; view.rank < size; ++view.rank)
    launcher.tell(view.peers[static_cast<std::size_t>(view.rank)].incarnation, Kind::view,
                  encode(view));
  for (auto& w : workers) w.get();
}

}  // namespace

TEST_CASE("without a launcher there is a group of one") {
  unset();
  Tcp comm = join_tcp();
  CHECK(!comm.managed());
  CHECK(comm.size() == 1);
  CHECK(comm.rank() == 0);
  CHECK(comm.agree(true));
  CHECK(!comm.agree(false));
  std::vector<float> x{1, 2};
  comm.all_reduce(std::span{x});
  CHECK(x == std::vector<float>{1, 2});
}

TEST_CASE("joining says what is wrong, within its time") {
  {
    FakeLauncher gone;
    set(gone.worker(0, 1));
  }
  CHECK_THROWS_WITH_AS(join_tcp(), doctest::Contains("no launcher listens there"), CommError);
  ::unsetenv("MEND_TOKEN");
  CHECK_THROWS_WITH_AS(join_tcp(), doctest::Contains("MEND_TOKEN"), OptionError);
  FakeLauncher mute;
  set(mute.worker(0, 1));
  Time start = SystemClock{}.now();
  CHECK_THROWS_WITH_AS(join_tcp({.join_within = 100ms}), doctest::Contains("does not answer"),
                       CommError);
  CHECK(SystemClock{}.now() - start < 5s);
  ::setenv("MEND_LAUNCHER", "nowhere", 1);
  CHECK_THROWS_WITH_AS(join_tcp(), doctest::Contains("host:port"), CommError);
  unset();
}

TEST_CASE("collectives over TCP, with sums in rank order") {
  for (int size : {2, 3, 5}) {
    CAPTURE(size);
    constexpr std::size_t n = 300'001;
    run(size, [&](Tcp& comm) {
      auto value = [](int rank, std::size_t i) {
        return static_cast<float>(rank + 1) * (1.0f + static_cast<float>(i % 1000) * 1e-3f) +
               1e-6f * static_cast<float>(i);
      };
      std::vector<float> x(n);
      for (std::size_t i = 0; i < n; ++i) x[i] = value(comm.rank(), i);
      comm.all_reduce(std::span{x}, Reduction::sum);
      bool same = true;
      for (std::size_t i = 0; i < n; ++i) {
        float sum = value(0, i);
        for (int r = 1; r < comm.size(); ++r) sum += value(r, i);
        same = same && sum == x[i];
      }
      CHECK(same);
      comm.barrier();
      CHECK(!comm.agree(comm.rank() != 1));
      std::vector<std::byte> note(5000, static_cast<std::byte>(comm.rank()));
      comm.broadcast(note, size - 1);
      CHECK(note == std::vector<std::byte>(5000, static_cast<std::byte>(size - 1)));
    });
  }
}
