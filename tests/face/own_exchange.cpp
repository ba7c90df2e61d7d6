// A trainer that reduces its gradients itself, by a library that mend knows nothing of.
#include <mend/mend.hpp>

#include <cstddef>
#include <cstdio>
#include <stdexcept>
#include <utility>
#include <vector>

struct Fabric {  // its reduction is of equal parts, so that it need not travel in this test
  int members = 0, rebuilt = 0;
  bool broken = false;
  void connect(int /*rank*/, int size) {
    members = size;
    broken = false;
    ++rebuilt;
  }
  void average(std::vector<float>& values) {
    if (broken) throw std::runtime_error{"the fabric is down"};
    for (float& x : values) x = x * static_cast<float>(members) / static_cast<float>(members);
  }
};

int main() {
  std::vector<float> weights(600, 1), gradient(600);
  Fabric fabric;
  mend::TrainState state;
  state.add("weights", weights, gradient);
  auto comm = mend::comm::join_tcp();
  mend::Session session{
      state, mend::Sgd{.lr = 0.125f}, comm, mend::ReplicaRecovery{},
      mend::OwnReduction{.abort = [&] { fabric.broken = true; },
                         .rebuild = [&](int rank, int size) { fabric.connect(rank, size); }}};
  session.train(64, [&](mend::Step step) {
    for (std::size_t i = 0; i < gradient.size(); ++i)
      gradient[i] =
          weights[i] - static_cast<float>((i + static_cast<std::size_t>(step.value())) % 3);
    fabric.average(gradient);
  });
  std::printf("final %a %a\n", static_cast<double>(weights[0]), static_cast<double>(weights[599]));
  return fabric.rebuilt == 1 && fabric.members == session.size() ? 0 : 1;
}
