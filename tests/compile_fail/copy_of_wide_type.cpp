// expect: TrainState::add_copy rounds to bf16 or f16
#include <mend/mend.hpp>

#include <vector>

void wrong() {
  std::vector<float> w(10), g(10);
  mend::TrainState state;
  state.add("w", w, g);
  mend::comm::ThreadComm comm;
  std::vector<float> low(10);
  state.add_copy("w", low);
}
