// expect: the step function returns nothing or this rank's loss (float or double)
#include <mend/mend.hpp>

#include <vector>

void wrong() {
  std::vector<float> w(10), g(10);
  mend::TrainState state;
  state.add("w", w, g);
  mend::comm::ThreadComm comm;
  mend::Session session{state, mend::Sgd{}, comm};
  session.train(10, [](mend::Step) { return "loss"; });
}
