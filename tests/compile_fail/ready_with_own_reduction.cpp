// expect: ready() is for gradients that mend reduces; OwnReduction does it itself
#include <mend/mend.hpp>

#include <vector>

void wrong() {
  std::vector<float> w(10), g(10);
  mend::TrainState state;
  state.add("w", w, g);
  mend::comm::ThreadComm comm;
  mend::Session session{state, mend::Sgd{}, comm, mend::OwnReduction{[] {}, [](int, int) {}}};
  session.train(10, [&](mend::Step) { session.ready("w"); });
}
