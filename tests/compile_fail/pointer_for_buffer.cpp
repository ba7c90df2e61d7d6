// expect: TrainState::add_buffer: a pointer does not say how many elements there are; wrap it:
// std::span{pointer, count}
#include <mend/core/train_state.hpp>

void wrong(float* mean) {
  mend::TrainState state;
  state.add_buffer("mean", mean, mend::PerRank{});
}
