// expect: TrainState::add does not copy: a temporary container would be gone before the first step
#include <mend/core/train_state.hpp>

#include <vector>

void wrong() {
  std::vector<float> g(10);
  mend::TrainState state;
  state.add("w", std::vector<float>(10), g);
}
