// CHECKPOINTED_TRAINER="FOLDER STEPS [DEATH]...": trains with checkpoints in FOLDER/ckpt and leaves
// the hash of the end in FOLDER/RANK. At a step DEATH every rank kills itself, once.
#include <signal.h>
#include <unistd.h>

#include <mend/checkpoint/full.hpp>
#include <mend/comm/tcp.hpp>
#include <mend/optim/adam.hpp>
#include <mend/session/session.hpp>
#include <mend/store/directory.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

int main() try {
  std::istringstream arguments{std::getenv("CHECKPOINTED_TRAINER")};
  std::string folder;
  std::int64_t steps = 0, death = 0;
  arguments >> folder >> steps;
  std::vector<std::int64_t> deaths;
  while (arguments >> death) deaths.push_back(death);

  auto comm = mend::comm::join_tcp();
  std::vector<float> w(200'000, 1), g(200'000);
  std::mt19937_64 random(1 + static_cast<unsigned>(comm.rank()));
  mend::TrainState state;
  state.add("w", w, g).add_generator("random", random, mend::PerRank{});
  mend::Session session{state, mend::Adam{.lr = 1e-2f}, comm, mend::ReplicaRecovery{},
                        mend::FullCheckpointer{mend::Directory{folder + "/ckpt"}, {.every = 10}}};
  session.train(steps, [&](mend::Step step) {
    const float noise = static_cast<float>(random() % 1000) * 1e-3f;
    for (std::size_t i = 0; i < g.size(); ++i)
      g[i] = w[i] * 0.1f + noise + static_cast<float>(i % 13);
    for (std::int64_t d : deaths) {
      const std::string mark =
          folder + "/died-" + std::to_string(d) + "-" + std::to_string(session.rank());
      if (step != mend::Step{d} || std::filesystem::exists(mark)) continue;
      std::ofstream{mark} << d;
      ::kill(::getpid(), SIGKILL);
    }
    return noise;
  });
  std::ofstream{folder + "/" + std::to_string(session.rank())}
      << state.hash().to_hex() << ' ' << session.durable_step().value() << '\n';
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
