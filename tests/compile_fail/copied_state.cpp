// expect: use of deleted function 'mend::TrainState::TrainState(const mend::TrainState&)'
// expect clang++: call to deleted constructor of 'mend::TrainState'
#include <mend/mend.hpp>

#include <vector>

void wrong() {
  std::vector<float> w(10), g(10);
  mend::TrainState state;
  state.add("w", w, g);
  mend::comm::ThreadComm comm;
  std::vector<float> w2(10), g2(10);
  auto s2 = state.add("w2", w2, g2);  // add returns a reference to the state
}
