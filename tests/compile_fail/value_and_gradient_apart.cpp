// expect: TrainState::add: value and gradient must both be in host memory or both on the device
#include <mend/core/train_state.hpp>

#include <vector>

struct DeviceFloats {
  using element_type = float;
  float* elements;
  float* data() const { return elements; }
  unsigned long size() const { return 10; }
  static const mend::DeviceMemory& memory();
};

void wrong(DeviceFloats values) {
  std::vector<float> g(10);
  mend::TrainState state;
  state.add("w", values, g);
}
