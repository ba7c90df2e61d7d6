// expect: Session: one of the policies is none of mend's kinds (recovery, reduction, undo,
// schedule, device, clip, sharding, check, trace)
#include <mend/mend.hpp>

#include <vector>

void wrong() {
  std::vector<float> w(10), g(10);
  mend::TrainState state;
  state.add("w", w, g);
  mend::comm::ThreadComm comm;
  mend::Session session{state, mend::Sgd{}, comm, 42};
}
