#include <mend/comm/stream.hpp>

#include <sys/socket.h>

#include <doctest/doctest.h>

#include <cstring>
#include <utility>
#include <vector>

using namespace mend;
using namespace mend::comm;
using Received = Stream::Received;

namespace {

std::pair<Stream, Stream> streams() {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  return {Stream{Descriptor{ends[0]}}, Stream{Descriptor{ends[1]}}};
}

}  // namespace

TEST_CASE("what is queued arrives in order while the reader takes little at a time") {
  auto [a, b] = streams();
  Bytes big(std::size_t{3} << 20);
  for (std::size_t i = 0; i < big.size(); ++i) big[i] = static_cast<std::byte>(i % 251);
  for (std::uint32_t i = 0; i < 100; ++i)
    a.queue({.kind = 1, .tag = i}, i % 10 == 5 ? ByteView{big} : ByteView{});
  std::uint32_t got = 0;
  for (int turns = 0; got < 100; ++turns) {
    REQUIRE(turns < 100000);
    REQUIRE(a.flush());
    Received r = b.receive([&](const Header& h, Payload p) {
      CHECK(h.tag == got);
      bool same = p.size() == (got % 10 == 5 ? big.size() : 0) &&
                  (p.size() == 0 || std::memcmp(p.data(), big.data(), p.size()) == 0);
      CHECK(same);
      ++got;
    });
    REQUIRE(r != Received::over);
  }
  CHECK(a.queued() == 0);
  CHECK(b.received() == 100 * sizeof(wire::Prefix) + 10 * big.size());
}

TEST_CASE("one call takes a few frames, and says that there are more") {
  auto [a, b] = streams();
  for (int i = 0; i < 40; ++i) a.queue({.kind = 1}, {});
  REQUIRE(a.flush());
  int got = 0;
  auto count = [&](const Header&, const Payload&) { ++got; };
  CHECK(b.receive(count) == Received::some);
  CHECK(got < 40);
  int calls = 0;
  while (b.receive(count) == Received::some) REQUIRE(++calls < 40);
  CHECK(got == 40);
}

TEST_CASE("an end is found on both halves, after what came before it") {
  auto [a, b] = streams();
  a.queue({.kind = 9}, {});
  REQUIRE(a.flush());
  a.close();
  CHECK(!a.open());
  CHECK(a.queued() == 0);
  int got = 0;
  CHECK(b.receive([&](const Header& h, const Payload&) { got += h.kind; }) == Received::over);
  CHECK(got == 9);
  b.queue({.kind = 1}, {});
  CHECK(!b.flush());  // and no SIGPIPE
}

TEST_CASE("garbage ends a connection") {
  auto [a, b] = streams();
  std::vector<char> noise(200, 'x');
  REQUIRE(::send(a.get(), noise.data(), noise.size(), MSG_NOSIGNAL) == 200);
  CHECK(b.receive([](const Header&, const Payload&) { FAIL("a frame of noise"); }) ==
        Received::over);
}
