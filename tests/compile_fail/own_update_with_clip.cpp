// expect: ClipNorm and DynamicLossScale scale the gradients inside a rule; an OwnUpdate does that
// itself
#include <mend/mend.hpp>

#include <vector>

void wrong() {
  std::vector<float> w(10), g(10);
  mend::TrainState state;
  state.add("w", w, g);
  mend::comm::ThreadComm comm;
  mend::OwnUpdate update{[](mend::Step) {}};
  mend::Session session{state, update, comm, mend::ClipNorm{1}};
}
