#include <mend/comm/world.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "comm/ranks.hpp"

namespace {

using namespace mend;
using namespace mend::comm;
using namespace mend_test;
using Comm = Ranks::Comm;
using Hub = World::WorkerHub;

Header message(std::uint32_t part) {
  Header h;
  h.kind = static_cast<std::uint16_t>(Kind::message);
  h.generation = 1;
  h.part = part;
  return h;
}
// The next frame that is no collective's; fails the worker when none comes within ten seconds.
Frame next(Comm& comm) {
  for (Deadline end = after(comm.now(), 10s); comm.now() < end;)
    if (std::optional<Frame> f = comm.link().poll(end, false)) {
      if (!comm.is(*f, Kind::vote) && !comm.is(*f, Kind::verdict)) return *std::move(f);
      comm.keep(*std::move(f));
    }
  throw CommError{"nothing came"};
}
void let_pass(Comm& comm, Time span) {
  for (Deadline end = after(comm.now(), span); comm.now() < end;) (void)comm.watch(end);
}
std::string run_and_trace(Ranks& ranks) {
  ranks.run([](Comm& comm) {
    for (int i = 0; i < 5; ++i) comm.barrier();
  });
  std::string text;
  for (const World::Trace& t : ranks.trace)
    text += std::to_string(t.who) + ":" + std::to_string(t.operation) + ":" + t.point + " ";
  return text;
}

// ---- the simulation -----------------------------------------------------------------------------

TEST_CASE("a seed gives one history, every time; seeds differ") {
  std::set<std::string> histories;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    Ranks ranks{.size = 3, .options = {.simulated = true, .seed = seed}};
    std::string first = run_and_trace(ranks);
    CHECK(first.find("post") != first.npos);
    for (int i = 0; i < 3; ++i) CHECK(run_and_trace(ranks) == first);
    histories.insert(first);
  }
  CHECK(histories.size() == 8);
}

TEST_CASE("virtual time costs none") {
  auto begin = std::chrono::steady_clock::now();
  Ranks ranks{.size = 2, .options = {.simulated = true, .timeout = 1h}};
  Time took{};
  REQUIRE(ranks.run([&](Comm& comm) {
    comm.barrier();
    Time from = comm.now();
    if (comm.rank() == 0) let_pass(comm, 30min);
    comm.barrier();
    took = comm.now() - from;
  }));
  CHECK(took >= 29min);
  CHECK(took < 31min);
  CHECK(std::chrono::steady_clock::now() - begin < 20s);
}

TEST_CASE("messages are delayed, at most by what was asked for") {
  std::set<std::int64_t> delays;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Ranks ranks{.size = 2, .options = {.simulated = true, .seed = seed, .delay = 50ms}};
    Time sent{}, came{};
    REQUIRE(ranks.run([&](Comm& comm) {
      comm.barrier();
      if (comm.rank() == 0) {
        sent = comm.now();
        comm.link().post(1, message(0), {});
      } else {
        (void)next(comm);
        came = comm.now();
      }
      comm.barrier();
    }));
    CHECK(came >= sent);
    CHECK(came - sent <= 60ms);  // the receiver may start to wait a little later
    delays.insert((came - sent).count());
  }
  CHECK(delays.size() > 10);
}

TEST_CASE("a world in which everybody waits for ever is found out") {
  World world{{.simulated = true, .limit = 1h}};
  bool returned = false;
  world.run(
      [&](Comm& comm) {
        for (;;) (void)comm.watch(never);
      },
      [&](Hub& hub) {
        hub.start(1, 0, 2, false);
        hub.start(2, 1, 2, false);
        while (!world.hung()) (void)hub.poll(never);
        returned = true;
        return 0;
      });
  CHECK(returned);
  CHECK(world.hung());
}

TEST_CASE("so is one whose virtual time runs out") {
  World world{{.simulated = true, .limit = 1h}};
  world.run([&](Comm& comm) { let_pass(comm, 100h); },
            [&](Hub& hub) {
              hub.start(1, 0, 1, false);
              while (!world.hung()) (void)hub.poll(never);
              return 0;
            });
  CHECK(world.hung());
}

// ---- links: the laws of mend/core/link.hpp ------------------------------------------------------

TEST_CASE("frames of one sender arrive once and in order, beside those of others in any order") {
  std::set<std::string> orders;
  for (std::uint64_t seed = 0; seed <= 12; ++seed) {
    Ranks ranks{.size = 3, .options = {.simulated = seed != 0, .seed = seed}};
    std::string order;
    std::vector<std::uint32_t> parts[3];
    REQUIRE(ranks.run([&](Comm& comm) {
      comm.barrier();
      if (comm.rank() == 0) {
        for (int i = 0; i < 40; ++i) {
          Frame f = next(comm);
          order += std::to_string(f.from);
          parts[f.from].push_back(f.header.part);
        }
      } else {
        for (std::uint32_t i = 0; i < 20; ++i) comm.link().post(0, message(i), {});
      }
      comm.barrier();
    }));
    std::vector<std::uint32_t> expected;
    for (std::uint32_t i = 0; i < 20; ++i) expected.push_back(i);
    CHECK(parts[1] == expected);
    CHECK(parts[2] == expected);
    if (seed != 0) orders.insert(order);
  }
  CHECK(orders.size() == 12);
}

TEST_CASE("what the coordinator says comes before what peers say") {
  for (bool simulated : {false, true}) {
    Ranks ranks{.size = 2, .options = {.simulated = simulated, .delay = Time{0}}};
    ranks.on_frame = [](Hub& hub, const HubEvent& e) {
      if (e.frame.header.kind == static_cast<std::uint16_t>(Kind::finished))
        Ranks::tell(hub, 1, Kind::bye);
    };
    std::vector<int> from;
    REQUIRE(ranks.run([&](Comm& comm) {
      comm.barrier();
      if (comm.rank() == 1) {
        for (std::uint32_t i = 0; i < 3; ++i) comm.link().post(0, message(i), {});
        comm.tell(Kind::finished, 0);
        let_pass(comm, 1s);
      } else {  // everything has arrived before the first look
        for (int i = 0; simulated && i < 300; ++i) comm.link().reached("waiting");
        if (!simulated) std::this_thread::sleep_for(200ms);
        for (int i = 0; i < 4; ++i) from.push_back(next(comm).from);
      }
    }));
    CHECK(from == std::vector<int>{Frame::coordinator, 1, 1, 1});
  }
}

TEST_CASE("a frame of an older generation is never delivered, one of a newer waits for enter") {
  for (bool simulated : {false, true}) {
    Ranks ranks{.size = 2, .options = {.simulated = simulated}};
    std::vector<std::uint32_t> parts;
    REQUIRE(ranks.run([&](Comm& comm) {
      comm.barrier();
      View second = ranks.view(comm.rank(), 2);
      if (comm.rank() == 1) {
        comm.link().post(0, message(1), {});  // of generation 1: never read there
        comm.enter(second);
        Header h = message(2);
        h.generation = 2;
        comm.link().post(0, h, {});
        let_pass(comm, 1s);
      } else {
        let_pass(comm, 200ms);
        comm.link().hold(1, true);
        CHECK(!comm.link().poll(after(comm.now(), 50ms), false));
        comm.enter(second);  // forgets the hold, too
        parts.push_back(next(comm).header.part);
        CHECK(!comm.link().poll(after(comm.now(), 50ms), false));
      }
    }));
    CHECK(parts == std::vector<std::uint32_t>{2});
  }
}

TEST_CASE("the end of a peer comes after everything that it sent") {
  for (bool simulated : {false, true}) {
    Ranks ranks{.size = 2, .options = {.simulated = simulated}};
    std::vector<std::uint16_t> kinds;
    REQUIRE(ranks.run([&](Comm& comm) {
      comm.barrier();
      if (comm.rank() == 1) {
        for (std::uint32_t i = 0; i < 3; ++i) comm.link().post(0, message(i), {});
        return;
      }
      do kinds.push_back(next(comm).header.kind);
      while (kinds.back() != Header::broken);
      comm.link().post(1, message(9), {});  // to nobody
      CHECK(!comm.link().poll(after(comm.now(), 50ms), false));
    }));
    auto m = static_cast<std::uint16_t>(Kind::message);
    CHECK(kinds == std::vector<std::uint16_t>{m, m, m, Header::broken});
  }
}

TEST_CASE("a held peer stays unread until it is let go") {
  for (bool simulated : {false, true}) {
    Ranks ranks{.size = 3, .options = {.simulated = simulated}};
    std::vector<int> from;
    REQUIRE(ranks.run([&](Comm& comm) {
      comm.barrier();
      if (comm.rank() != 0) {
        if (comm.rank() == 2) let_pass(comm, 100ms);  // the held one was first
        comm.link().post(0, message(0), {});
        let_pass(comm, 1s);
      } else {
        comm.link().hold(1, true);
        from.push_back(next(comm).from);
        CHECK(!comm.link().poll(after(comm.now(), 20ms), false));
        comm.link().hold(1, false);
        from.push_back(next(comm).from);
      }
    }));
    CHECK(from == std::vector<int>{2, 1});
  }
}

TEST_CASE("wake ends a poll from another thread") {
  Ranks ranks{.size = 1};
  Time took{};
  REQUIRE(ranks.run([&](Comm& comm) {
    comm.barrier();
    Time begin = comm.now();
    std::thread other{[&] {
      std::this_thread::sleep_for(20ms);
      comm.link().wake();
    }};
    CHECK(!comm.link().poll(after(begin, 60s), false));
    took = comm.now() - begin;
    other.join();
    CHECK(comm.concurrent());
  }));
  CHECK(took < 30s);
}

// ---- faults -------------------------------------------------------------------------------------

TEST_CASE("kill: out of whatever it does, past every handler for exceptions") {
  for (bool simulated : {false, true})
    for (std::uint64_t operation : {0, 1, 2, 3, 5}) {
      Ranks ranks{.size = 2,
                  .options = {.simulated = simulated,
                              .timeout = 5s,
                              .faults = {{.who = 2, .operation = operation}}}};
      int caught = 0;
      ranks.run([&](Comm& comm) {
        try {
          for (int i = 0; i < 5; ++i) comm.barrier();
        } catch (const std::exception&) {
          if (comm.rank() == 1) ++caught;
          throw;
        }
      });
      CHECK(caught == 0);
      REQUIRE(ranks.status.count(1) == 1);
      CHECK(ranks.status[1] == -9);
      CHECK(ranks.failures.count(1) == 0);  // it had no time to say anything
    }
}

TEST_CASE("kill: of what it sent, a prefix arrives") {
  std::set<std::size_t> lengths;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    Ranks ranks{.size = 2, .options = {.simulated = true, .seed = seed, .delay = 20ms}};
    std::vector<std::uint32_t> parts;
    ranks.run([&](Comm& comm) {
      comm.barrier();
      if (comm.rank() == 1) {
        for (std::uint32_t i = 0; i < 8; ++i) comm.link().post(0, message(i), {});
        throw Killed{};
      }
      for (Frame f = next(comm); f.header.kind != Header::broken; f = next(comm))
        parts.push_back(f.header.part);
    });
    lengths.insert(parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) CHECK(parts[i] == i);
  }
  CHECK(lengths.size() > 3);
}

TEST_CASE("cut: both ends learn of it, nothing passes any more, other links stay") {
  Ranks ranks{
      .size = 3,
      .options = {.simulated = true,
                  .faults = {{.kind = Fault::Kind::cut, .who = 1, .operation = 100, .peer = 1}}}};
  std::vector<std::string> seen(3);
  REQUIRE(ranks.run([&](Comm& comm) {
    comm.barrier();
    std::string& mine = seen[static_cast<std::size_t>(comm.rank())];
    // Operation 100 of rank 0 is one of these, after the barrier.
    for (int i = 0; i < 120; ++i) comm.link().reached("here");
    let_pass(comm, 1s);
    for (int r = 0; r < 3; ++r)
      if (r != comm.rank()) comm.link().post(r, message(0), {});
    let_pass(comm, 1s);
    // watch() kept what came for the collectives; the group tells what is there.
    for (int r = 0; r < 3; ++r)
      if (r != comm.rank()) {
        try {
          comm.channel(r).receive({});
          mine += std::to_string(r);
        } catch (const PeerLost&) {
          mine += "-";
        }
      }
  }));
  CHECK(seen == std::vector<std::string>{"-2", "-2", "01"});
}

TEST_CASE("stop: no sign of life meanwhile; longer than the lease, it fences itself") {
  for (Time span : {500ms, 5000ms}) {
    World world{{.simulated = true,
                 .lease = 1s,
                 .faults = {{.kind = Fault::Kind::stop, .who = 1, .operation = 3, .span = span}}}};
    Time silence{};
    int status = world.run(
        [&](Comm& comm) {
          for (int i = 0; i < 10; ++i) comm.link().reached("here");
        },
        [&](Hub& hub) {
          hub.start(1, 0, 1, false);
          for (;;) {
            std::optional<HubEvent> e = hub.poll(after(hub.now(), 100ms));
            silence = std::max(silence, hub.now() - hub.last_heard(1));
            if (e && e->ended) return e->status;
            if (hub.now() > 30s) return 99;
          }
        });
    if (span < 1s) {
      CHECK(status == 0);
      CHECK(world.failures().empty());
      CHECK(silence >= 300ms);
      CHECK(silence <= 500ms);
    } else {  // when it wakes up it finds its lease expired, and ends
      CHECK(status == 1);
      CHECK(silence > 1s);
      REQUIRE(world.failures().size() == 1);
      try {
        std::rethrow_exception(world.failures()[0].second);
      } catch (const CommError& e) {
        CHECK(std::string{e.what()}.find("fenced: this worker was stopped for longer than its "
                                         "lease") == 0);
      }
    }
  }
}

TEST_CASE("a stopped worker that cannot be reached is given up, and ends by itself when it wakes") {
  World world{{.simulated = true,
               .lease = 1s,
               .zombies = true,
               .faults = {{.kind = Fault::Kind::stop, .who = 1, .operation = 3, .span = 10s}}}};
  int ends = 0;
  Time given_up{};
  bool ran_on = false;
  world.run(
      [&](Comm& comm) {
        for (int i = 0; i < 10; ++i) comm.link().reached("here");
        ran_on = true;
      },
      [&](Hub& hub) {
        hub.start(1, 0, 1, false);
        for (Deadline end = after(hub.now(), 30s); hub.now() < end;) {
          std::optional<HubEvent> e = hub.poll(after(hub.now(), 100ms));
          if (e && e->ended) {
            ++ends;
            CHECK(e->status == -9);
          }
          if (given_up == Time{0} && hub.now() - hub.last_heard(1) > 1s) {
            given_up = hub.now();
            hub.kill(1);
          }
        }
        return 0;
      });
  CHECK(ends == 1);
  CHECK(!ran_on);
  CHECK(world.failures().size() == 1);
}

// ---- the hub ------------------------------------------------------------------------------------

TEST_CASE("the hub hears frames and ends, in order, with the status of each") {
  for (bool simulated : {false, true}) {
    World world{{.simulated = simulated}};
    std::vector<std::string> heard;
    world.run(
        [&](Comm& comm) {
          comm.tell(Kind::finished, Step{comm.rank() + 5});
          if (comm.rank() == 1) throw CommError{"no"};
        },
        [&](Hub& hub) {
          hub.start(1, 0, 2, false);
          for (int ended = 0; ended < 2;) {
            std::optional<HubEvent> e = hub.poll(after(hub.now(), 10s));
            REQUIRE(e);
            heard.push_back(std::to_string(e->who) +
                            (e->ended ? " ended " + std::to_string(e->status)
                                      : " says " + std::to_string(e->frame.header.kind) + " at " +
                                            std::to_string(e->frame.header.step)));
            if (!e->ended) continue;
            if (++ended == 1) hub.start(2, 1, 2, true);
            hub.tell(1, Header{}, {});  // to one that has ended: nothing happens
            hub.kill(1);
          }
          return 0;
        });
    CHECK(heard == std::vector<std::string>{"1 says 1 at 0", "1 says 4 at 5", "1 ended 0",
                                            "2 says 1 at 0", "2 says 4 at 6", "2 ended 1"});
    REQUIRE(world.failures().size() == 1);
    CHECK(world.failures()[0].first == 2);
    CHECK(world.operations(1) > 0);
    CHECK(world.operations(7) == 0);
  }
}

TEST_CASE("the hub kills, and who is left when it returns is ended") {
  for (bool simulated : {false, true}) {
    World world{{.simulated = simulated}};
    std::atomic<int> started{0};
    int status = world.run(
        [&](Comm& comm) {
          ++started;
          let_pass(comm, 1h);
        },
        [&](Hub& hub) {
          hub.start(1, 0, 2, false);
          hub.start(2, 1, 2, false);
          for (int joined = 0; joined < 2; ++joined) REQUIRE(hub.poll(after(hub.now(), 10s)));
          hub.kill(2);
          std::optional<HubEvent> e = hub.poll(after(hub.now(), 10s));
          REQUIRE(e);
          CHECK(e->who == 2);
          return e->status;
        });
    CHECK(status == -9);
    CHECK(started == 2);
    CHECK(world.failures().empty());
  }
}

TEST_CASE("a worker knows who it is") {
  World world{{.simulated = true, .timeout = 77s, .chunk_bytes = 4096}};
  Membership me;
  std::size_t chunk = 0;
  world.run(
      [&](Comm& comm) {
        me = comm.membership();
        chunk = comm.chunk_bytes;
        CHECK(comm.managed());
        CHECK(!comm.concurrent());
      },
      [&](Hub& hub) {
        hub.start(9, 2, 5, true);
        while (std::optional<HubEvent> e = hub.poll(after(hub.now(), 10s)))
          if (e->ended) break;
        return 0;
      });
  CHECK(me.rank == 2);
  CHECK(me.size == 5);
  CHECK(me.incarnation == 9);
  CHECK(me.replacement);
  CHECK(me.timeout == 77s);
  CHECK(chunk == 4096);
}

}  // namespace
