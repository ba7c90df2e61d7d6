// expect: use of deleted function 'mend::Session<U, Comm, Policies>::Session(mend::TrainState&&,
// expect clang++: call to deleted constructor of 'mend::Session<
#include <mend/mend.hpp>

#include <vector>

void wrong() {
  std::vector<float> w(10), g(10);
  mend::TrainState state;
  state.add("w", w, g);
  mend::comm::ThreadComm comm;
  mend::Session session{mend::TrainState{}, mend::Sgd{}, comm};
}
