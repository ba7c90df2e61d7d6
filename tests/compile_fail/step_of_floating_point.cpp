// expect: cannot convert '1.0e+4' (type 'double') to type 'mend::Step'
// expect clang++: no known conversion from 'double' to 'mend::Step'
#include <mend/mend.hpp>

#include <vector>

void wrong() {
  std::vector<float> w(10), g(10);
  mend::TrainState state;
  state.add("w", w, g);
  mend::comm::ThreadComm comm;
  mend::Session session{state, mend::Sgd{}, comm};
  session.train(1e4, [](mend::Step) {});
}
