// expect: TrainState::add_generator takes what << and >> write and read whole
#include <mend/core/train_state.hpp>

#include <random>

void wrong() {
  std::random_device entropy;
  mend::TrainState state;
  state.add_generator("entropy", entropy);
}
