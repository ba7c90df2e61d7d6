#include <mend/trace/progress_line.hpp>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

using mend::Time;
using mend::trace::ProgressLine;
using mend::trace::ProgressOptions;
using namespace std::chrono_literals;

namespace {

//! A pipe that nobody reads until read() is called.
struct Pipe {
  Pipe() { REQUIRE(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0); }
  ~Pipe() {
    close_reader();
    ::close(ends[1]);
  }
  void close_reader() {
    if (ends[0] >= 0) ::close(ends[0]);
    ends[0] = -1;
  }
  std::string read() const {
    std::string text(1 << 20, '\0');
    ssize_t n = ::read(ends[0], text.data(), text.size());
    text.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
    return text;
  }
  void fill() const {
    std::string junk(65536, '.');
    while (::write(ends[1], junk.data(), junk.size()) > 0) {
    }
    while (::write(ends[1], ".", 1) > 0) {
    }
  }
  ProgressOptions plain() const { return {.descriptor = ends[1], .terminal = false}; }
  ProgressOptions terminal() const { return {.descriptor = ends[1], .terminal = true}; }
  int ends[2];
};

std::size_t count(std::string_view text, char c) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), c));
}

}  // namespace

TEST_CASE("a plain line: step, values, rate, time left") {
  Pipe pipe;
  ProgressLine line{1000, pipe.plain()};
  line.update(100s, 0, {{"loss", 2.302585}, {"accuracy", 0.1}});
  CHECK(pipe.read() == "step 0/1000  loss 2.303  accuracy 0.1\n");
  line.update(105s, 100, {{"loss", 1.5}});
  CHECK(pipe.read().empty());  // not before 10 seconds
  line.update(110s, 200, {{"loss", 0.00001234}});
  CHECK(pipe.read() == "step 200/1000  loss 1.234e-05  20.0 steps/s  eta 40s\n");
  line.finish(111s);
  CHECK(pipe.read().substr(0, 13) == "step 200/1000");
}

TEST_CASE("on a terminal one line is redrawn, and ended once") {
  Pipe pipe;
  {
    ProgressLine line{10, pipe.terminal()};
    line.update(1s, 1, {{"loss", 1}});
    line.update(1s + 100ms, 2, {{"loss", 2}});  // too soon
    line.update(1s + 200ms, 3, {{"loss", 3}});
    CHECK(pipe.read() ==
          "\rstep 1/10  loss 1\x1b[K\rstep 3/10  loss 3  10.0 steps/s  eta 0s\x1b[K");
    line.update(1s + 300ms, 10, {{"loss", 4}});
    line.finish(1s + 400ms);
    std::string text = pipe.read();
    CHECK(text.find("step 10/10  loss 4") != std::string::npos);
    CHECK(text.back() == '\n');
    CHECK(count(text, '\n') == 1);
  }
  CHECK(pipe.read().empty());  // the destructor had nothing to end
  { ProgressLine{10, pipe.terminal()}.update(1s, 1, {}); }
  CHECK(pipe.read() == "\rstep 1/10\x1b[K\n");  // a line that was left open is ended
}

TEST_CASE("events end the line, newest first; in plain mode each is told once") {
  Pipe pipe;
  ProgressLine line{10, pipe.plain()};
  line.update(1s, 1, {});
  (void)pipe.read();
  line.event(2s, "rank 1 died");
  CHECK(pipe.read() == "step 1/10 | rank 1 died\n");  // at once: an event does not wait 10 seconds
  line.event(2s + 10ms, "one");
  line.event(2s + 20ms, "two");
  line.event(2s + 30ms, "three");
  line.event(2s + 40ms, "four");
  CHECK(pipe.read().empty());
  line.event(2s + 300ms, "five");
  CHECK(pipe.read() == "step 1/10 | five; four; three\n");
  line.update(20s, 2, {});
  CHECK(pipe.read().find('|') == std::string::npos);
}

TEST_CASE("output is limited however often it is called") {
  Pipe pipe;
  ProgressLine line{100'000, pipe.terminal()};
  for (int i = 0; i < 100'000; ++i) line.update(Time{i * 10'000}, i, {{"loss", 1.0}});  // 1 second
  CHECK(count(pipe.read(), '\r') == 5);
}

TEST_CASE("a line never wraps, and what is no text does not reach the terminal") {
  Pipe pipe;
  ProgressLine line{10, pipe.terminal()};
  line.event(1s,
             "a\nb\rc\x1b[2Jd\x7f\xff"
             "e\xc2\x9b"
             "f\xc3\xa9" +
                 std::string(300, 'x'));
  std::string text = pipe.read();
  CHECK(text.find("a?b?c?[2Jd??e?f\xc3\xa9xxx") != std::string::npos);
  CHECK(text.size() == 1 + 79 + 1 + 3);  // \r, 79 characters (one of two bytes), the erasing
  Pipe other;
  ProgressLine plain{10, other.plain()};
  plain.event(1s, std::string(100'000, 'y'));
  text = other.read();
  CHECK(text.size() < 1000);
  CHECK(text.back() == '\n');
}

TEST_CASE("a reader that does not read, or has gone, neither blocks nor kills") {
  auto start = std::chrono::steady_clock::now();
  Pipe pipe;
  pipe.fill();
  ::fcntl(pipe.ends[1], F_SETFL, 0);  // blocking, as a trainer's standard error is
  ProgressLine line{1000, {.descriptor = pipe.ends[1], .terminal = false, .plain_interval = 0s}};
  for (int i = 0; i < 1000; ++i) line.update(Time{i}, i, {{"loss", 1.0}});
  line.finish(1s);
  CHECK(std::chrono::steady_clock::now() - start < 10s);
  while (!pipe.read().empty()) {
  }
  line.update(2s, 7, {});
  CHECK(pipe.read().substr(0, 11) == "step 7/1000");  // there is room again
  pipe.close_reader();
  line.update(3s, 8, {});
  line.finish(4s);
}

TEST_CASE("a step taken back, time that stands still and values that are no numbers are shown") {
  Pipe pipe;
  ProgressOptions options = pipe.plain();
  options.plain_interval = 0s;
  ProgressLine line{10, options};
  line.update(1s, 5, {{"loss", NAN}, {"norm", INFINITY}});
  CHECK(pipe.read() == "step 5/10  loss nan  norm inf\n");
  line.update(1s, 5, {{"loss", 1e300}});
  CHECK(pipe.read() == "step 5/10  loss 1e+300\n");
  line.update(2s, 3, {{"loss", 1}});
  CHECK(pipe.read() == "step 3/10  loss 1\n");
  line.update(3s, 5, {});
  CHECK(pipe.read() == "step 5/10  2.00 steps/s  eta 2s\n");
}

TEST_CASE("long times left") {
  auto left = [](std::int64_t last, Time per_step) {
    Pipe pipe;
    ProgressOptions options = pipe.plain();
    options.plain_interval = 0s;
    ProgressLine line{last + 1, options};
    line.update(0s, 0, {});
    line.update(per_step, 1, {});
    std::string text = pipe.read();
    return text.substr(text.rfind(' ') + 1);
  };
  CHECK(left(59, 1s) == "59s\n");
  CHECK(left(103, 1s) == "1m43s\n");
  CHECK(left(3600 + 120, 1s) == "1h02m\n");
  CHECK(left(100'000, 36s) == "1000h00m\n");
}

TEST_CASE("without a terminal, isatty decides") {
  Pipe pipe;
  ProgressLine line{10, {.descriptor = pipe.ends[1]}};
  line.update(1s, 1, {});
  CHECK(pipe.read() == "step 1/10\n");
}

TEST_CASE("a real terminal gets a line no wider than itself") {
  int master = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(master >= 0);
  REQUIRE(::grantpt(master) == 0);
  REQUIRE(::unlockpt(master) == 0);
  int terminal = ::open(::ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(terminal >= 0);
  winsize size{};
  size.ws_col = 24;
  REQUIRE(::ioctl(terminal, TIOCSWINSZ, &size) == 0);
  {
    ProgressLine line{10, {.descriptor = terminal}};
    line.update(1s, 1, {{"a long name", 1}, {"another", 2}});
  }
  char text[200];
  ssize_t n = ::read(master, text, sizeof text);
  CHECK(std::string(text, static_cast<std::size_t>(n)) == "\rstep 1/10  a long name \x1b[K\r\n");
  ::close(terminal);
  ::close(master);
}

TEST_CASE("threads") {
  Pipe pipe;
  ProgressLine line{100, {.descriptor = pipe.ends[1], .terminal = true, .interval = 0s}};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&line, t] {
      for (int i = 0; i < 200; ++i) {
        line.update(Time{i}, i, {{"loss", 1.0 / t}});
        line.event(Time{i}, "event");
      }
    });
  for (std::thread& t : threads) t.join();
  line.finish(1s);
}
