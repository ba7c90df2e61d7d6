// Layers of which each is updated as soon as its gradients are reduced, while the layer before it
// is still computed; undone exactly when a worker dies in between.
#include <mend/mend.hpp>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

struct Layer {
  std::vector<float> w, g;
};

// With few enough bits for the sum of three equal ones, and so their mean, to be exact.
float coarse(float x) { return std::ldexp(std::round(std::ldexp(x, 12)), -12); }

int main() {
  std::vector<Layer> layers(4, {std::vector<float>(3000, 2), std::vector<float>(3000)});
  mend::TrainState state;
  for (std::size_t i = 0; i < layers.size(); ++i)
    state.add("layer" + std::to_string(i), layers[i].w, layers[i].g);
  auto comm = mend::comm::join_tcp();
  mend::AdamW rule{
      .lr = mend::WarmUp{.steps = 20, .then = mend::CosineDecay{.lr = 0.1, .steps = 180}},
      .weight_decay = 0.01};
  mend::Session session{state, rule, comm, mend::ReplicaRecovery{}, mend::ExactUndo{}};
  session.train(200, [&](mend::Step) {
    for (std::size_t i = layers.size(); i-- > 0;) {
      Layer& layer = layers[i];
      for (std::size_t k = 0; k < layer.w.size(); ++k)
        layer.g[k] = coarse(layer.w[k] - static_cast<float>(k % 3));
      session.ready("layer" + std::to_string(i));
    }
  });
  std::printf("final %s\n", state.hash().to_hex().c_str());
  return std::abs(layers[0].w[2] - 2) < 0.2f && session.undo_bytes() > mend::ByteCount{} ? 0 : 1;
}
