// expect: an undo policy needs a rule: mend cannot undo what OwnUpdate does
#include <mend/mend.hpp>

#include <vector>

void wrong() {
  std::vector<float> w(10), g(10);
  mend::TrainState state;
  state.add("w", w, g);
  mend::comm::ThreadComm comm;
  mend::OwnUpdate update{[](mend::Step) {}};
  mend::Session session{state, update, comm, mend::SnapshotUndo{}};
}
