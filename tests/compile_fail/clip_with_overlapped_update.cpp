// expect: overlapped updates begin before the last gradient is known: ClipNorm, SkipNonFinite and
// DynamicLossScale need all of them first; leave the undo policy out
#include <mend/mend.hpp>

#include <vector>

void wrong() {
  std::vector<float> w(10), g(10);
  mend::TrainState state;
  state.add("w", w, g);
  mend::comm::ThreadComm comm;
  mend::Session session{state, mend::Sgd{}, comm, mend::ClipNorm{1}, mend::SnapshotUndo{}};
}
