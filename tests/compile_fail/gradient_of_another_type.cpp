// expect: TrainState::add: gradient and value differ in type; only a float master may take a
// narrower gradient
#include <mend/core/train_state.hpp>

#include <vector>

void wrong() {
  std::vector<float> w(10);
  std::vector<double> g(10);
  mend::TrainState state;
  state.add("w", w, g);
}
