// tcp_trainer STEPS MILLISECONDS [RANK@STEP:SIGNAL]...: a small run over TCP. Each step takes a
// while; the first life of RANK sends itself SIGNAL at STEP. Rank 0 prints a sum of the parameters'
// bits at the end, which every run of the same size and length must repeat.
#include <mend/comm/tcp.hpp>
#include <mend/core/train_state.hpp>
#include <mend/optim/momentum.hpp>
#include <mend/session/session.hpp>

#include <signal.h>

#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

int main(int argc, char** argv) {
  if (argc < 3) return 64;
  int last = std::atoi(argv[1]), pause = std::atoi(argv[2]);
  try {
    std::vector<float> w(1000, 1.0f), g(1000);
    mend::TrainState state;
    state.add("w", w, g);
    auto comm = mend::comm::join_tcp();
    bool first_life = !comm.membership().replacement;
    mend::Session session{state, mend::Momentum{.lr = 0.05f, .beta = 0.9f}, comm,
                          mend::ReplicaRecovery{}};
    session.train(last, [&](mend::Step step) {
      for (int i = 3; i < argc && first_life; ++i) {
        int rank = -1, at = -1, signal = 0;
        std::sscanf(argv[i], "%d@%d:%d", &rank, &at, &signal);
        if (rank == session.rank() && step == at) ::raise(signal);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds{pause});
      for (std::size_t i = 0; i < g.size(); ++i)
        g[i] = w[i] * static_cast<float>(1 + (i + static_cast<std::size_t>(session.rank())) % 7) -
               static_cast<float>(step.value() % 3);
    });
    std::uint64_t sum = 0;
    for (float x : w) sum = sum * 31 + std::bit_cast<std::uint32_t>(x);
    if (session.rank() == 0) std::printf("sum %016llx\n", static_cast<unsigned long long>(sum));
  } catch (const mend::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 3;
  }
}
