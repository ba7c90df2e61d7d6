// expect: TrainState::add_buffer does not copy: a temporary container would be gone before the
// first step
#include <mend/core/train_state.hpp>

#include <vector>

void wrong() {
  mend::TrainState state;
  state.add_buffer("mean", std::vector<float>(10));
}
