#include <mend/mend.hpp>

#include <vector>

int committed_in_second_source() {
  std::vector<double> w(10), g(10);
  mend::TrainState state;
  state.add("w", w, g);
  auto comm = mend::comm::join_tcp();
  mend::Session session{state, mend::Momentum{.lr = 0.1, .beta = 0.9}, comm,
                        mend::ReplicaRecovery{}};
  int committed = 0;
  session.train(
      3, [](mend::Step) {}, [&](const mend::Committed&) { ++committed; });
  return committed;
}
