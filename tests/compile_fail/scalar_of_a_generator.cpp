// expect: a random generator goes to add_generator, any other object to add_state
#include <mend/core/train_state.hpp>

#include <random>

void wrong() {
  std::mt19937_64 rng;
  mend::TrainState state;
  state.add_scalar("rng", rng);
}
