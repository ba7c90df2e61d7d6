#include <mend/comm/membership/process.hpp>

#include <signal.h>
#include <sys/wait.h>

#include <doctest/doctest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/system.hpp"

using namespace std::chrono_literals;
using namespace mend;
using namespace mend::comm;
using namespace mend_test;

namespace {

Process shell(const std::string& script, const Process::Variables& variables = {}) {
  return Process{{"sh", "-c", script}, variables};
}
int status(Process& p) {
  std::optional<int> s;
  REQUIRE(eventually([&] { return (s = p.reap()).has_value(); }));
  return *s;
}
//! All that a pipe brings until its end.
std::string all(const Descriptor& pipe) {
  std::string text;
  REQUIRE(eventually([&] {
    char buffer[4096];
    ssize_t n = ::read(pipe.get(), buffer, sizeof buffer);
    if (n > 0) text.append(buffer, static_cast<std::size_t>(n));
    return n == 0;
  }));
  return text;
}
//! Descriptors beyond the first three that whoever started this test left open for its children.
int inherited() {
  int n = 0;
  for (int fd = 3; fd < 1000; ++fd) {
    int flags = ::fcntl(fd, F_GETFD);
    n += flags >= 0 && (flags & FD_CLOEXEC) == 0 ? 1 : 0;
  }
  return n;
}
bool exists(int pid) { return ::kill(pid, 0) == 0; }

}  // namespace

TEST_CASE("an end is told as it was") {
  Process ok = shell("exit 0"), seven = shell("exit 7"), killed = shell("kill -9 $$"),
          terminated = shell("kill -15 $$");
  CHECK(status(ok) == 0);
  CHECK(status(seven) == 7);
  CHECK(status(killed) == -SIGKILL);
  CHECK(status(terminated) == -SIGTERM);
  CHECK(*killed.reap() == -SIGKILL);  // and stays so
}

TEST_CASE("its handle becomes readable when it ends, not before") {
  Process p = shell("read x; exit 3");
  CHECK(status(p) == 3);  // its input is empty
  Process q = shell("exec sleep 100");
  pollfd set{.fd = q.handle().get(), .events = POLLIN, .revents = 0};
  wait_for({&set, 1}, Time{0}, 50ms);
  CHECK(set.revents == 0);
  CHECK(!q.reap());
  q.signal(SIGKILL);
  wait_for({&set, 1}, Time{0}, 10s);
  CHECK(set.revents == POLLIN);
  CHECK(q.reap() == -SIGKILL);
}

TEST_CASE("it gets variables on top of this process's, arguments as they are, and two pipes") {
  ::setenv("MEND_TEST_KEPT", "kept", 1);
  ::setenv("MEND_TEST_CHANGED", "before", 1);
  Process p = shell(
      "echo $MEND_TEST_KEPT $MEND_TEST_CHANGED $MEND_TEST_NEW; echo oops >&2; ls /proc/self/fd | "
      "wc -l",
      {{"MEND_TEST_CHANGED", "after"}, {"MEND_TEST_NEW", "a=b c"}});
  // 0, 1, 2, and the folder that ls reads.
  CHECK(all(p.output()) == "kept after a=b c\n" + std::to_string(4 + inherited()) + "\n");
  CHECK(all(p.errors()) == "oops\n");
  CHECK(status(p) == 0);
  Process q{{"printf", "%s|", "a b", "", "*"}};
  CHECK(all(q.output()) == "a b||*|");
  ::unsetenv("MEND_TEST_KEPT");
  ::unsetenv("MEND_TEST_CHANGED");
}

TEST_CASE("what cannot be run is an error at once, with errno and path") {
  std::filesystem::path plain =
      std::filesystem::temp_directory_path() / ("mend_plain_" + std::to_string(::getpid()));
  std::fclose(std::fopen(plain.c_str(), "w"));
  std::size_t before = open_descriptors();
  for (const auto& wrong :
       std::vector<std::pair<std::string, int>>{{"/nowhere/trainer", ENOENT},
                                                {"mend-no-such-program", ENOENT},
                                                {plain, EACCES},
                                                {"/tmp", EACCES}}) {
    const std::string& path = wrong.first;
    int code = wrong.second;
    CAPTURE(path);
    try {
      Process p{{path}};
      FAIL("it runs");
    } catch (const CommError& e) {
      CHECK(e.code() == code);
      CHECK(e.path() == path);
    }
  }
  CHECK_THROWS_AS(Process{{}}, CommError);
  CHECK(open_descriptors() == before);
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);  // no zombie either
  std::filesystem::remove(plain);
}

TEST_CASE("no process outlives its object, stopped or not, nor what it started") {
  std::size_t before = open_descriptors();
  int pid = 0, child = 0;
  {
    Process p = shell("sleep 100 & echo $!; trap '' TERM; wait");
    pid = p.pid();
    char text[20] = "";
    REQUIRE(eventually([&] { return ::read(p.output().get(), text, sizeof text - 1) > 0; }));
    child = std::atoi(text);
    CHECK(exists(child));
    p.signal(SIGSTOP);
    Process moved{std::move(p)};
  }
  CHECK(!exists(pid));
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
  CHECK(errno == ECHILD);
  CHECK(eventually([&] {
    return !exists(child) ||
           all(Descriptor{::open(("/proc/" + std::to_string(child) + "/stat").c_str(),
                                 O_RDONLY | O_CLOEXEC)})
                   .find(") Z") != std::string::npos;
  }));
  CHECK(open_descriptors() == before);
}

TEST_CASE("a signal reaches the process once, and its group") {
  Process p = shell(
      "trap 'echo got' USR1; sh -c 'trap \"echo too; exit\" USR1; echo up; while :; do sleep 0.02; "
      "done' & "
      "wait; wait; exit 6");
  std::string text;
  auto said = [&](std::string_view what) {
    char buffer[100];
    ssize_t n = ::read(p.output().get(), buffer, sizeof buffer);
    if (n > 0) text.append(buffer, static_cast<std::size_t>(n));
    return text.find(what) != std::string::npos;
  };
  REQUIRE(eventually([&] { return said("up\n"); }));
  p.signal(SIGUSR1);
  CHECK(status(p) == 6);
  text += all(p.output());
  CHECK(text.find("too\n") != std::string::npos);
  CHECK(text.find("got\n") != std::string::npos);
  CHECK(text.find("got\n") == text.rfind("got\n"));
}

TEST_CASE("what a process leaves behind in its group ends with it") {
  Process p = shell("sleep 100 & exit 4");
  CHECK(status(p) == 4);
  CHECK(all(p.output()).empty());  // nobody holds the pipe any more
}

TEST_CASE("it ends with the thread that started it") {
  std::optional<Process> p;
  std::thread{[&] { p.emplace(std::vector<std::string>{"sleep", "100"}); }}.join();
  CHECK(status(*p) == -SIGKILL);
}

TEST_CASE("blocked signals of this process are open in the child") {
  sigset_t some, before;
  sigemptyset(&some);
  sigaddset(&some, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &some, &before);
  Process p{{"sleep", "100"}};
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  p.signal(SIGTERM);
  CHECK(status(p) == -SIGTERM);
}
