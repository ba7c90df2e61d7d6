// examples/01_plain_loop after `mend` was added: the buffers are registered once and the loop
// handed over. Alone it trains as before; under `mendrun -n 3` three workers share each batch, and
// killing one of them (kill -9) does not matter.
#include <mend/mend.hpp>

#include "../01_plain_loop/spirals.hpp"

#include <cstdint>
#include <cstdio>

int main() {
  constexpr std::int64_t steps = 2'000;
  Network net;  // parameters and gradients in plain vectors

  mend::TrainState state;
  state.add("net", net.parameters, net.gradients);
  auto comm = mend::comm::join_tcp();  // alone when no launcher is there
  mend::Session session{state, mend::Adam{.lr = 1e-2f}, comm, mend::ReplicaRecovery{}};

  session.train(
      steps,
      [&](mend::Step step) {
        return net.forward_backward(batch(step.value(), session.rank(), session.size()));
      },
      [&](const mend::Committed& done) {
        if (done.step.every(500) && session.rank() == 0)
          std::printf("step %4d  loss %.4f\n", int(done.step), double(done.loss));
      });
  if (session.rank() == 0) std::printf("accuracy %.3f\n", double(net.accuracy()));
}
