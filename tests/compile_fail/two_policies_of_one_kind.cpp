// expect: Session: two policies of one kind; undo, reduction and clip take one each
#include <mend/mend.hpp>

#include <vector>

void wrong() {
  std::vector<float> w(10), g(10);
  mend::TrainState state;
  state.add("w", w, g);
  mend::comm::ThreadComm comm;
  mend::Session session{state, mend::Sgd{}, comm, mend::SnapshotUndo{}, mend::RollForward{}};
}
