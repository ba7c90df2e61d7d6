// expect: use of deleted function 'mend::Traced::Traced(mend::trace::Recorder&&)'
// expect clang++: call to deleted constructor of 'mend::Traced'
#include <mend/mend.hpp>

#include <vector>

void wrong() {
  std::vector<float> w(10), g(10);
  mend::TrainState state;
  state.add("w", w, g);
  mend::comm::ThreadComm comm;
  mend::Session session{state, mend::Sgd{}, comm, mend::Traced{mend::trace::Recorder{}}};
}
