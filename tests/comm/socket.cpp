#include <mend/comm/socket.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "comm/system.hpp"

using namespace std::chrono_literals;
using namespace mend;
using namespace mend::comm;
using namespace mend_test;

TEST_CASE("a descriptor closes itself, once") {
  std::size_t before = open_descriptors();
  {
    Descriptor a{::dup(0)};
    CHECK(open_descriptors() == before + 1);
    Descriptor b{std::move(a)};
    CHECK(!a);
    Descriptor c;
    c = std::move(b);
    CHECK(c);
    CHECK(open_descriptors() == before + 1);
    c = Descriptor{::dup(0)};
    CHECK(open_descriptors() == before + 1);
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("addresses are numbers") {
  CHECK(Address::parse("10.1.2.3:65535").text() == "10.1.2.3:65535");
  CHECK(Address::parse("localhost:80").text() == "127.0.0.1:80");
  CHECK(Address{"0.0.0.0", 1}.any());
  for (const char* bad : {"", ":", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536",
                          "127.0.0.1:8x", "127.0.0.1:-8", "example.org:80", "1.2.3:80", ":80"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(Address::parse(bad), CommError);
  }
}

TEST_CASE("a port in use is an error that names it") {
  Descriptor first = listen_at({"127.0.0.1", 0});
  Address at = Address::of(first);
  try {
    listen_at(at);
    FAIL("two listeners on one port");
  } catch (const CommError& e) {
    CHECK(e.code() == EADDRINUSE);
    CHECK(std::string{e.what()}.find(at.text()) != std::string::npos);
  }
  first.close();
  CHECK_NOTHROW(listen_at(at));
}

TEST_CASE("a connection is decided without blocking") {
  int error = 0;
  Descriptor listener = listen_at({"127.0.0.1", 0}, true);
  Descriptor good = start_connect(Address::of(listener), error, true);
  CHECK(error == 0);
  Descriptor gone = listen_at({"127.0.0.1", 0});
  Address nobody = Address::of(gone);
  gone.close();
  Descriptor bad = start_connect(nobody, error);
  pollfd set[] = {{.fd = good.get(), .events = POLLOUT, .revents = 0},
                  {.fd = bad.get(), .events = POLLOUT, .revents = 0}};
  for (pollfd& p : set) wait_for({&p, 1}, Time{0}, 5s);
  CHECK(set[0].revents == POLLOUT);
  CHECK(connect_error(good) == 0);
  CHECK((error == ECONNREFUSED || connect_error(bad) == ECONNREFUSED));
  CHECK(accept_from(listener));
  CHECK(!accept_from(listener));
  CHECK(errno == EAGAIN);
}

TEST_CASE("waiting ends at the deadline, at once where it has passed, or when woken") {
  SystemClock clock;
  WakeUp wake;
  pollfd set[] = {wake.waiting()};
  Time start = clock.now();
  wait_for(set, start, start + 20ms);
  CHECK(clock.now() - start >= 20ms);
  CHECK(set[0].revents == 0);
  start = clock.now();
  wait_for(set, start, start - 1h);
  CHECK(clock.now() - start < 5s);

  std::thread other{[&] {
    std::this_thread::sleep_for(20ms);
    wake.set();
    wake.set();
  }};
  wait_for(set, clock.now(), never);
  CHECK(set[0].revents == POLLIN);
  other.join();
  wake.reset();
  wait_for(set, Time{0}, Time{0});
  CHECK(set[0].revents == 0);
}
