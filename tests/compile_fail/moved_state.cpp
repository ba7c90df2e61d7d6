// expect: use of deleted function 'mend::TrainState::TrainState(const mend::TrainState&)'
// expect clang++: call to deleted constructor of 'mend::TrainState'
#include <mend/mend.hpp>

#include <utility>
#include <vector>

void wrong() {
  std::vector<float> w(10), g(10);
  mend::TrainState state;
  state.add("w", w, g);
  mend::comm::ThreadComm comm;
  mend::TrainState moved = std::move(state);
}
