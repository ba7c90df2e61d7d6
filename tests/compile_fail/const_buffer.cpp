// expect: TrainState::add_buffer needs a buffer that can be written
#include <mend/core/train_state.hpp>

#include <vector>

void wrong() {
  const std::vector<float> mean(10);
  mend::TrainState state;
  state.add_buffer("mean", mean);
}
