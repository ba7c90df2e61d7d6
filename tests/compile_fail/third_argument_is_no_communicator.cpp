// expect: Session's third argument is a Communicator: rank(), size(), agree(); policies come after
// it
#include <mend/mend.hpp>

#include <vector>

void wrong() {
  std::vector<float> w(10), g(10);
  mend::TrainState state;
  state.add("w", w, g);
  mend::comm::ThreadComm comm;
  mend::ReplicaRecovery recovery;
  mend::Session session{state, mend::Sgd{}, recovery};
}
