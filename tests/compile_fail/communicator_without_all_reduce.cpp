// expect: Session reduces gradients: the Communicator needs all_reduce(), or give OwnReduction
#include <mend/mend.hpp>

#include <vector>

struct Least {
  int rank() const { return 0; }
  int size() const { return 1; }
  bool agree(bool yes) { return yes; }
};

void wrong() {
  std::vector<float> w(10), g(10);
  mend::TrainState state;
  state.add("w", w, g);
  mend::comm::ThreadComm comm;
  Least least;
  mend::Session session{state, mend::Sgd{}, least};
}
