// expect: Session: the same policy is given twice
#include <mend/mend.hpp>

#include <vector>

void wrong() {
  std::vector<float> w(10), g(10);
  mend::TrainState state;
  state.add("w", w, g);
  mend::comm::ThreadComm comm;
  mend::Session session{state, mend::Sgd{}, comm, mend::ReplicaRecovery{}, mend::ReplicaRecovery{}};
}
