// expect: ReplicaRecovery needs a Communicator whose members can be replaced; the one given to
// Session has no coordinator
#include <mend/mend.hpp>

#include <vector>

struct Plain {
  int rank() const { return 0; }
  int size() const { return 1; }
  void all_reduce(mend::comm::Buffer) {}
  bool agree(bool yes) { return yes; }
};

void wrong() {
  std::vector<float> w(10), g(10);
  mend::TrainState state;
  state.add("w", w, g);
  mend::comm::ThreadComm comm;
  Plain plain;
  mend::Session session{state, mend::Sgd{}, plain, mend::ReplicaRecovery{}};
}
