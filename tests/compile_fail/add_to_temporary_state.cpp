// expect: passing 'mend::TrainState' as 'this' argument discards qualifiers
// expect clang++: expects an lvalue for object argument
#include <mend/core/train_state.hpp>

#include <vector>

void wrong() {
  std::vector<float> w(10), g(10);
  mend::TrainState{}.add("w", w, g);
}
