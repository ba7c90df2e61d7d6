#include <mend/comm/membership/environment.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <string>

using namespace std::chrono_literals;
using namespace mend;
using namespace mend::comm;

namespace {

//! Sets this process's environment for one test.
struct Environment {
  explicit Environment(const WorkerEnvironment& e) {
    for (const auto& [name, value] : e.variables()) ::setenv(name.c_str(), value.c_str(), 1);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment() {
    for (const auto& [name, value] : WorkerEnvironment{}.variables()) ::unsetenv(name.c_str());
  }
};

WorkerEnvironment some() { return {"127.0.0.1:5000", 2, 3, 17, true, "a token", 1500ms, 90s}; }

}  // namespace

TEST_CASE("a worker reads what its launcher wrote") {
  Environment set{some()};
  auto e = WorkerEnvironment::read();
  REQUIRE(e);
  CHECK(e->variables() == some().variables());
  CHECK(e->launcher == "127.0.0.1:5000");
  CHECK(e->rank == 2);
  CHECK(e->size == 3);
  CHECK(e->incarnation == 17);
  CHECK(e->replacement);
  CHECK(e->token == "a token");
  CHECK(e->lease == 1500ms);
  CHECK(e->timeout == 90s);
}

TEST_CASE("without a launcher a program runs alone") {
  CHECK(!WorkerEnvironment::read());
  ::setenv("MEND_LAUNCHER", "", 1);
  CHECK(!WorkerEnvironment::read());
  ::unsetenv("MEND_LAUNCHER");
}

TEST_CASE("half an environment is an error that names the variable") {
  for (const char* missing : {"MEND_RANK", "MEND_SIZE", "MEND_INCARNATION", "MEND_REPLACEMENT",
                              "MEND_TOKEN", "MEND_LEASE_MS", "MEND_TIMEOUT_MS"}) {
    Environment set{some()};
    ::unsetenv(missing);
    CHECK_THROWS_WITH_AS(WorkerEnvironment::read(), doctest::Contains(missing), OptionError);
  }
  for (auto setting : {std::pair{"MEND_RANK", "-1"},
                       {"MEND_RANK", "two"},
                       {"MEND_RANK", ""},
                       {"MEND_RANK", "1 "},
                       {"MEND_SIZE", "2"},
                       {"MEND_INCARNATION", "0"},
                       {"MEND_REPLACEMENT", "2"},
                       {"MEND_LEASE_MS", "0"},
                       {"MEND_TIMEOUT_MS", "99999999999999999999"}}) {
    const char *name = setting.first, *bad = setting.second;
    CAPTURE(name);
    CAPTURE(bad);
    Environment set{some()};
    ::setenv(name, bad, 1);
    CHECK_THROWS_WITH_AS(WorkerEnvironment::read(), doctest::Contains(name), OptionError);
  }
}
