// expect: TrainState::add: an element type that mend does not know; specialise mend::dtype_of for
// it
#include <mend/core/train_state.hpp>

#include <vector>

struct Half {
  unsigned short bits;
};

void wrong() {
  std::vector<Half> w(10), g(10);
  mend::TrainState state;
  state.add("w", w, g);
}
