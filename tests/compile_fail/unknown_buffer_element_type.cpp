// expect: TrainState::add_buffer: an element type that mend does not know; specialise
// mend::dtype_of for it
#include <mend/core/train_state.hpp>

#include <string>
#include <vector>

void wrong() {
  std::vector<std::string> names(10);
  mend::TrainState state;
  state.add_buffer("names", names);
}
