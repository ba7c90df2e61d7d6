// A trainer that keeps its own optimizer: mend reduces, then calls it on all ranks or on none. Its
// state is no buffer, grows at the first step, and is restored with the rest.
#include <mend/mend.hpp>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <span>
#include <vector>

class RmsProp {
 public:
  void step(std::span<float> w, std::span<const float> g) {
    squares_.resize(w.size(), 1);
    for (std::size_t i = 0; i < w.size(); ++i) {
      squares_[i] = 0.75f * squares_[i] + 0.25f * g[i] * g[i];
      w[i] -= 0.0625f * g[i] / (std::sqrt(squares_[i]) + 1e-3f);
    }
    ++steps_;
  }
  [[nodiscard]] mend::Bytes save() const {
    auto bytes = std::as_bytes(std::span{squares_});
    return {bytes.begin(), bytes.end()};
  }
  void load(mend::ByteView bytes) {
    squares_.resize(bytes.size() / sizeof(float));
    if (!bytes.empty()) std::memcpy(squares_.data(), bytes.data(), bytes.size());
  }
  [[nodiscard]] int steps() const { return steps_; }

 private:
  std::vector<float> squares_;
  int steps_ = 0;
};

// With few enough bits for the sum of three equal ones, and so their mean, to be exact.
float coarse(float x) { return std::ldexp(std::round(std::ldexp(x, 12)), -12); }

int main() {
  std::vector<float> w(777), g(777);
  RmsProp optimizer;
  mend::TrainState state;
  state.add("w", w, g);
  state.add_state(
      "optimizer", [&] { return optimizer.save(); },
      [&](mend::ByteView bytes) { optimizer.load(bytes); }, mend::Replicated{});
  auto comm = mend::comm::join_tcp();
  mend::Session session{state, mend::OwnUpdate{[&](mend::Step) { optimizer.step(w, g); }}, comm,
                        mend::ReplicaRecovery{}, mend::SkipNonFinite{}};
  int skipped = 0;
  session.train(
      120,
      [&](mend::Step step) {
        for (std::size_t i = 0; i < w.size(); ++i) g[i] = coarse(w[i] - static_cast<float>(i % 5));
        if (step.every(40)) g[3] = HUGE_VALF;  // these three make no update, on any rank
      },
      [&](const mend::Committed& done) { skipped += done.skipped; });
  std::printf("final %a %a\n", static_cast<double>(w[0]), static_cast<double>(w[4]));
  return optimizer.steps() == 117 && skipped == 3 && std::abs(w[4] - 4) < 0.2f ? 0 : 1;
}
