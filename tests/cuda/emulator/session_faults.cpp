#include <mend/mend_cuda.cuh>

#include <doctest/doctest.h>

#include <cstddef>
#include <map>
#include <mutex>
#include <utility>

#include "cuda/trainers.hpp"
#include "emulator.hpp"

using namespace test;

TEST_CASE("a device that fails in a step is an error; who held it is replaced, to the same bits") {
  const Outcome host = trained<OnHost>(Adam{}, true, {}, ExactUndo{});
  struct Repaired {
    ~Repaired() { emulator::Device::get().repair(); }
  } repaired;
  auto& device = emulator::Device::get();
  for (int after : {0, 1, 7, 20, 33}) {
    CAPTURE(after);
    bool failed = false;
    std::mutex mutex;
    std::map<int, Hash128> final;
    comm::Threads cluster{{.ranks = 2, .max_restarts = 4, .poison = 20},
                          {.simulated = true, .chunk_bytes = 4096}};
    const auto outcome = cluster.run([&](ThreadComm& comm) {
      OnTheDevice trainer;
      Session session{trainer.state,     Adam{},           comm,
                      ReplicaRecovery{}, trainer.policy(), ExactUndo{}};
      try {
        session.train(4, [&](Step s) {
          if (s == Step{2} && !std::exchange(failed, true))
            device.fail(cudaErrorLaunchFailure, after);
          trainer.step(s, comm.rank(), [&](const char* name) { session.ready(name); });
        });
      } catch (const DeviceError& e) {
        CHECK(e.cuda_error() == cudaErrorLaunchFailure);
        throw;
      }
      std::lock_guard lock{mutex};
      final[comm.rank()] = trainer.state.hash();
    });
    CHECK_MESSAGE(outcome.finished, outcome.reason);
    CHECK(final == host.final);
  }
}

TEST_CASE("a full device is an error of the session's constructor, and leaves nothing behind") {
  auto& device = emulator::Device::get();
  OnTheDevice trainer;
  ThreadComm comm;
  const std::size_t allocations = device.allocations();
  const std::size_t memory = std::exchange(device.memory, 0);
  CHECK_THROWS_AS((Session{trainer.state, Adam{}, comm, trainer.policy()}), DeviceError);
  device.memory = memory;
  CHECK(device.allocations() == allocations);
  Session session{trainer.state, Adam{}, comm, trainer.policy()};  // and it works again
  session.train(1, [&](Step s) { trainer.step(s, 0, [](const char*) {}); });
}
