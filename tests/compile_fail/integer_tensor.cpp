// expect: TrainState::add: only floating-point tensors are trained; use add_buffer
#include <mend/core/train_state.hpp>

#include <vector>

void wrong() {
  std::vector<int> w(10), g(10);
  mend::TrainState state;
  state.add("w", w, g);
}
