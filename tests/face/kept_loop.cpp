// A trainer that keeps its loop: asking for the next step commits the one before. Doubles, a
// clipped norm, and a target that Momentum reaches by itself.
#include <mend/mend.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <vector>

// With few enough bits for the sum of three equal ones, and so their mean, to be exact.
double coarse(double x) { return std::ldexp(std::round(std::ldexp(x, 30)), -30); }

int main() {
  std::vector<double> position(256), pull(256);
  mend::TrainState state;
  state.add("position", position, pull);
  auto comm = mend::comm::join_tcp();
  mend::Session session{state, mend::Momentum{.lr = 0.05, .beta = 0.8}, comm,
                        mend::ReplicaRecovery{}, mend::ClipNorm{4.0f}};
  int steps = 0;
  float norm = 0;
  while (auto step = session.next(300)) {
    if (session.committed()) norm = session.committed()->gradient_norm;
    for (std::size_t i = 0; i < pull.size(); ++i)
      pull[i] = coarse(position[i] - 1 / static_cast<double>(i + 1));
    steps += *step >= mend::Step{0};
  }
  double worst = 0, sum = 0;
  for (std::size_t i = 0; i < position.size(); ++i) {
    worst = std::max(worst, std::abs(position[i] - 1 / static_cast<double>(i + 1)));
    sum += position[i];
  }
  std::printf("final %a\n", sum);
  return steps == 300 && worst < 1e-3 && norm < 1e-2f ? 0 : 1;
}
