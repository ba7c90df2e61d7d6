#pragma once

#include <mend/comm/group.hpp>
#include <mend/comm/membership/messages.hpp>
#include <mend/comm/world.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace mend_test {

using namespace std::chrono_literals;

//! Workers of one generation over a World, without any recovery: a coordinator that starts them,
//! opens generation 1 and waits for their ends. What they throw is in `failures`, by rank.
struct Ranks {
  int size = 1;
  mend::comm::WorldOptions options{};
  //! Called in the coordinator's thread for every frame that is no Join.
  std::function<void(mend::comm::World::WorkerHub&, const mend::HubEvent&)> on_frame{};

  std::map<int, std::string> failures{};
  std::map<int, int> status{};
  bool hung = false;
  std::vector<mend::comm::World::Trace> trace{};

  using Comm = mend::comm::Group<mend::comm::World::WorkerLink>;

  //! Runs main(comm) on every rank; true when all of them returned.
  template <class Main>
  bool run(Main&& main) {
    failures.clear();
    status.clear();
    mend::comm::World world{options};
    world.run([&](Comm& comm) { main(comm); },
              [this](mend::comm::World::WorkerHub& hub) { return coordinate(hub); });
    for (const auto& [who, error] : world.failures()) {
      try {
        std::rethrow_exception(error);
      } catch (const std::exception& e) {
        failures[static_cast<int>(who) - 1] = e.what();
      }
    }
    hung = world.hung();
    trace = world.trace();
    return !hung && static_cast<int>(status.size()) == size &&
           std::ranges::all_of(status, [](const auto& s) { return s.second == 0; });
  }

  static void tell(mend::comm::World::WorkerHub& hub, mend::Incarnation who, mend::comm::Kind kind,
                   mend::ByteView payload = {}, std::uint32_t generation = 1) {
    mend::Header h;
    h.kind = static_cast<std::uint16_t>(kind);
    h.generation = generation;
    hub.tell(who, h, payload);
  }
  //! The generation of all ranks from `first` on.
  [[nodiscard]] mend::comm::View view(int rank, std::uint32_t generation = 1) const {
    mend::comm::View v;
    v.generation = mend::Generation{generation};
    v.rank = rank;
    for (int r = 0; r < size; ++r) {
      auto who = static_cast<mend::Incarnation>(r + 1);
      v.peers.push_back({who, "", who});
    }
    return v;
  }

 private:
  int coordinate(mend::comm::World::WorkerHub& hub) {
    for (int r = 0; r < size; ++r) hub.start(static_cast<mend::Incarnation>(r + 1), r, size, false);
    mend::Time limit = options.simulated ? mend::Time{24h} : mend::Time{60s};
    int joined = 0, ended = 0;
    while (ended < size) {
      std::optional<mend::HubEvent> e = hub.poll(mend::after(hub.now(), limit));
      if (!e) break;  // the World ends whoever is left, and their status stays unknown
      if (e->ended) {
        ++ended;
        status[static_cast<int>(e->who) - 1] = e->status;
      } else if (e->frame.header.kind == static_cast<std::uint16_t>(mend::comm::Kind::join)) {
        if (++joined == size)
          for (int r = 0; r < size; ++r)
            tell(hub, static_cast<mend::Incarnation>(r + 1), mend::comm::Kind::view,
                 mend::comm::encode(view(r)));
      } else if (on_frame) {
        on_frame(hub, *e);
      }
    }
    return ended;
  }
};

//! What every test of a collective runs over: 1 to 6 ranks, free-running threads and a simulated
//! cluster with two seeds. Frames are small, so that buffers of a few hundred bytes are many.
template <class F>
void for_each_cluster(F&& f) {
  for (int n = 1; n <= 6; ++n)
    for (std::uint64_t seed : {0, 1, 2}) {
      Ranks ranks{.size = n, .options = {.simulated = seed != 0, .seed = seed, .chunk_bytes = 256}};
      f(ranks);
    }
}

//! splitmix64, for test data.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_{seed} {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  //! Of either sign and many magnitudes, so that the order of a sum shows in its bits.
  float number() {
    float x = 1.0f + static_cast<float>(next() % 8388608) / 8388608.0f;
    return std::ldexp(next() % 2 == 0 ? x : -x, static_cast<int>(next() % 8) - 4);
  }

 private:
  std::uint64_t state_;
};

}  // namespace mend_test
