#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "mend/comm/group.hpp"
#include "mend/comm/membership/coordinator.hpp"
#include "mend/comm/world.hpp"
#include "mend/core/clock.hpp"

namespace mend::comm {

//! The communicator that a worker of a cluster of threads gets.
using ThreadComm = Group<World::WorkerLink>;

//! A whole cluster in one process: a worker is a thread that runs the same main, a killed worker's
//! thread ends where it stands, its replacement starts from the beginning. Free running, or, with
//! world.simulated, one worker at a time in virtual time and an order drawn from world.seed.
//!
//!   mend::comm::Threads cluster{{.ranks = 3}};
//!   auto outcome = cluster.run([](mend::comm::ThreadComm& comm) { ...; session.train(...); });
template <Clock C>
class BasicThreads {
 public:
  explicit BasicThreads(CoordinatorOptions options, WorldOptions world = {})
      : options_{options}, world_{[&] {
          world.lease = options.lease;
          world.timeout = options.timeout;
          return std::move(world);
        }()} {}

  //! See Coordinator::on_event; called in the thread of run().
  std::function<void(const trace::Event&)> on_event{};

  //! Blocks until all workers have ended. Once per object. `worker` runs in several threads at once
  //! and must keep its state to itself.
  Outcome run(typename BasicWorld<C>::Main worker) {
    return world_.run(std::move(worker), [this](auto& hub) {
      Coordinator coordinator{hub, options_};
      coordinator.on_event = on_event;
      return coordinator.run();
    });
  }
  [[nodiscard]] const BasicWorld<C>& world() const { return world_; }

 private:
  CoordinatorOptions options_;
  BasicWorld<C> world_;
};
using Threads = BasicThreads<SystemClock>;

}  // namespace mend::comm
