// examples/02_guarded_loop with one policy more: kill all its workers, launcher and all, and start
// the same line again. It goes on from its last checkpoint, on as many workers as you like:
//
//   mendrun -n 3 04_checkpoint DIRECTORY
#include <mend/mend.hpp>

#include "../01_plain_loop/spirals.hpp"

#include <cstdint>
#include <cstdio>
#include <exception>

int main(int argc, char** argv) try {
  constexpr std::int64_t steps = 20'000;
  const char* directory = argc > 1 ? argv[1] : "spirals.ckpt";
  Network net;

  mend::TrainState state;
  state.add("net", net.parameters, net.gradients);
  auto comm = mend::comm::join_tcp();
  mend::Session session{
      state, mend::Adam{.lr = 1e-2f}, comm, mend::ReplicaRecovery{},
      mend::FullCheckpointer{mend::Directory{directory}, {.every = 500, .keep = 2}}};

  bool first = true;
  session.train(
      steps,
      [&](mend::Step step) {
        if (first && step > mend::Step{0} && session.rank() == 0)
          std::printf("goes on at step %d\n", int(step));
        first = false;
        return net.forward_backward(batch(step.value(), session.rank(), session.size()));
      },
      [&](const mend::Committed& done) {
        if (!done.step.every(2'000) || session.rank() != 0) return;
        std::printf("step %5d  loss %.4f  durable %d\n", int(done.step), double(done.loss),
                    int(session.durable_step()));
        std::fflush(stdout);
      });
  if (session.rank() != 0) return 0;
  std::printf("accuracy %.3f, hash %s\n", double(net.accuracy()), state.hash().to_hex().c_str());
  if (session.durable_step() != session.step())
    std::printf("the end is not durable: %s\n", session.checkpoint_error().c_str());
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
