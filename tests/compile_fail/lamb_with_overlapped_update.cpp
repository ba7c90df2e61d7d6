// expect: overlapped updates are not for a rule that needs norms of whole tensors (Lamb,
// Lars); leave the undo policy out
#include <mend/mend.hpp>

#include <vector>

void wrong() {
  std::vector<float> w(10), g(10);
  mend::TrainState state;
  state.add("w", w, g);
  mend::comm::ThreadComm comm;
  mend::Session session{state, mend::Lamb{}, comm, mend::PingPong{}};
}
