#include <mend/optim/undo/approximate.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "session/support/cluster.hpp"

using namespace mend_test;

namespace {

//! Whether all ranks that finished hold the same replicated state.
bool ranks_agree(const Case& c, const Result& r) {
  const Reference& ref = Reference::of(c);
  const auto& first = r.entries.at(0);
  for (const auto& [rank, entries] : r.entries)
    for (std::size_t i = 0; i < first.size(); ++i)
      if (ref.entries.at(0)[i] == ref.entries.at(rank)[i] && entries[i] != first[i]) return false;
  return true;
}

}  // namespace

// Survivors that took an update back are near each other and not equal: one of them gives its state
// to all. Without that the hashes before Go would end the run.
TEST_CASE("after an approximate undo all ranks go on from the state of one") {
  Case c;
  c.flavour = Flavour::approximate;
  c.ready = true;
  REQUIRE(ranks_agree(c, run(c)));
  std::size_t runs = 0, changed = 0, stopped = 0;
  const Reference& ref = Reference::of(c);
  for (const auto& t : run(c).trace) {
    if (t.who == 0 || runs++ % (3 * test_scale()) != 0) continue;
    const Case killed = c.with({{.who = t.who, .operation = t.operation}});
    const Result r = run(killed);
    CAPTURE(killed.text());
    CAPTURE(r.outcome.reason);
    CHECK(!r.hung);
    if (!r.outcome.finished) {  // a death after the last step
      ++stopped;
      CHECK(r.outcome.reason.find("after the last step") != std::string::npos);
      continue;
    }
    REQUIRE(r.final.size() == 3);
    CHECK(ranks_agree(c, r));
    changed += r.final.at(0) != ref.final.at(0);
  }
  CHECK(runs > 100);
  CHECK(changed > 0);  // or the exact policies' tests have no teeth
  CHECK(stopped * 4 < runs);
}

TEST_CASE("a second death while they do so leaves ranks that agree, or a stop") {
  Case c;
  c.flavour = Flavour::approximate;
  c.ready = true;
  c.copies = 2;
  Random random{7};
  std::size_t finished = 0;
  for (int i = 0; i < 150; ++i) {
    // The first in a step, the second in the recovery from it, maybe of the replacement.
    const std::uint64_t first = 1 + random(3), second = 1 + (first + random(2)) % 3;
    Case two = c.with({{.who = first, .operation = 20 + random(60)},
                       {.who = random(4) == 0 ? 4 : second, .operation = 30 + random(120)}});
    if (static_cast<std::uint64_t>(i) % test_scale() != 0) continue;
    const Result r = run(two);
    CAPTURE(two.text());
    CAPTURE(r.outcome.reason);
    CHECK(!r.hung);
    if (r.outcome.finished) {
      ++finished;
      CHECK(ranks_agree(c, r));
    } else {
      CHECK(r.outcome.reason.find("diverged") == std::string::npos);
    }
  }
  CHECK(finished > 30 / test_scale());
}
