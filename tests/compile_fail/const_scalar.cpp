// expect: TrainState::add_scalar needs a number that can be written
#include <mend/core/train_state.hpp>

void wrong(const float& scale) {
  mend::TrainState state;
  state.add_scalar("scale", scale);
}
