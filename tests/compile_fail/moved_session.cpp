// expect: use of deleted function 'mend::Session<U, Comm, Policies>::Session(const mend::Session<
// expect clang++: call to deleted constructor of
#include <mend/mend.hpp>

#include <utility>
#include <vector>

void wrong() {
  std::vector<float> w(10), g(10);
  mend::TrainState state;
  state.add("w", w, g);
  mend::comm::ThreadComm comm;
  mend::Session session{state, mend::Sgd{}, comm};
  auto moved = std::move(session);
}
