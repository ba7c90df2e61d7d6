#include <mend/comm/lifeline.hpp>

#include <signal.h>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/fake_launcher.hpp"
#include "comm/system.hpp"
#include "mend/comm/membership/process.hpp"

using namespace mend_test;

namespace {

//! A lifeline to a launcher that this test plays.
struct Line {
  explicit Line(Time lease = 60s) : me{launcher.worker(0, 1, lease)} {
    std::future<void> greeted =
        std::async(std::launch::async, [this] { launcher.welcome(launcher.accept()); });
    line = std::make_unique<Lifeline>(me, news, 5s);
    greeted.get();
  }
  std::optional<Frame> take(Time within = 5s) {
    std::optional<Frame> f;
    eventually([&] { return (f = line->take()).has_value(); }, within);
    return f;
  }
  std::string end(Time within = 5s) {
    std::string what;
    eventually(
        [&] {
          try {
            line->check();
            return false;
          } catch (const CommError& e) {
            what = e.what();
            return true;
          }
        },
        within);
    return what;
  }

  FakeLauncher launcher;
  WorkerEnvironment me;
  WakeUp news;
  std::unique_ptr<Lifeline> line;
};

//! What joining says while the launcher's side does something else than a welcome.
template <class Answer>
std::string refused(Answer&& answer, Time within = 5s) {
  FakeLauncher launcher;
  WakeUp news;
  std::future<void> other =
      std::async(std::launch::async, [&] { answer(launcher.accept().first); });
  std::string what;
  try {
    Lifeline line{launcher.worker(0, 1), news, within};
    FAIL("joined");
  } catch (const CommError& e) {
    what = e.what();
    CHECK(what.find(launcher.address()) != std::string::npos);
  }
  other.get();
  return what;
}
std::string refused(wire::Welcome::Verdict verdict,
                    std::string_view their_version = library_version) {
  return refused([&](const Descriptor& s) {
    wire::Welcome w;
    w.verdict = verdict;
    w.version = {};
    std::copy(their_version.begin(), their_version.end(), w.version.text);
    REQUIRE(::send(s.get(), &w, sizeof w, MSG_NOSIGNAL) == sizeof w);
  });
}
bool says(const std::string& text, std::string_view part) {
  CAPTURE(text);
  CHECK(text.find(part) != std::string::npos);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("joining fails with a sentence that says why and what to do") {
  says(refused(wire::Welcome::wrong_token), "MEND_TOKEN");
  says(refused(wire::Welcome::welcome, "9.9.9"), "of mend 9.9.9");
  says(refused(wire::Welcome::other_protocol, "9.9.9"), "build both from the same version");
  says(refused(wire::Welcome::unknown), "incarnation 1");
  says(refused(wire::Welcome::again), "joins once");
  says(refused(static_cast<wire::Welcome::Verdict>(77)), "does not know");
  says(refused([](const Descriptor&) {}), "is it a mend launcher?");
  says(refused([](const Descriptor& s) {
         std::string noise(200, 'x');
         REQUIRE(::send(s.get(), noise.data(), noise.size(), MSG_NOSIGNAL) == 200);
       }),
       "no mend launcher");
  Time start = SystemClock{}.now();
  says(refused(
           [](const Descriptor& s) {
             pollfd p{.fd = s.get(), .events = POLLRDHUP, .revents = 0};
             wait_for({&p, 1}, Time{0}, 5s);  // until the worker gives up
           },
           100ms),
       "does not answer");
  CHECK(SystemClock{}.now() - start < 4s);
}

TEST_CASE("a dead launcher's address is an error at once") {
  WorkerEnvironment me;
  {
    FakeLauncher gone;
    me = gone.worker(2, 3);
  }
  WakeUp news;
  Time start = SystemClock{}.now();
  try {
    Lifeline line{me, news, 20s};
    FAIL("joined nobody");
  } catch (const CommError& e) {
    says(e.what(), me.launcher);
    says(e.what(), "start this program with mendrun");
    CHECK(e.code() == ECONNREFUSED);
    CHECK(e.rank() == Rank{2});
  }
  CHECK(SystemClock{}.now() - start < 5s);
}

TEST_CASE("the greeting carries who it is and the token") {
  FakeLauncher launcher;
  WorkerEnvironment me = launcher.worker(4, 5);
  WakeUp news;
  std::future<void> joined = std::async(std::launch::async, [&] { Lifeline line{me, news, 5s}; });
  auto [socket, hello] = launcher.accept();
  CHECK(hello.from == 5);
  CHECK(hello.to == 0);
  CHECK(hello.knows("secret"));
  CHECK(hello.version.view() == library_version);
  launcher.welcome({std::move(socket), hello});
  joined.get();
}

TEST_CASE("words travel both ways, in order") {
  Line l;
  Bytes big(std::size_t{9} << 20, std::byte{7});
  std::future<void> other = std::async(std::launch::async, [&] {
    l.launcher.tell(1, Kind::view);
    l.launcher.tell(1, Kind::plan, big);
    l.launcher.tell(1, Kind::go);
  });
  for (Kind kind : {Kind::view, Kind::plan, Kind::go}) {
    std::optional<Frame> f = l.take();
    REQUIRE(f);
    CHECK(f->from == Frame::coordinator);
    CHECK(f->header.kind == static_cast<std::uint16_t>(kind));
    CHECK(f->payload.size() == (kind == Kind::plan ? big.size() : 0));
  }
  other.get();
  CHECK(!l.line->take());
  for (std::uint32_t i = 0; i < 5; ++i)
    l.line->tell({.kind = static_cast<std::uint16_t>(Kind::report), .tag = i},
                 i == 2 ? ByteView{big} : ByteView{});
  for (std::uint32_t i = 0; i < 5; ++i) {
    Frame f = l.launcher.next(1);
    CHECK(f.header.tag == i);
    CHECK(f.payload.size() == (i == 2 ? big.size() : 0));
  }
}

TEST_CASE("the lease is renewed while the trainer's thread does something else") {
  Line l{800ms};
  std::jthread launcher{[&](const std::stop_token& stop) {  // says alive, as launchers do
    while (!stop.stop_requested()) {
      l.launcher.tell(1, Kind::alive);
      std::this_thread::sleep_for(50ms);
    }
  }};
  std::this_thread::sleep_for(2s);  // more than two leases
  CHECK_NOTHROW(l.line->check());
  CHECK(!l.line->take());  // Alive is not for the trainer
  launcher.request_stop();
  launcher.join();
  int alive = 0;
  SystemClock clock;
  for (Time start = clock.now(); alive < 5 && clock.now() - start < 5s;)
    if (l.launcher.next_or_end(1)->header.kind == static_cast<std::uint16_t>(Kind::alive)) ++alive;
  CHECK(alive == 5);
}

TEST_CASE("a silent launcher is gone after the lease") {
  Line l{300ms};
  Time start = SystemClock{}.now();
  says(l.end(), "silent for 0.30 s");
  CHECK(SystemClock{}.now() - start < 3s);
}

TEST_CASE("a launcher that hangs up is gone at once, after what it said") {
  Line l;
  l.launcher.tell(1, Kind::stop);
  l.launcher.hang_up(1);
  CHECK(eventually([&] {
    pollfd p = l.news.waiting();
    wait_for({&p, 1}, Time{0}, 10ms);
    return p.revents != 0;
  }));
  std::this_thread::sleep_for(50ms);  // both are in
  CHECK_NOTHROW(l.line->check());
  std::optional<Frame> f = l.take();
  REQUIRE(f);
  CHECK(f->header.kind == static_cast<std::uint16_t>(Kind::stop));
  says(l.end(), "the launcher at " + l.launcher.address() + " is gone (it closed the connection)");
  l.line->tell({.kind = 1}, {});  // has no effect, and raises no SIGPIPE
}

TEST_CASE("garbage from the launcher ends the line") {
  Line l;
  l.launcher.tell(1, Kind::go);
  REQUIRE(l.take());
  l.launcher.write(1, std::string(100, 'x'));
  says(l.end(), "is gone");
}

TEST_CASE("what was told last is sent before the end, which is bounded") {
  std::size_t threads = running_threads(), descriptors = open_descriptors();
  {
    Line l;
    l.line->tell({.kind = static_cast<std::uint16_t>(Kind::finished), .tag = 5}, Bytes(100000));
    l.line.reset();
    CHECK(l.launcher.next(1).payload.size() == 100000);
    while (std::optional<Frame> f = l.launcher.next_or_end(1))
      CHECK(f->header.kind == static_cast<std::uint16_t>(Kind::alive));
  }
  {
    Line l;  // a slow launcher
    l.line->tell({.kind = 2}, Bytes(std::size_t{24} << 20));
    std::future<void> end = std::async(std::launch::async, [&] { l.line.reset(); });
    CHECK(l.launcher.next(1).payload.size() == std::size_t{24} << 20);
    end.get();
  }
  {
    Line l;  // a launcher that reads nothing
    for (int i = 0; i < 40; ++i) l.line->tell({.kind = 2}, Bytes(std::size_t{1} << 20));
    Time start = SystemClock{}.now();
    l.line.reset();
    CHECK(SystemClock{}.now() - start < 5s);
  }
  CHECK(running_threads() == threads);
  CHECK(open_descriptors() == descriptors);
}

TEST_CASE("a trainer that takes nothing bounds what is read for it") {
  Line l;
  Bytes big(std::size_t{8} << 20);
  std::atomic<int> said{0};
  std::future<void> other = std::async(std::launch::async, [&] {
    for (int i = 0; i < 40; ++i, ++said) l.launcher.tell(1, Kind::view, big);
  });
  for (int before = -1; before != said;) {  // until it waits
    before = said;
    std::this_thread::sleep_for(500ms);
  }
  CHECK(said >= 8);
  CHECK(said < 20);  // 64 MiB here, and the system's buffers
  CHECK_NOTHROW(l.line->check());
  for (int i = 0; i < 40; ++i) REQUIRE(l.take());
  other.get();
}

TEST_CASE(
    "a worker that was stopped for longer than its lease is fenced, whatever was said to it") {
  FakeLauncher launcher;
  WorkerEnvironment me = launcher.worker(0, 1, 500ms);
  std::vector<std::string> argv{program("tcp_worker"), "join"};
  bool last_word = false;
  SUBCASE("that all is well, to a trainer that waits for it") {}
  SUBCASE("as a last word, to a trainer that looks much later") {
    last_word = true;
    argv.emplace_back("sleep:2000");
  }
  argv.emplace_back("serve");
  Process worker{argv, me.variables()};
  launcher.welcome(launcher.accept());
  launcher.next(1);  // Join
  launcher.tell(1, Kind::go);
  if (!last_word) CHECK(launcher.next(1).header.kind == static_cast<std::uint16_t>(Kind::ready));
  worker.signal(SIGSTOP);
  for (int i = 0; i < 14; ++i) {
    launcher.tell(1, Kind::alive);
    std::this_thread::sleep_for(60ms);
  }
  launcher.tell(1, Kind::bye);  // would end it with success
  if (last_word) launcher.hang_up(1);
  worker.signal(SIGCONT);
  std::optional<int> status;
  CHECK(eventually([&] { return (status = worker.reap()).has_value(); }));
  CHECK(status == 3);
  char said[500] = "";
  CHECK(::read(worker.errors().get(), said, sizeof said - 1) > 0);
  says(said, "fenced: this worker was stopped for longer than its lease of 0.50 s");
}
