#include <mend/comm/lobby.hpp>

#include <sys/resource.h>

#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/system.hpp"

using namespace std::chrono_literals;
using namespace mend;
using namespace mend::comm;
using namespace mend_test;

namespace {

struct Door {
  explicit Door(Time patience = 60s) : lobby{{"127.0.0.1", 0}, patience, false} {}

  Descriptor knock(ByteView bytes = {}) {
    int error = 0;
    Descriptor s = start_connect(lobby.address(), error);
    pollfd p{.fd = s.get(), .events = POLLOUT, .revents = 0};
    wait_for({&p, 1}, Time{0}, 5s);
    REQUIRE(connect_error(s) == 0);
    say(s, bytes);
    return s;
  }
  static void say(const Descriptor& s, ByteView bytes) {
    REQUIRE(::send(s.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(bytes.size()));
  }
  //! One turn: waits as a poll loop would, at most `within`.
  void turn(Time within = 0s) {
    Time now = clock.now();
    Deadline deadline = now + within;
    std::vector<pollfd> set;
    lobby.watch(set, now, deadline);
    wait_for(set, now, deadline);
    lobby.serve(clock.now(), [this](Descriptor s, const wire::Hello& h) {
      from.push_back(h.from);
      taken.push_back(std::move(s));
    });
  }
  bool closed(const Descriptor& s) {
    char c;
    return eventually(
        [&] {
          turn();
          ssize_t n = ::recv(s.get(), &c, 1, MSG_DONTWAIT);
          return n == 0 || (n < 0 && errno == ECONNRESET);
        },
        3s);
  }

  SystemClock clock;
  Lobby lobby;
  std::vector<Incarnation> from;
  std::vector<Descriptor> taken;
};

}  // namespace

TEST_CASE("a greeting is handed on, in one piece or in many") {
  Door door;
  wire::Hello h = wire::Hello::make("t", Generation{1}, 7, 8);
  Descriptor a = door.knock(wire::bytes_of(h));
  CHECK(eventually([&] { return door.turn(), door.from == std::vector<Incarnation>{7}; }));
  h.from = 9;
  Descriptor b = door.knock();
  for (std::byte x : wire::bytes_of(h)) {
    door.say(b, {&x, 1});
    door.turn();
  }
  CHECK(eventually([&] { return door.turn(), door.from == std::vector<Incarnation>{7, 9}; }));
  CHECK(door.lobby.strays() == 0);
  CHECK(door.lobby.empty());
}

TEST_CASE("what is no greeting is dropped and named") {
  Door door;
  std::string_view http = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  Descriptor browser = door.knock(std::as_bytes(std::span{http}));
  CHECK(door.closed(browser));
  CHECK(door.lobby.strays() == 1);
  CHECK(door.lobby.last_stray().find("from 127.0.0.1:") != std::string::npos);
  CHECK(door.lobby.last_stray().find("does not speak this protocol") != std::string::npos);
  door.knock(wire::bytes_of(wire::magic));  // and hangs up
  CHECK(eventually([&] { return door.turn(), door.lobby.strays() == 2; }));
  CHECK(door.from.empty());
}

TEST_CASE("who says nothing is dropped after a while") {
  Door door{50ms};
  Descriptor silent = door.knock(), slow = door.knock(wire::bytes_of(wire::magic));
  door.turn();
  Time start = door.clock.now();
  while (door.lobby.strays() < 2 && door.clock.now() - start < 5s) door.turn(5s);
  CHECK(door.lobby.strays() == 2);
  CHECK(door.clock.now() - start < 3s);  // the wait ended by itself
  CHECK(door.lobby.empty());
}

TEST_CASE("many silent connections take bounded room and hold up nobody") {
  Door door;
  std::size_t before = open_descriptors();
  std::vector<Descriptor> silent;
  for (int i = 0; i < 300; ++i) {
    silent.push_back(door.knock());
    door.turn();
  }
  Descriptor good = door.knock(wire::bytes_of(wire::Hello::make("t", Generation{1}, 7, 8)));
  CHECK(eventually([&] { return door.turn(), door.from.size() == 1; }));
  CHECK(door.lobby.strays() >= 300 - 64);
  CHECK(open_descriptors() <= before + 300 + 64 + 2);
}

TEST_CASE("without descriptors left it neither spins nor forgets the listener") {
  Door door;
  Descriptor good = door.knock(wire::bytes_of(wire::Hello::make("t", Generation{1}, 7, 8)));
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit none = before;
  none.rlim_cur = 3;  // fewer than are open
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  door.turn();
  Time start = door.clock.now();
  int turns = 0;
  while (door.clock.now() - start < 80ms) {
    door.turn(5s);
    ++turns;
  }
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(turns < 5);
  CHECK(door.from.empty());
  CHECK(eventually([&] { return door.turn(20ms), door.from.size() == 1; }));
}
