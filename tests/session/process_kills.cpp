// Real processes, real SIGKILL, at 50 random moments: the bits of a run in which nothing failed.
#include <mend/comm/membership/launch.hpp>

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "session/support/trainer.hpp"

using namespace std::chrono_literals;

namespace {

constexpr int ranks = 3, steps = 150;

struct Result {
  mend::comm::Outcome outcome;
  std::vector<std::string> hashes;
};

Result run(const std::vector<std::string>& kills) {
  std::string folder =
      std::filesystem::temp_directory_path() / ("mend_kills_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  std::string arguments = std::to_string(steps) + " " + folder;
  for (const std::string& k : kills) arguments += " " + k;
  const char* programs = std::getenv("MEND_TEST_PROGRAMS_DIR");
  Result r;
  r.outcome = mend::comm::launch(
      {.argv = {std::string{programs != nullptr ? programs : MEND_TEST_PROGRAMS_DIR} +
                "/killed_trainer"},
       .run = {.ranks = ranks, .max_restarts = 50, .poison = 20, .lease = 10s, .timeout = 60s},
       .environment = {{"KILLED_TRAINER", arguments}},
       .report = false});
  for (int rank = 0; rank < ranks; ++rank) {
    std::ifstream in{folder + "/" + std::to_string(rank)};
    std::string hash;
    in >> hash;
    r.hashes.push_back(hash);
  }
  std::filesystem::remove_all(folder);
  return r;
}

std::size_t descriptors() {
  std::size_t n = 0;
  for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"})
    n += !entry.path().empty();
  return n;
}

}  // namespace

TEST_CASE("fifty kills at random moments end with the same bits") {
  std::size_t open = descriptors();
  auto begin = std::chrono::steady_clock::now();
  Result reference = run({});
  double length =
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
  REQUIRE_MESSAGE(reference.outcome.finished, reference.outcome.reason);
  for (const std::string& hash : reference.hashes) REQUIRE(hash.size() == 32);

  mend_test::Random random{20};
  int killed = 0;
  for (int runs = 0; killed < 50 && runs < 120; ++runs) {
    // One rank dies early, perhaps its replacement too, perhaps another one later.
    auto moment = [&](double from, double to) {
      return std::to_string(
          static_cast<long>(length * (from + (to - from) * double(random(1000)) / 1000)));
    };
    int first = static_cast<int>(random(ranks)),
        second = (first + 1 + static_cast<int>(random(ranks - 1))) % ranks;
    std::vector<std::string> kills{std::to_string(first) + ":0:" + moment(0, 0.5)};
    if (random(3) == 0) kills.push_back(std::to_string(first) + ":1:" + moment(0, 0.3));
    if (random(2) == 0) kills.push_back(std::to_string(second) + ":0:" + moment(0.5, 0.95));
    std::string what;
    for (const std::string& k : kills) what += " " + k;
    CAPTURE(what);
    Result r = run(kills);
    CAPTURE(r.outcome.reason);
    killed += r.outcome.deaths;
    if (r.outcome.reason.find("after the last step") != std::string::npos) continue;
    CHECK(r.outcome.finished);
    CHECK(r.hashes == reference.hashes);
  }
  CHECK(killed >= 50);
  CHECK(descriptors() == open);
}
