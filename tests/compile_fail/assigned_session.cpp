// expect: use of deleted function 'mend::Session<U, Comm, Policies>& mend::Session<
// expect clang++: overload resolution selected deleted operator
#include <mend/mend.hpp>

#include <vector>

void wrong() {
  std::vector<float> w(10), g(10);
  mend::TrainState state;
  state.add("w", w, g);
  mend::comm::ThreadComm comm;
  mend::TrainState other;
  mend::Session session{state, mend::Sgd{}, comm}, second{other, mend::Sgd{}, comm};
  session = second;
}
