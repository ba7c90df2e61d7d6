// The stateful trainer as a process of its own, which kills itself at a moment that no code chose:
// KILLED_TRAINER is "STEPS FOLDER [RANK:LIFE:MICROSECONDS]...", where LIFE 0 is a rank's first
// incarnation and 1 its first replacement. Writes its final hash to FOLDER/RANK.
#include <mend/comm/tcp.hpp>
#include <mend/optim/adam.hpp>
#include <mend/session/session.hpp>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <thread>

#include "session/support/trainer.hpp"

int main() {
  std::istringstream arguments{std::getenv("KILLED_TRAINER")};
  std::int64_t steps = 0;
  std::string folder, kill;
  arguments >> steps >> folder;
  auto comm = mend::comm::join_tcp();
  while (arguments >> kill) {
    int rank = 0, life = 0;
    long microseconds = 0;
    if (std::sscanf(kill.c_str(), "%d:%d:%ld", &rank, &life, &microseconds) != 3) return 2;
    if (rank != comm.rank() || (life != 0) != comm.membership().replacement) continue;
    // Each kill strikes once: a replacement of the replacement finds the mark.
    if (std::FILE* mark = std::fopen((folder + "/killed_" + kill).c_str(), "wx")) {
      std::fclose(mark);
      std::thread{[microseconds] {
        std::this_thread::sleep_for(std::chrono::microseconds{microseconds});
        std::raise(SIGKILL);
      }}.detach();
    }
  }
  mend_test::Trainer trainer{comm.rank(), {.copies = 2}};  // two may die at once
  mend::Session session{trainer.state, mend::Adam{.lr = 1e-2}, comm, mend::ReplicaRecovery{}};
  session.train(
      steps,
      [&](mend::Step step) {
        return trainer.step(step, [&](const std::string& name) { session.ready(name); });
      },
      [&](const mend::Committed& done) { trainer.after(done); });
  std::FILE* out = std::fopen((folder + "/" + std::to_string(comm.rank())).c_str(), "w");
  if (out == nullptr) return 2;
  std::fprintf(out, "%s", mend_test::hash_of(trainer.state).to_hex().c_str());
  return std::fclose(out) == 0 ? 0 : 2;
}
