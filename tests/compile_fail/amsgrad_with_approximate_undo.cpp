// expect: ApproximateUndo needs a rule with revert (mend::InvertibleOptimizer); SnapshotUndo and
// PingPong serve every rule
#include <mend/mend.hpp>

#include <vector>

void wrong() {
  std::vector<float> w(10), g(10);
  mend::TrainState state;
  state.add("w", w, g);
  mend::comm::ThreadComm comm;
  mend::Session session{state, mend::AmsGrad{}, comm, mend::ApproximateUndo{}};
}
