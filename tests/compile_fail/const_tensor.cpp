// expect: TrainState::add needs buffers that can be written: value and gradient are restored in
// place
#include <mend/core/train_state.hpp>

#include <vector>

void wrong() {
  const std::vector<float> w(10);
  std::vector<float> g(10);
  mend::TrainState state;
  state.add("w", w, g);
}
