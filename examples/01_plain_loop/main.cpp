// A training loop as it stands in many programs: no library, one process, and a crash costs the
// run. examples/02_guarded_loop is the same program after `mend` was added; diff the two.
#include "spirals.hpp"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

int main() {
  constexpr std::int64_t steps = 2'000;
  Network net;  // parameters and gradients in plain vectors

  std::vector<float> m(net.parameters.size()), v(net.parameters.size());
  for (std::int64_t step = 0; step < steps; ++step) {
    float loss = net.forward_backward(batch(step, 0, 1));
    float c1 = 1 - std::pow(0.9f, float(step + 1)), c2 = 1 - std::pow(0.999f, float(step + 1));
    for (std::size_t i = 0; i < m.size(); ++i) {  // Adam
      float g = net.gradients[i];
      m[i] = 0.9f * m[i] + 0.1f * g;
      v[i] = 0.999f * v[i] + 0.001f * g * g;
      net.parameters[i] -= 1e-2f * (m[i] / c1) / (std::sqrt(v[i] / c2) + 1e-8f);
    }
    if (step % 500 == 0) std::printf("step %4d  loss %.4f\n", int(step), double(loss));
  }
  std::printf("accuracy %.3f\n", double(net.accuracy()));
}
