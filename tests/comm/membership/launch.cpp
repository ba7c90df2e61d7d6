#include <mend/comm/membership/launch.hpp>

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/system.hpp"

using namespace std::chrono_literals;
using namespace mend;
using namespace mend::comm;
using namespace mend_test;

namespace {

struct Result {
  Outcome outcome;
  std::string text;
  std::vector<trace::Event> events;

  [[nodiscard]] bool says(std::string_view part) const {
    return text.find(part) != std::string::npos;
  }
  [[nodiscard]] std::ptrdiff_t count(std::string_view name) const {
    return std::ranges::count_if(events, [&](const trace::Event& e) { return e.label() == name; });
  }
};

//! Runs to the end and gathers what was written.
Result run(LaunchOptions options) {
  char name[] = "/tmp/mend_launch_XXXXXX";
  Descriptor file{::mkstemp(name)};
  ::unlink(name);
  Result r;
  options.out = options.err = file.get();
  options.run.timeout = 60s;
  options.on_event = [&](const trace::Event& e) { r.events.push_back(e); };
  r.outcome = launch(std::move(options));
  r.text.resize(1 << 20);
  ssize_t n = ::pread(file.get(), r.text.data(), r.text.size(), 0);
  r.text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  return r;
}
LaunchOptions trainer(std::vector<std::string> arguments, int ranks = 3) {
  arguments.insert(arguments.begin(), program("tcp_trainer"));
  LaunchOptions o;
  o.argv = std::move(arguments);
  o.run.ranks = ranks;
  return o;
}
std::string sum(const Result& r) {
  std::size_t at = r.text.find("sum ");
  CAPTURE(r.text);
  CAPTURE(r.outcome.reason);
  REQUIRE(at != std::string::npos);
  return r.text.substr(at, 20);
}

Process mendrun(std::vector<std::string> arguments) {
  const char* folder = std::getenv("MEND_TOOLS_DIR");
  arguments.insert(arguments.begin(),
                   std::string{folder != nullptr ? folder : MEND_TOOLS_DIR} + "/mendrun");
  return Process{arguments};
}
int status(Process& p) {
  std::optional<int> s;
  REQUIRE(eventually([&] { return (s = p.reap()).has_value(); }, 30s));
  return *s;
}
//! Reads until the text satisfies, at most 20 s.
template <class Enough>
std::string read_until(const Descriptor& pipe, Enough&& enough) {
  std::string text;
  CHECK(eventually(
      [&] {
        char buffer[4096];
        ssize_t n = ::read(pipe.get(), buffer, sizeof buffer);
        if (n > 0) text.append(buffer, static_cast<std::size_t>(n));
        return n == 0 || enough(text);
      },
      20s));
  return text;
}
auto lines(std::ptrdiff_t n) {
  return [n](const std::string& text) { return std::ranges::count(text, '\n') >= n; };
}
auto until_end() {
  return [](const std::string&) { return false; };
}
//! "[0] 123\n[1] 456\n": the numbers.
std::vector<int> numbers(const std::string& text) {
  std::vector<int> all;
  std::istringstream in{text};
  for (std::string rank, number; in >> rank >> number;) all.push_back(std::atoi(number.c_str()));
  return all;
}
bool gone(int pid) { return ::kill(pid, 0) != 0; }

}  // namespace

TEST_CASE("a killed or stopped worker is replaced, and the bits are the same") {
  std::size_t descriptors = open_descriptors();
  Result whole = run(trainer({"30", "2"}));
  CHECK(whole.outcome.finished);
  CHECK(exit_status(whole.outcome) == 0);
  CHECK(whole.outcome.deaths == 0);
  CHECK(whole.outcome.step == Step{30});
  for (int rank : {0, 1, 2}) {
    CAPTURE(rank);
    Result r = run(trainer({"30", "2", std::to_string(rank) + "@11:9"}));
    CHECK(r.outcome.finished);
    CHECK(r.outcome.deaths == 1);
    CHECK(r.outcome.restarts == 1);
    CHECK(sum(r) == sum(whole));
    CHECK(r.says("mendrun: rank " + std::to_string(rank) + ": death (signal 9)"));
    CHECK(r.says("generation 2 (3 members)"));
    CHECK(r.says(": replaced (pid "));
    CHECK(r.count("replacement") == 1);
    CHECK(r.says("mendrun: whole again at step "));
  }
  LaunchOptions o = trainer({"30", "2", "0@5:9", "2@5:9", "1@20:19"});  // 19: SIGSTOP
  o.run.lease = 500ms;
  o.report = false;
  Result r = run(std::move(o));
  CHECK(r.outcome.finished);
  CHECK(r.outcome.deaths == 3);
  CHECK(r.count("suspect") == 1);
  CHECK(sum(r) == sum(whole));
  CHECK(!r.says("mendrun:"));
  CHECK(open_descriptors() == descriptors);
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
}

TEST_CASE("without a replacement the run stops or shrinks, and says so") {
  LaunchOptions o = trainer({"30", "2", "1@11:9"});
  o.run.max_restarts = 0;
  Result r = run(o);
  CHECK(!r.outcome.finished);
  CHECK(exit_status(r.outcome) == 128 + SIGKILL);
  CHECK(r.outcome.reason.find("--max-restarts 0") != std::string::npos);
  o.run.shrink = true;
  r = run(o);
  CHECK(r.outcome.finished);
  CHECK(exit_status(r.outcome) == 0);
  CHECK(r.says("generation 2 (2 members)"));
}

TEST_CASE("the exit status is that of the cause") {
  CHECK(exit_status({.finished = true}) == 0);
  CHECK(exit_status({.status = 7}) == 7);
  CHECK(exit_status({.status = -11}) == 139);
  CHECK(exit_status({}) == 1);
  LaunchOptions o;
  o.argv = {"sh", "-c", "exit 5"};
  o.run.ranks = 2;
  o.run.max_restarts = 1;
  Result r = run(o);
  CHECK(!r.outcome.finished);
  CHECK(exit_status(r.outcome) == 5);
  o.argv = {"true"};  // never joins, and that is its good right
  CHECK(run(o).outcome.finished);
  o.run.ranks = 0;
  CHECK(exit_status(run(o).outcome) == 1);
}

TEST_CASE("what cannot be started is an error, at once") {
  LaunchOptions o;
  o.argv = {"./no-such-trainer"};
  o.run.ranks = 2;
  CHECK_THROWS_WITH_AS(run(o), doctest::Contains("./no-such-trainer"), CommError);
}

TEST_CASE("mendrun: status, prefix and reason") {
  Process ok = mendrun({"-n", "2", "--quiet", "sh", "-c", "printf '%s|' \"$@\"; echo oops >&2", "x",
                        "-n", "--quiet"});
  std::string out = read_until(ok.output(), until_end()),
              err = read_until(ok.errors(), until_end());
  CHECK(status(ok) == 0);
  CHECK(
      (out == "[0] -n|--quiet|\n[1] -n|--quiet|\n" || out == "[1] -n|--quiet|\n[0] -n|--quiet|\n"));
  CHECK((err == "[0] oops\n[1] oops\n" || err == "[1] oops\n[0] oops\n"));

  auto fails = [](std::vector<std::string> arguments, int code, const std::string& why) {
    Process p = mendrun(std::move(arguments));
    std::string said = read_until(p.errors(), until_end());
    CAPTURE(said);
    CHECK(status(p) == code);
    CHECK(said.find(why) != std::string::npos);
  };
  fails({"-n", "2", "--max-restarts", "0", "sh", "-c", "exit 4"}, 4, "ended with exit status 4");
  fails({"-n", "2", "--max-restarts", "0", "sh", "-c", "kill -6 $$"}, 134, "signal 6");
  fails({"-n", "2", "./no-such-trainer"}, 127, "./no-such-trainer");
  fails({"-n", "2", "/tmp"}, 126, "/tmp");
  Descriptor taken = listen_at({"127.0.0.1", 0});
  std::string port = std::to_string(Address::of(taken).port());
  fails({"-n", "2", "--port", port, "true"}, 1, "127.0.0.1:" + port + " is in use");
  fails({"-n", "2", "--bind", "example.org", "true"}, 1, "'example.org' is no IPv4 address");
  for (std::vector<std::string> wrong : {std::vector<std::string>{},
                                         {"-n", "2"},
                                         {"-n", "0", "true"},
                                         {"true"},
                                         {"-n", "2", "--bogus", "true"},
                                         {"-n", "2", "--lease", "0", "true"}}) {
    Process p = mendrun(wrong);
    CHECK(status(p) != 0);
  }
}

TEST_CASE("mendrun: a signal ends all workers, politely first") {
  for (int number : {SIGINT, SIGTERM}) {
    Process p = mendrun({"-n", "3", "sh", "-c",
                         "trap 'echo bye; exit 0' TERM; echo $$; while :; do sleep 0.05; done"});
    std::vector<int> pids = numbers(read_until(p.output(), lines(3)));
    CHECK(pids.size() == 3);
    ::kill(p.pid(), number);  // to mendrun alone, as its workers are in groups of their own
    std::string said = read_until(p.output(), until_end()),
                reason = read_until(p.errors(), until_end());
    CHECK(std::ranges::count(said, '\n') == 3);
    CHECK(said.find("bye") != std::string::npos);
    CHECK(status(p) == 128 + number);
    CHECK(reason.find("stopped by signal " + std::to_string(number)) != std::string::npos);
    for (int pid : pids) CHECK(gone(pid));
  }
}

TEST_CASE("mendrun killed: its workers end with it") {
  Process p = mendrun(
      {"-n", "3", "sh", "-c", "trap '' TERM INT HUP; echo $$; while :; do sleep 0.05; done"});
  std::vector<int> pids = numbers(read_until(p.output(), lines(3)));
  CHECK(pids.size() == 3);
  ::kill(p.pid(), SIGKILL);
  CHECK(status(p) == -SIGKILL);
  for (int pid : pids) CHECK(eventually([&] { return gone(pid); }));
}

TEST_CASE("mendrun stopped for less than the lease: the run goes on") {
  Process p = mendrun({"-n", "3", "--lease", "2", program("tcp_trainer"), "40", "25"});
  std::this_thread::sleep_for(400ms);
  ::kill(p.pid(), SIGSTOP);
  std::this_thread::sleep_for(1200ms);
  ::kill(p.pid(), SIGCONT);
  CHECK(status(p) == 0);
  CHECK(read_until(p.errors(), until_end()).find("death") == std::string::npos);
}

TEST_CASE("mendrun: output that nobody reads any more is no reason to end") {
  Process p =
      mendrun({"-n", "2", "sh", "-c", "echo one; sleep 0.3; echo two; sleep 0.3; echo three"});
  read_until(p.output(), lines(1));
  p.output().close();
  CHECK(status(p) == 0);
}
