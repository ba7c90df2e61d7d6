// expect: TrainState::add: a pointer does not say how many elements there are; wrap it:
// std::span{pointer, count}
#include <mend/core/train_state.hpp>

void wrong(float* w, float* g) {
  mend::TrainState state;
  state.add("w", w, g, {.shape = {3, 3}});
}
