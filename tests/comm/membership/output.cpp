#include <mend/comm/membership/output.hpp>

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "comm/system.hpp"

using namespace std::chrono_literals;
using namespace mend;
using namespace mend::comm;
using namespace mend_test;

namespace {

struct Pipe {
  Pipe() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    in = Descriptor{ends[0]};
    out = Descriptor{ends[1]};
    ::fcntl(in.get(), F_SETFL, O_NONBLOCK);
  }
  std::string take() const {
    std::string text(1 << 20, '\0');
    ssize_t n = ::read(in.get(), text.data(), text.size());
    text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    return text;
  }

  Descriptor in, out;
};

std::string line(int i) { return "line " + std::to_string(i) + std::string(1000, '.') + "\n"; }

}  // namespace

TEST_CASE("a slow reader gets every line, and writers are told to wait") {
  Pipe p;
  Output out{p.out.get()};
  Time now = 1h;  // this test's own clock
  std::string got, put;
  bool waited = false;
  for (int i = 0; i < 5000; ++i) {
    while (!out.open(now)) {
      waited = true;
      got += p.take();
      out.flush(now += 1ms);
    }
    out.put(line(i), now);
    put += line(i);
    out.flush(now);
  }
  while (!out.empty()) {
    got += p.take();
    out.flush(now += 1ms);
  }
  got += p.take();
  CHECK(waited);
  CHECK(got.size() == put.size());
  CHECK((got == put));
}

TEST_CASE("a reader that takes nothing loses lines, counted, and holds up nobody") {
  Pipe p;
  Output out{p.out.get()};
  Time now = 1h;
  int i = 0;
  auto fill = [&] {
    for (; out.open(now) && i < 100000; ++i) {
      out.put(line(i), now);
      out.flush(now);
    }
  };
  fill();
  CHECK(i < 5000);
  Deadline deadline = never;
  pollfd waiting = out.waiting(deadline);
  CHECK(waiting.events == POLLOUT);
  CHECK(deadline <= now + 1s);
  int kept = i;
  now = deadline;
  CHECK(out.open(now));
  for (; i < kept + 3000; ++i) out.put(line(i), now);
  std::string got;
  while (!out.empty() || !p.take().empty()) {
    out.flush(now);
    got += p.take();
  }
  CHECK(got.size() < static_cast<std::size_t>(kept + 10) * line(0).size());
  CHECK(got.find("3000 lines of output were lost here") != std::string::npos);
  out.put("after\n", now);
  out.flush(now);
  CHECK(p.take() == "after\n");
}

TEST_CASE("a reader that went away is no signal and no error") {
  for (bool before : {true, false}) {
    Pipe p;
    if (before) p.in.close();
    Output out{p.out.get()};
    p.in.close();
    out.put("x\n", 1h);
    out.flush(1h);
    CHECK(out.empty());
    out.put("y\n", 1h);
    CHECK(out.empty());
    CHECK(out.open(1h));
  }
  sigset_t pending;
  ::sigpending(&pending);
  CHECK(sigismember(&pending, SIGPIPE) == 0);
}

TEST_CASE("files, sockets and terminals; none changes its flags") {
  char name[] = "/tmp/mend_output_XXXXXX";
  Descriptor file{::mkstemp(name)};
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  Descriptor socket{ends[0]}, other{ends[1]};
  Descriptor master{::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)};
  REQUIRE(::grantpt(master.get()) == 0);
  REQUIRE(::unlockpt(master.get()) == 0);
  Descriptor terminal{::open(::ptsname(master.get()), O_RDWR | O_NOCTTY | O_CLOEXEC)};
  Pipe p;
  auto check = [](const Descriptor& to, const Descriptor& from, std::string_view expected) {
    int flags = ::fcntl(to.get(), F_GETFL);
    Output out{to.get()};
    out.put("one\n", 1h);
    out.put("two\n", 1h);
    out.flush(1h);
    CHECK(out.empty());
    CHECK(::fcntl(to.get(), F_GETFL) == flags);
    char text[100] = "";
    if (from)
      CHECK(::read(from.get(), text, sizeof text - 1) > 0);
    else
      CHECK(::pread(to.get(), text, sizeof text - 1, 0) > 0);
    CHECK(text == expected);
  };
  check(file, {}, "one\ntwo\n");
  check(socket, other, "one\ntwo\n");
  check(terminal, master, "one\r\ntwo\r\n");
  check(p.out, p.in, "one\ntwo\n");
  ::unlink(name);

  Output stuck{terminal.get()};  // a terminal that shows nothing any more must not block
  for (int i = 0; i < 1000; ++i) {
    stuck.put(line(i), 1h);
    stuck.flush(1h);
  }
  CHECK(!stuck.empty());
  Output nowhere{-1};
  nowhere.put("x\n", 1h);
  CHECK(nowhere.empty());
}

TEST_CASE("bytes become lines") {
  Lines lines;
  std::vector<std::string> got;
  auto keep = [&](std::string_view l) { got.emplace_back(l); };
  lines.feed("a", keep);
  lines.feed("b\n\nc\nd", keep);
  CHECK(got == std::vector<std::string>{"ab\n", "\n", "c\n"});
  lines.finish(keep);
  lines.finish(keep);
  CHECK(got.back() == "d\n");
  CHECK(got.size() == 4);
  got.clear();
  lines.feed(std::string(200 << 10, 'x') + "\n", keep);  // longer than anybody reads: in pieces
  lines.finish(keep);
  std::size_t sum = 0;
  for (const std::string& l : got) {
    CHECK(l.size() <= (64 << 10) + 1);
    CHECK(l.back() == '\n');
    sum += l.size() - 1;
  }
  CHECK(sum == 200 << 10);
}
