#include <mend/comm/membership/tcp_hub.hpp>

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "comm/system.hpp"

using namespace std::chrono_literals;
using namespace mend;
using namespace mend::comm;
using namespace mend_test;

namespace {

struct Run {
  explicit Run(std::vector<std::string> commands, Time lease = 60s,
               const std::function<void(TcpHubOptions&)>& change = {}) {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    lines = Descriptor{ends[0]};
    Descriptor out{ends[1]};
    ::fcntl(lines.get(), F_SETFL, O_NONBLOCK);
    TcpHubOptions o;
    o.argv = std::move(commands);
    o.argv.insert(o.argv.begin(), program("tcp_worker"));
    o.lease = lease;
    o.timeout = 20s;
    o.out = o.err = out.get();
    if (change) change(o);
    writes = std::move(out);
    hub = std::make_unique<TcpHub>(std::move(o));
  }
  //! The next event, of at most 10 s.
  HubEvent next() {
    Deadline deadline = hub->now() + 10s;
    while (hub->now() < deadline)
      if (auto e = hub->poll(deadline)) return *std::move(e);
    FAIL("nothing happened for 10 s");
    return {};
  }
  HubEvent frame(Kind kind) {
    HubEvent e = next();
    REQUIRE(!e.ended);
    REQUIRE(e.frame.header.kind == static_cast<std::uint16_t>(kind));
    return e;
  }
  int end() {
    HubEvent e = next();
    REQUIRE(e.ended);
    return e.status;
  }
  void tell(Incarnation who, Kind kind, std::uint32_t tag = 0) {
    hub->tell(who, {.kind = static_cast<std::uint16_t>(kind), .tag = tag}, {});
  }
  std::string output() const {
    std::string text(1 << 20, '\0');
    ssize_t n = ::read(lines.get(), text.data(), text.size());
    text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    return text;
  }
  void turn(Time for_) { hub->poll(hub->now() + for_); }

  Descriptor lines, writes;
  std::unique_ptr<TcpHub> hub;
};

bool no_children() { return ::waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD; }
Descriptor knock(const TcpHub& hub, ByteView bytes = {}) {
  int error = 0;
  Descriptor s = start_connect(Address::parse(hub.address()), error);
  pollfd p{.fd = s.get(), .events = POLLOUT, .revents = 0};
  wait_for({&p, 1}, Time{0}, 5s);
  REQUIRE(::send(s.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(bytes.size()));
  return s;
}

}  // namespace

TEST_CASE("a worker joins, is told, answers and ends") {
  Run run{{"join", "serve", "print:done", "exit:5"}};
  run.hub->start(11, 0, 2, false);
  run.hub->start(12, 1, 2, true);
  std::map<Incarnation, std::string> addresses;
  for (int i = 0; i < 2; ++i) {
    HubEvent e = run.frame(Kind::join);
    Join join = decode_join(e.frame.payload.view());
    CHECK(join.version == library_version);
    addresses[e.who] = join.address;
  }
  REQUIRE(addresses.size() == 2);
  CHECK(addresses[11] != addresses[12]);
  for (std::uint32_t tag = 0; tag < 100; ++tag) run.tell(12, Kind::go, tag);
  for (std::uint32_t tag = 0; tag < 100; ++tag) {
    HubEvent e = run.frame(Kind::ready);
    CHECK(e.who == 12);
    CHECK(e.frame.header.tag == tag);
  }
  CHECK(!run.hub->poll(run.hub->now() + 50ms));
  run.tell(11, Kind::bye);
  HubEvent e = run.next();
  CHECK(e.who == 11);
  CHECK(e.ended);
  CHECK(e.status == 5);
  run.tell(11, Kind::go);  // nobody is there any more
  run.tell(77, Kind::go);
  run.tell(12, Kind::bye);
  CHECK(run.end() == 5);
  run.turn(0s);
  CHECK(run.output() == "[0] done\n[1] done\n");
  CHECK(no_children());
}

TEST_CASE("an end comes after the last words and the last output") {
  Run run{{"join", "print:first\nlast without end", "error:to stderr", "ready:500", "kill"}};
  run.hub->start(1, 3, 4, false);
  run.frame(Kind::join);
  SUBCASE("closed") {
    for (std::uint32_t i = 0; i < 500; ++i) REQUIRE(run.frame(Kind::ready).frame.header.tag == i);
    CHECK(run.end() == -SIGKILL);
  }
  SUBCASE("reset, since something is left unread: the kernel may drop what did not leave yet") {
    run.tell(1, Kind::go);
    std::uint32_t words = 0;
    for (HubEvent e = run.next(); !e.ended || e.status != -SIGKILL; e = run.next()) {
      REQUIRE(!e.ended);
      REQUIRE(e.frame.header.tag == words++);
    }
    CHECK(words <= 500);
  }
  CHECK(run.output() == "[3] first\n[3] last without end\n[3] to stderr\n");
}

TEST_CASE("kill ends a stopped worker as well") {
  Run run{{"join", "serve"}};
  run.hub->start(1, 0, 1, false);
  run.frame(Kind::join);
  run.tell(1, Kind::go);
  run.frame(Kind::ready);
  SUBCASE("a running one") {}
  SUBCASE("a stopped one") {
    run.tell(1, Kind::feed);
    std::this_thread::sleep_for(50ms);
    run.tell(1, Kind::go);
    CHECK(!run.hub->poll(run.hub->now() + 100ms));
  }
  run.hub->kill(1);
  CHECK(run.end() == -SIGKILL);
  run.hub->kill(1);
  CHECK(no_children());
}

TEST_CASE("a computing worker stays alive, a stopped one falls silent") {
  Run run{{"join", "sleep:1500", "serve"}, 300ms};
  run.hub->start(1, 0, 1, false);
  run.frame(Kind::join);
  for (Time start = run.hub->now(); run.hub->now() - start < 1s;) {
    run.turn(20ms);
    CHECK(run.hub->now() - run.hub->last_heard(1) < 290ms);
  }
  run.tell(1, Kind::go);
  run.frame(Kind::ready);
  run.tell(1, Kind::feed);
  Time start = run.hub->now();
  while (run.hub->now() - run.hub->last_heard(1) <= 300ms && run.hub->now() - start < 5s)
    run.turn(20ms);
  CHECK(run.hub->now() - run.hub->last_heard(1) > 300ms);

  SUBCASE("a judge that slept itself begins all leases anew") {
    std::this_thread::sleep_for(200ms);
    run.turn(0s);
    CHECK(run.hub->now() - run.hub->last_heard(1) < 190ms);
  }
  run.hub->kill(1);
  CHECK(run.end() == -SIGKILL);
}

TEST_CASE("a worker whose launcher is silent ends by itself") {
  Run run{{"join", "serve"}, 200ms};
  run.hub->start(1, 0, 1, false);
  run.frame(Kind::join);
  std::this_thread::sleep_for(1s);  // longer than its lease on the launcher
  CHECK(run.end() == 3);
  CHECK(run.output().find("is gone (silent for 0.20 s)") != std::string::npos);
}

TEST_CASE("strangers are dropped and named, and nobody joins twice") {
  Run run{{"join", "serve"}, 60s, [](TcpHubOptions& o) { o.token = "secret"; }};
  run.hub->start(1, 0, 1, false);
  run.frame(Kind::join);
  auto verdict = [&](const wire::Hello& h) {
    Descriptor s = knock(*run.hub, wire::bytes_of(h));
    wire::Welcome answer;
    CHECK(eventually([&] {
      run.turn(0s);
      return ::recv(s.get(), &answer, sizeof answer, MSG_DONTWAIT) == sizeof answer;
    }));
    CHECK(answer.version.view() == library_version);
    return answer.verdict;
  };
  wire::Hello h = wire::Hello::make("secret", {}, 1, 0);
  CHECK(verdict(h) == wire::Welcome::again);
  h.from = 2;
  CHECK(verdict(h) == wire::Welcome::unknown);
  h.token[2] = 'X';
  CHECK(verdict(h) == wire::Welcome::wrong_token);
  h.version.text[0] = '9';
  CHECK(verdict(h) == wire::Welcome::wrong_token);  // a stranger learns nothing more
  h = wire::Hello::make("secret", {}, 1, 0);
  h.version.text[0] = '9';
  CHECK(verdict(h) == wire::Welcome::other_version);
  h.protocol = 9;
  CHECK(verdict(h) == wire::Welcome::other_protocol);
  std::string_view http = "GET / HTTP/1.1\r\n\r\n";
  std::vector<Descriptor> noise;
  for (int i = 0; i < 100; ++i) {
    noise.push_back(knock(*run.hub, std::as_bytes(std::span{http})));
    noise.push_back(knock(*run.hub));
    run.turn(0s);
  }
  run.tell(1, Kind::go);
  run.frame(Kind::ready);
  CHECK(run.hub->strays() >= 106);
  std::string said = run.output();
  CHECK(said.find("mendrun: a connection from 127.0.0.1:") != std::string::npos);
  CHECK(said.find("wrong token") != std::string::npos);
  CHECK(said.find("further ones are not reported") != std::string::npos);
  CHECK(said.size() < 4000);
}

TEST_CASE("a worker that sends garbage loses its line, and nothing else") {
  Run run{{"serve"}};  // never joins by itself; this test joins for it
  run.hub = std::make_unique<TcpHub>(
      TcpHubOptions{.argv = {"sleep", "100"}, .token = "secret", .out = -1, .err = -1});
  run.hub->start(1, 0, 2, false);
  run.hub->start(2, 1, 2, false);
  auto join = [&](Incarnation who) {
    Descriptor s = knock(*run.hub, wire::bytes_of(wire::Hello::make("secret", {}, who, 0)));
    wire::Welcome answer;
    REQUIRE(eventually([&] {
      run.turn(0s);
      return ::recv(s.get(), &answer, sizeof answer, MSG_DONTWAIT) == sizeof answer;
    }));
    CHECK(answer.verdict == wire::Welcome::welcome);
    return s;
  };
  Descriptor bad = join(1), good = join(2);
  wire::Prefix frame{.length = wire::control_limit + 1, .header = {.kind = 1}};
  REQUIRE(::send(bad.get(), &frame, sizeof frame, MSG_NOSIGNAL) == sizeof frame);
  frame.length = 0;
  CHECK(eventually([&] {
    run.turn(0s);
    char c[4096];
    return ::recv(bad.get(), c, sizeof c, MSG_DONTWAIT) == 0 || errno == ECONNRESET;
  }));
  REQUIRE(::send(good.get(), &frame, sizeof frame, MSG_NOSIGNAL) == sizeof frame);
  HubEvent e = run.next();
  CHECK(e.who == 2);
  CHECK(!e.ended);
}

TEST_CASE("a port in use and a program that does not exist are errors at once") {
  Descriptor taken = listen_at({"127.0.0.1", 0});
  std::uint16_t port = Address::of(taken).port();
  CHECK_THROWS_WITH_AS(TcpHub({.argv = {"true"}, .port = port}),
                       doctest::Contains(std::to_string(port).c_str()), CommError);
  Time start = SystemClock{}.now();
  TcpHub hub{{.argv = {"./no-such-trainer"}}};
  CHECK_THROWS_WITH_AS(hub.start(1, 0, 1, false), doctest::Contains("./no-such-trainer"),
                       CommError);
  CHECK(!hub.poll(hub.now() + 20ms));
  CHECK(SystemClock{}.now() - start < 3s);
  CHECK_THROWS_AS(TcpHub({.argv = {"true"}, .token = std::string(65, 'x')}), OptionError);
}

TEST_CASE("stopping asks first, then kills; destroying kills; both reap") {
  std::size_t descriptors = open_descriptors();
  SUBCASE("who listens ends by SIGTERM") {
    Run run{{"print:up\n", "sleep:100000"}};
    for (int r = 0; r < 3; ++r) run.hub->start(static_cast<Incarnation>(r + 1), r, 3, false);
    std::string said;
    CHECK(eventually([&] {
      run.turn(5ms);
      return (said += run.output()).size() == 3 * 7;
    }));
    Time start = run.hub->now();
    run.hub->stop(8s);
    CHECK(run.hub->now() - start < 5s);
    CHECK(no_children());
  }
  SUBCASE("who does not is killed after the grace") {
    Run run{{"ignore:15", "print:up", "sleep:100000"}};
    run.hub->start(1, 0, 1, false);
    std::this_thread::sleep_for(300ms);
    Time start = run.hub->now();
    run.hub->stop(200ms);
    CHECK(run.hub->now() - start >= 200ms);
    CHECK(run.hub->now() - start < 5s);
    CHECK(no_children());
    CHECK(run.output() == "[0] up\n");  // it was still passed on
  }
  SUBCASE("a destroyed hub") {
    Run run{{"ignore:15", "spawn", "join", "serve"}};
    run.hub->start(1, 0, 1, false);
    run.frame(Kind::join);
    run.hub.reset();
    CHECK(no_children());
  }
  CHECK(open_descriptors() == descriptors);
}

TEST_CASE("a stop signal ends the run, and the signal mask is restored") {
  sigset_t before, after_;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &before);
  {
    Run run{{"join", "serve"}, 60s, [](TcpHubOptions& o) { o.stop_signals = {SIGUSR1, SIGTERM}; }};
    run.hub->start(1, 0, 1, false);
    run.frame(Kind::join);
    std::thread other{[parent = ::pthread_self()] {
      std::this_thread::sleep_for(50ms);
      ::pthread_kill(parent, SIGUSR1);
    }};
    CHECK_THROWS_WITH_AS(run.next(), doctest::Contains("stopped by signal 10"), RunStopped);
    other.join();
    CHECK(run.hub->stopped_by() == SIGUSR1);
    ::pthread_kill(::pthread_self(), SIGTERM);  // the second one does not wait for the grace
    Time start = run.hub->now();
    run.hub->stop(60s);
    CHECK(run.hub->now() - start < 20s);
    CHECK(no_children());
  }
  ::pthread_sigmask(SIG_SETMASK, nullptr, &after_);
  for (int s = 1; s < 32; ++s) CHECK(sigismember(&before, s) == sigismember(&after_, s));
}

TEST_CASE("output nobody reads does not stop the heartbeat") {
  Run run{{"join", "print:" + std::string(100000, 'x') + "\n", "serve"}, 400ms};
  for (int r = 0; r < 30; ++r) run.hub->start(static_cast<Incarnation>(r + 1), r, 30, false);
  int joined = 0;
  for (Time start = run.hub->now(); run.hub->now() - start < 4s;) {  // nobody reads run.lines
    auto e = run.hub->poll(run.hub->now() + 20ms);
    if (!e) continue;
    REQUIRE(!e->ended);
    ++joined;
  }
  CHECK(joined == 30);
  for (Incarnation who = 1; who <= 30; ++who) run.tell(who, Kind::go);
  for (int r = 0; r < 30; ++r) run.frame(Kind::ready);
}

TEST_CASE("who starts with SIGCHLD ignored still learns how workers end") {
  ::signal(SIGCHLD, SIG_IGN);
  {
    Run run{{"exit:9"}};
    run.hub->start(1, 0, 1, false);
    CHECK(run.end() == 9);
  }
  CHECK((::signal(SIGCHLD, SIG_DFL) == SIG_IGN));  // as it was
}
