#include <mend/comm/tcp_link.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/fake_launcher.hpp"
#include "comm/system.hpp"

using namespace mend_test;

namespace {

constexpr std::uint16_t data = static_cast<std::uint16_t>(Kind::message);

//! Some links of one process, joined, driven one call at a time by one thread.
struct Cluster {
  explicit Cluster(int size, Time lease = 60s, TcpOptions options = {}) {
    for (int r = 0; r < size; ++r) {
      auto link = std::async(std::launch::async, [&] {
        return std::make_unique<TcpLink>(launcher.worker(r, size, lease), options);
      });
      launcher.welcome(launcher.accept());
      links.push_back(link.get());
      launcher.next(static_cast<Incarnation>(r + 1));  // Join
      peers.push_back({static_cast<Incarnation>(r + 1), links.back()->address()});
    }
  }
  TcpLink& operator[](int r) { return *links[static_cast<std::size_t>(r)]; }
  void enter(std::uint32_t generation) {
    for (int r = 0; r < static_cast<int>(links.size()); ++r)
      if (links[static_cast<std::size_t>(r)]) (*this)[r].enter(Generation{generation}, r, peers);
  }
  //! Lets everything move until link r has a frame.
  std::optional<Frame> next(int r, Time within = 5s) {
    std::optional<Frame> f;
    eventually(
        [&] {
          for (auto& l : links)
            if (l && l.get() != &(*this)[r])
              l->poll(l->now(), true);  // drains; takes no frames in these tests
          return (f = (*this)[r].poll((*this)[r].now(), false)).has_value();
        },
        within);
    return f;
  }

  FakeLauncher launcher;
  std::vector<std::unique_ptr<TcpLink>> links;
  std::vector<Peer> peers;
};

Bytes pattern(std::size_t size, std::uint32_t seed) {
  Bytes b(size);
  for (std::size_t i = 0; i < size; ++i) b[i] = static_cast<std::byte>(i * 31 + i / 256 + seed);
  return b;
}
bool equal(ByteView a, ByteView b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}
bool broken(const std::optional<Frame>& f, int from) {
  return f && f->from == from && f->header.kind == Header::broken && f->payload.size() == 0;
}

//! A connection that this test makes by hand to a link's listening port.
Descriptor knock(const TcpLink& at, ByteView bytes) {
  int error = 0;
  Descriptor s = start_connect(Address::parse(at.address()), error);
  pollfd p{.fd = s.get(), .events = POLLOUT, .revents = 0};
  wait_for({&p, 1}, Time{0}, 5s);
  REQUIRE(::send(s.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(bytes.size()));
  return s;
}
Bytes greeting(const wire::Hello& hello,
               const wire::Prefix& then = {.header = {.kind = data, .generation = 1}}) {
  ByteWriter w;
  w.put(hello).put(then);
  return std::move(w).take();
}

}  // namespace

TEST_CASE("frames arrive complete, once and in order, both ways at once") {
  Cluster c{2};
  c.enter(1);
  std::vector<std::size_t> sizes{0, 1, 100, 4095, 4096, 1 << 18, 3 << 20, 0, 7};
  std::vector<Bytes> sent;
  for (std::uint32_t i = 0; i < sizes.size(); ++i) sent.push_back(pattern(sizes[i], i));
  for (int r : {0, 1})
    for (std::uint32_t i = 0; i < sizes.size(); ++i)
      c[r].post(1 - r,
                {.kind = data,
                 .flags = 3,
                 .generation = 99,
                 .step = -5,
                 .tag = i,
                 .part = 8,
                 .offset = 1ull << 40},
                sent[i]);
  CHECK(c[0].backlog(1) > 0);
  std::size_t got[2] = {0, 0};
  for (Time start = c[0].now();
       (got[0] < sizes.size() || got[1] < sizes.size()) && c[0].now() - start < 20s;)
    for (int r : {0, 1})
      if (auto f = c[r].poll(c[r].now() + 1ms, false)) {
        CHECK(f->from == 1 - r);
        CHECK(f->header.flags == 3);
        CHECK(f->header.generation == 1);  // stamped by the link
        CHECK(f->header.step == -5);
        CHECK(f->header.tag == got[r]);
        CHECK(f->header.part == 8);
        CHECK(f->header.offset == 1ull << 40);
        CHECK(equal(f->payload.view(), sent[got[r]]));
        c[r].recycle(std::move(f->payload));
        ++got[r];
      }
  CHECK(got[0] == sizes.size());
  CHECK(got[1] == sizes.size());
  CHECK(c[0].backlog(1) == 0);
  CHECK(c[0].strays() + c[1].strays() == 0);
}

TEST_CASE("the launcher's words come before peers' data") {
  Cluster c{2};
  c.enter(1);
  c[0].post(1, {.kind = data}, {});
  std::this_thread::sleep_for(50ms);
  REQUIRE(c[0].poll(c[0].now() + 5s, true) == std::nullopt);  // it has left
  c.launcher.tell(2, Kind::stop);
  std::this_thread::sleep_for(100ms);  // both are there
  auto first = c.next(1), second = c.next(1);
  REQUIRE(first);
  REQUIRE(second);
  CHECK(first->from == Frame::coordinator);
  CHECK(first->header.kind == static_cast<std::uint16_t>(Kind::stop));
  CHECK(second->from == 0);
}

TEST_CASE("poll ends at its deadline, when woken, and when everything has left") {
  Cluster c{2};
  c.enter(1);
  Time start = c[0].now();
  CHECK(!c[0].poll(start + 30ms, false));
  CHECK(c[0].now() - start >= 30ms);
  start = c[0].now();
  CHECK(!c[0].poll(start - 1h, false));
  CHECK(!c[0].poll(never, true));  // nothing was posted: drained
  CHECK(c[0].now() - start < 5s);

  std::thread other{[&] {
    std::this_thread::sleep_for(30ms);
    c[0].wake();
  }};
  CHECK(!c[0].poll(never, false));
  other.join();
  c[0].wake();  // counts for the next poll
  CHECK(!c[0].poll(never, false));

  Bytes big = pattern(std::size_t{32} << 20, 1);
  c[0].post(1, {.kind = data}, big);
  CHECK(!c[0].poll(c[0].now() + 50ms, true));  // nobody reads: it cannot leave
  CHECK(c[0].backlog(1) > 0);
  std::future<std::optional<Frame>> reader =
      std::async(std::launch::async, [&] { return c[1].poll(c[1].now() + 10s, false); });
  CHECK(!c[0].poll(c[0].now() + 10s, true));
  CHECK(c[0].backlog(1) == 0);
  std::optional<Frame> f = reader.get();
  REQUIRE(f);
  CHECK(equal(f->payload.view(), big));
}

TEST_CASE("who enters a generation first is heard when the other follows") {
  Cluster c{2};
  c[0].enter(Generation{1}, 0, c.peers);
  c[0].post(1, {.kind = data, .tag = 1}, {});
  CHECK(!c.next(1, 100ms));
  c[0].enter(Generation{2}, 0, c.peers);  // the first View never reached rank 1
  c[0].post(1, {.kind = data, .tag = 2}, {});
  CHECK(!c.next(1, 100ms));
  c[1].enter(Generation{2}, 1, c.peers);
  auto f = c.next(1);
  REQUIRE(f);
  CHECK(f->header.tag == 2);
  CHECK(!c.next(1, 50ms));
  c[0].enter(Generation{3}, 0, c.peers);
  c[0].post(1, {.kind = data, .tag = 3}, {});
  CHECK(broken(c.next(1), 0));  // of generation 2
  c[1].enter(Generation{4}, 1, c.peers);
  CHECK(!c.next(1, 100ms));  // generation 3 is over here
  CHECK(c[1].strays() >= 1);
}

TEST_CASE("entering forgets what was posted and what older generations sent") {
  Cluster c{2};
  c.enter(1);
  {
    Bytes big = pattern(std::size_t{32} << 20, 1);
    c[0].post(1, {.kind = data, .tag = 1}, big);
    c[0].post(1, {.kind = data, .tag = 2}, {});
    CHECK(!c.next(1, 30ms));  // part of it has arrived
    c[1].post(0, {.kind = data, .tag = 3}, {});
    c[1].poll(c[1].now() + 5s, true);
    c.launcher.tell(1, Kind::feed);
    std::this_thread::sleep_for(50ms);
    c.enter(2);
    CHECK(c[0].backlog(1) == 0);
  }  // the payload may go
  auto control = c.next(0);
  REQUIRE(control);
  CHECK(control->from == Frame::coordinator);  // control frames stay
  CHECK(!c[0].poll(never, true));              // nothing is posted any more
  c[0].post(1, {.kind = data, .tag = 4}, {});
  c[1].post(0, {.kind = data, .tag = 5}, {});
  for (int r : {0, 1}) {
    auto f = c.next(r);
    REQUIRE(f);
    CHECK(f->header.tag == (r == 0 ? 5 : 4));
    CHECK(f->header.generation == 2);
    CHECK(!c.next(r, 30ms));
  }
}

TEST_CASE("a peer's end comes after everything that it sent") {
  Cluster c{3};
  c.enter(1);
  std::vector<Bytes> sent;
  for (std::uint32_t i = 0; i < 100; ++i) sent.push_back(pattern(100, i));
  SUBCASE("with nothing read yet, and the connection not even accepted") {
    for (std::uint32_t i = 0; i < 100; ++i) c[0].post(1, {.kind = data, .tag = i}, sent[i]);
    REQUIRE(!c[0].poll(c[0].now() + 5s, true));
    c.links[0].reset();
  }
  SUBCASE("while the next word to it finds the end first") {
    SUBCASE("and its connection waits to be accepted") {}
    SUBCASE("and its connection is open") {
      c[0].post(1, {.kind = data, .tag = 1000}, {});
      auto f = c.next(1);
      REQUIRE(f);
      CHECK(!c.next(1, 20ms));
    }
    c[1].post(0, {.kind = data}, {});
    REQUIRE(c.next(0));
    for (std::uint32_t i = 0; i < 100; ++i) c[0].post(1, {.kind = data, .tag = i}, sent[i]);
    REQUIRE(!c[0].poll(c[0].now() + 5s, true));
    c.links[0].reset();
    std::this_thread::sleep_for(50ms);
    for (int i = 0; i < 3; ++i) c[1].post(0, {.kind = data}, {});
  }
  SUBCASE("while this side sends to it as well") {
    Bytes big = pattern(std::size_t{16} << 20, 1);
    for (std::uint32_t i = 0; i < 100; ++i) c[0].post(1, {.kind = data, .tag = i}, sent[i]);
    c[1].post(0, {.kind = data}, big);
    REQUIRE(!c[0].poll(c[0].now() + 5s, true));
    c.links[0].reset();
    std::this_thread::sleep_for(50ms);
    c[1].post(0, {.kind = data}, {});  // has the end of its own connection before its eyes
    for (std::uint32_t i = 0; i < 100; ++i) {
      auto f = c.next(1);
      REQUIRE(f);
      REQUIRE(f->header.tag == i);
    }
    CHECK(broken(c.next(1), 0));
    CHECK(c[1].backlog(0) == 0);
    CHECK(!c[1].poll(c[1].now(), true));
    return;
  }
  for (std::uint32_t i = 0; i < 100; ++i) {
    auto f = c.next(1);
    REQUIRE(f);
    REQUIRE(f->from == 0);
    REQUIRE(f->header.tag == i);
    REQUIRE(equal(f->payload.view(), sent[i]));
  }
  CHECK(broken(c.next(1), 0));
  CHECK(!c.next(1, 50ms));                // once
  c[1].post(0, {.kind = data}, sent[0]);  // goes nowhere, and says nothing more
  CHECK(c[1].backlog(0) == 0);
  CHECK(!c.next(1, 50ms));
  c[2].post(1, {.kind = data, .tag = 7}, {});  // the others go on
  auto f = c.next(1);
  REQUIRE(f);
  CHECK(f->from == 2);
}

TEST_CASE("a peer that is dead before it is posted to is broken at once") {
  Cluster c{2};
  c.links[0].reset();
  c[1].enter(Generation{1}, 1, c.peers);
  c[1].post(0, {.kind = data}, {});
  CHECK(broken(c.next(1, 2s), 0));
}

TEST_CASE("a peer that only receives is missed too") {
  Cluster c{2};
  c.enter(1);
  c[1].post(0, {.kind = data}, {});
  REQUIRE(c.next(0));
  c.links[0].reset();
  CHECK(broken(c.next(1, 2s), 0));
}

TEST_CASE("a held peer's frames wait, and its sender with them") {
  Cluster c{3};
  c.enter(1);
  c[1].hold(0, true);
  Bytes chunk = pattern(1 << 20, 3);
  for (std::uint32_t i = 0; i < 64; ++i) c[0].post(1, {.kind = data, .tag = i}, chunk);
  c[2].post(1, {.kind = data, .tag = 1000}, {});
  auto f = c.next(1);
  REQUIRE(f);
  CHECK(f->from == 2);
  CHECK(!c.next(1, 200ms));
  CHECK(c[0].backlog(1) > std::size_t{40} << 20);  // the system's buffers hold the rest
  Time start = c[1].now();
  CHECK(!c[1].poll(start + 50ms, false));
  CHECK(c[1].now() - start >= 50ms);
  c[1].hold(0, false);
  for (std::uint32_t i = 0; i < 64; ++i) {
    f = c.next(1);
    REQUIRE(f);
    REQUIRE(f->header.tag == i);
    REQUIRE(equal(f->payload.view(), chunk));
    if (i == 10) {
      c[1].hold(0, true);
      CHECK(!c.next(1, 20ms));
      c[1].hold(0, false);
    }
  }
}

TEST_CASE("two eager peers are read in turn") {
  Cluster c{3};
  c.enter(1);
  Bytes chunk = pattern(1 << 16, 3);
  for (int i = 0; i < 100; ++i)
    for (int r : {0, 2}) c[r].post(1, {.kind = data}, chunk);
  int got[3] = {0, 0, 0};
  for (int i = 0; i < 100; ++i) {
    auto f = c.next(1);
    REQUIRE(f);
    ++got[f->from];
  }
  CHECK(got[0] >= 25);
  CHECK(got[2] >= 25);
}

TEST_CASE("strangers are dropped, counted and harmless") {
  Cluster c{2};
  c.enter(2);
  wire::Hello good = wire::Hello::make("secret", Generation{2}, 1, 2);
  std::vector<Descriptor> open;
  std::vector<std::pair<wire::Hello, std::string>> wrong;
  auto add = [&](std::string why, auto&& change) {
    wire::Hello h = good;
    change(h);
    wrong.emplace_back(h, std::move(why));
  };
  add("does not speak", [](wire::Hello& h) { h.magic = 0x20544547; });
  add("another version", [](wire::Hello& h) { h.protocol = 99; });
  add("another version", [](wire::Hello& h) { h.version.text[0] = '9'; });
  add("wrong token", [](wire::Hello& h) { h.token[0] = 'S'; });
  add("wrong token", [](wire::Hello& h) { h.token_size = 0; });
  add("another incarnation", [](wire::Hello& h) { h.to = 77; });
  add("generation is over", [](wire::Hello& h) { h.generation = 1; });
  add("no member", [](wire::Hello& h) { h.from = 77; });
  add("no member", [](wire::Hello& h) { h.from = 2; });  // this very worker
  std::size_t expected = 0;
  for (const auto& w : wrong) {
    const wire::Hello& hello = w.first;
    const std::string& why = w.second;
    CAPTURE(why);
    open.push_back(knock(c[1], greeting(hello, {.header = {.kind = data, .generation = 2}})));
    CHECK(!c.next(1, 20ms));
    CHECK(eventually([&] { return c[1].poll(c[1].now(), false), c[1].strays() == expected + 1; }));
    CHECK(c[1].last_stray().find(why) != std::string::npos);
    ++expected;
  }
  open.push_back(knock(c[1], {}));  // says nothing, for as long as it likes
  c[0].post(1, {.kind = data, .tag = 5}, {});
  auto f = c.next(1);
  REQUIRE(f);
  CHECK(f->header.tag == 5);
  open.push_back(knock(c[1], greeting(good)));  // a second one that claims to be rank 0
  CHECK(!c.next(1, 50ms));
  CHECK(c[1].strays() == expected + 1);
  CHECK(c[1].last_stray().find("connects twice") != std::string::npos);
  c[0].post(1, {.kind = data, .tag = 6}, {});
  f = c.next(1);
  REQUIRE(f);
  CHECK(f->header.tag == 6);
}

TEST_CASE("a member that sends garbage, another generation or too long a frame is broken") {
  for (wire::Prefix bad :
       {wire::Prefix{.magic = 1},
        wire::Prefix{.length = wire::peer_limit + 1, .header = {.kind = data, .generation = 1}},
        wire::Prefix{.header = {.kind = data, .generation = 2}},
        wire::Prefix{.header = {.kind = Header::broken, .generation = 1}}}) {
    Cluster c{2};
    c.enter(1);
    Descriptor s = knock(c[1], greeting(wire::Hello::make("secret", Generation{1}, 1, 2), bad));
    CHECK(broken(c.next(1), 0));
    CHECK(c[1].strays() == 1);
  }
}

TEST_CASE("wrong uses are errors, not crashes") {
  Cluster c{2};
  c.enter(1);
  for (int rank : {-1, 0, 2, 1000}) {
    CHECK_THROWS_AS(c[0].post(rank, {.kind = data}, {}), CommError);
    CHECK_THROWS_AS(c[0].hold(rank, true), CommError);
  }
}

TEST_CASE("a lost launcher ends every call") {
  Cluster c{1};
  c.enter(1);
  c.launcher.hang_up(1);
  Time start = c[0].now();
  CHECK_THROWS_WITH_AS(c[0].poll(never, false), doctest::Contains("is gone"), CommError);
  CHECK(c[0].now() - start < 5s);
  CHECK_THROWS_AS(c[0].poll(c[0].now(), true), CommError);
  CHECK_THROWS_AS(c[0].tell({.kind = 1}, {}), CommError);
  CHECK_THROWS_AS(c[0].post(0, {.kind = data}, {}), CommError);
  CHECK_THROWS_AS(c[0].enter(Generation{2}, 0, c.peers), CommError);
}

TEST_CASE("storage is used again, within its budget") {
  Cluster c{2, 60s, {.pool_bytes = 3 << 16}};
  c.enter(1);
  Bytes chunk = pattern(1 << 16, 3);
  const std::byte* first = nullptr;
  for (int i = 0; i < 5; ++i) {
    c[0].post(1, {.kind = data}, chunk);
    auto f = c.next(1);
    REQUIRE(f);
    if (i == 0) first = f->payload.data();
    CHECK(f->payload.data() == first);
    c[1].recycle(std::move(f->payload));
  }
  for (int i = 0; i < 100; ++i) c[1].recycle(Payload{std::size_t{1} << 16});  // keeps a few
  c[1].recycle(Payload{});
}

TEST_CASE("the port and the interface are the caller's to choose") {
  Descriptor free = listen_at({"127.0.0.1", 0});
  Address at = Address::of(free);
  free.close();
  {
    Cluster c{1, 60s, {.bind = "0.0.0.0", .port = at.port()}};
    CHECK(c[0].address() == at.text());  // as the launcher's side sees this machine
  }
  Descriptor taken = listen_at(at);
  CHECK_THROWS_WITH_AS((Cluster{1, 60s, {.port = at.port()}}), doctest::Contains("in use"),
                       CommError);
}

TEST_CASE("no descriptor, thread or byte stays behind") {
  std::size_t threads = running_threads(), descriptors = open_descriptors();
  for (int i = 0; i < 5; ++i) {
    Cluster c{3};
    for (std::uint32_t g = 1; g < 4; ++g) {
      c.enter(g);
      Bytes chunk = pattern(1 << 20, g);
      for (int r = 0; r < 3; ++r) c[r].post((r + 1) % 3, {.kind = data}, chunk);
      if (g == 2) REQUIRE(c.next(1));
      if (g == 3) c.links[0].reset();
    }
  }
  CHECK(running_threads() == threads);
  CHECK(open_descriptors() == descriptors);
}
