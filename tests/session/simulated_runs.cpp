#include <mend/session/session.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "session/support/cluster.hpp"

using namespace mend_test;

// Whole runs in virtual time, each drawn from one number: how many ranks, which policies, how slow
// the messages are, what goes wrong and when. In every one of them the bits are those of a run in
// which nothing failed, or it stopped because copies were lost together with their owner.
//
//   test_session --source-file=*simulated_runs.cpp --seed 17    one run again, told in full
//   MEND_SEED=17                                                the same
//   MEND_RUNS=20000 MEND_FIRST=1                                more of them

namespace {

//! --seed N on the command line or MEND_SEED; 0 for none.
std::uint64_t wanted_seed() {
  std::ifstream file{"/proc/self/cmdline", std::ios::binary};
  std::string line{std::istreambuf_iterator<char>{file}, {}};
  std::vector<std::string> words;
  for (std::size_t at = 0; at < line.size(); at += words.back().size() + 1)
    words.emplace_back(line.c_str() + at);
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--seed" && i + 1 < words.size())
      return std::strtoull(words[i + 1].c_str(), nullptr, 10);
    if (words[i].starts_with("--seed=")) return std::strtoull(words[i].c_str() + 7, nullptr, 10);
  }
  return environment("MEND_SEED", 0);
}

Case draw(std::uint64_t seed) {
  Random random{seed * 1'000'003};
  Case c;
  c.ranks = 2 + static_cast<int>(random(5));
  c.extra = static_cast<int>(random(3));
  c.steps = 3 + static_cast<int>(random(4));
  c.copies = 1 + static_cast<int>(random(2));
  c.flavour = static_cast<Flavour>(random(6));
  c.loop = random(2) == 0 ? Loop::train : static_cast<Loop>(random(5));
  c.ready = random(2) == 0;
  c.world.seed = seed;
  static constexpr mend::Time delays[] = {0ms, 200us, 2ms, 20ms, 700ms};
  c.world.delay = delays[random(std::size(delays))];
  c.world.zombies = random(2) == 0;
  c.world.chunk_bytes = random(2) == 0 ? 4096 : 16384;

  // Moments are operations; how many a life has is known from a run without faults. What hits a
  // worker of a higher number hits a replacement, also one that is still receiving.
  std::map<Incarnation, std::uint64_t> length;
  std::uint64_t longest = 0;
  for (const auto& t : run(c).trace) {
    length[t.who] = t.operation + 1;
    longest = std::max(longest, t.operation + 1);
  }
  for (std::uint64_t n = 1 + random(3); n > 0; --n) {
    Fault f;
    f.who = 1 + random(static_cast<std::uint64_t>(c.ranks) + 3);
    auto known = length.find(f.who);
    f.operation = random((known == length.end() ? longest : known->second) + 10);
    std::uint64_t kind = random(10);
    f.kind = kind < 6 ? Fault::Kind::kill : kind < 8 ? Fault::Kind::stop : Fault::Kind::cut;
    f.span = std::chrono::milliseconds{100 + random(12'000)};  // the lease is 5 s
    f.peer = static_cast<int>(random(static_cast<std::uint64_t>(c.ranks)));
    c.world.faults.push_back(f);
  }
  return c;
}

std::string told(const Case& c, const Result& r) {
  std::string text = c.text() + "\n";
  for (const Note& n : r.notes) {
    static constexpr std::string_view what[] = {
        "born", "lambda", "committed", "finished", "killed", "failed", "death", "go", "stop"};
    text += "  " + std::string{what[static_cast<std::size_t>(n.what)]};
    if (n.who != 0) text += " worker " + std::to_string(n.who);
    if (n.rank >= 0) text += " rank " + std::to_string(n.rank);
    text += " step " + std::to_string(n.step) + (n.text.empty() ? "" : ": " + n.text) + "\n";
  }
  for (const Fault& f : c.world.faults) {
    std::string at = r.struck(f);
    text += "  fault of worker " + std::to_string(f.who) + ": " +
            (at.empty() ? "never reached" : "at " + at) + "\n";
  }
  return text + "  finished " + std::to_string(r.outcome.finished) + ", " +
         std::to_string(r.outcome.deaths) + " deaths, " + std::to_string(r.outcome.generations) +
         " generations " + r.outcome.reason;
}

}  // namespace

TEST_CASE("runs drawn from a seed end with the same bits, or stop as they may") {
  if (std::uint64_t seed = wanted_seed(); seed != 0) {
    Case c = draw(seed);
    Result r;
    Verdict v = check_run(c, &r);
    MESSAGE(told(c, r));
    CHECK_MESSAGE(v.complaint.empty(), v.complaint);
    return;
  }
  std::uint64_t first = environment("MEND_FIRST", 1), runs = environment("MEND_RUNS", 500);
  std::uint64_t stopped = 0, deaths = 0, bad = 0, count = 0;
  for (std::uint64_t seed = first; seed < first + runs && bad < 10; seed += test_scale()) {
    Result r;
    Verdict v = check_run(draw(seed), &r);
    CHECK_MESSAGE(v.complaint.empty(), "--seed " << seed << ": " << v.complaint);
    bad += !v.complaint.empty();
    stopped += v.stopped;
    deaths += static_cast<std::uint64_t>(r.outcome.deaths);
    ++count;
  }
  MESSAGE(count << " runs, " << deaths << " deaths, " << stopped << " stopped as they may");
  CHECK(deaths > count / 2);  // or nothing was tested
  CHECK(stopped < count / 5 + 5);
}

TEST_CASE("a seed gives the same run again") {
  for (std::uint64_t seed : {3u, 8u, 21u}) {
    Case c = draw(seed);
    Result one = run(c), two = run(c);
    REQUIRE(one.trace.size() == two.trace.size());
    for (std::size_t i = 0; i < one.trace.size(); ++i) {
      REQUIRE(one.trace[i].who == two.trace[i].who);
      REQUIRE(one.trace[i].operation == two.trace[i].operation);
      REQUIRE(one.trace[i].point == two.trace[i].point);
    }
    CHECK(one.final == two.final);
    CHECK(one.outcome.reason == two.outcome.reason);
  }
  Case other = draw(3);
  std::size_t before = run(other).trace.size();
  other.world.seed = 4;
  CHECK(before != run(other).trace.size());
}
