// Real processes that are all killed: the run goes on from its checkpoint, with the same bits.
#include <mend/comm/membership/launch.hpp>

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

namespace {

struct Folder {
  explicit Folder(const std::string& name)
      : path{std::filesystem::temp_directory_path() /
             ("mend_restarts_" + std::to_string(::getpid()) + name)} {
    std::filesystem::create_directories(path);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  //! "hash durable_step" of each rank.
  [[nodiscard]] std::vector<std::string> ends(int ranks) const {
    std::vector<std::string> all;
    for (int r = 0; r < ranks; ++r) {
      std::ifstream in{path + "/" + std::to_string(r)};
      std::getline(in, all.emplace_back());
    }
    return all;
  }
  std::string path;
};

std::string program() {
  const char* programs = std::getenv("MEND_TEST_PROGRAMS_DIR");
  return std::string{programs != nullptr ? programs : MEND_TEST_PROGRAMS_DIR} +
         "/checkpointed_trainer";
}

mend::comm::Outcome run(int ranks, const std::string& arguments) {
  return mend::comm::launch({.argv = {program()},
                             .run = {.ranks = ranks, .lease = 10s, .timeout = 60s},
                             .environment = {{"CHECKPOINTED_TRAINER", arguments}},
                             .report = false});
}

}  // namespace

TEST_CASE("all workers are killed at once, twice: the last checkpoint, the same bits") {
  Folder calm{"calm"}, killed{"killed"};
  REQUIRE(run(3, calm.path + " 60").finished);
  const mend::comm::Outcome outcome = run(3, killed.path + " 60 34 47");
  CHECK_MESSAGE(outcome.finished, outcome.reason);
  CHECK(outcome.deaths == 6);
  CHECK(killed.ends(3) == calm.ends(3));
  for (const std::string& end : killed.ends(3)) CHECK(end.ends_with(" 60"));

  // The next job finds the end of this one.
  CHECK(run(3, killed.path + " 60").finished);
  CHECK(killed.ends(3) == calm.ends(3));
}

TEST_CASE("a process alone that is killed again and again reaches the same end") {
  Folder calm{"alone"}, killed{"again"};
  const auto start = [](const Folder& folder) {
    const pid_t pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
      ::setenv("CHECKPOINTED_TRAINER", (folder.path + " 400").c_str(), 1);
      ::execl(program().c_str(), program().c_str(), nullptr);
      ::_exit(127);
    }
    return pid;
  };
  const auto end_of = [](pid_t pid) {
    int status = 0;
    REQUIRE(::waitpid(pid, &status, 0) == pid);
    return status;
  };
  CHECK(end_of(start(calm)) == 0);
  int kills = 0;
  for (;; ++kills) {
    const pid_t pid = start(killed);
    if (kills < 12) {
      std::this_thread::sleep_for(40ms + kills % 5 * 17ms);
      ::kill(pid, SIGKILL);
    }
    if (end_of(pid) == 0) break;
    REQUIRE(kills < 12);
  }
  CHECK(killed.ends(1) == calm.ends(1));
}
