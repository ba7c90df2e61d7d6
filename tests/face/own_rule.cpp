// A user's own update rule, written once over an abstract number, checked, and trained with.
#include <mend/mend.hpp>
#include <mend/optim/check_rule.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string_view>
#include <vector>

struct HeavyBall {
  mend::LearningRate lr = 1e-2f;
  double friction = 0.5;
  static constexpr std::array<std::string_view, 1> slots{"velocity"};
  struct Coefficients {
    double lr, kept;
  };
  Coefficients at(mend::Step applied) const { return {lr(applied), 1 - friction}; }
  template <class Real>
  MEND_RULE static void apply(Real& p, mend::Slots<Real, 1>& s, Real g, const auto& c) {
    s[0] = fma(c.kept, s[0], c.lr * g);
    p = p - s[0];
  }
  template <class Real>
  MEND_RULE static void revert(Real& p, mend::Slots<Real, 1>& s, Real g, const auto& c) {
    p = p + s[0];
    s[0] = (s[0] - c.lr * g) / c.kept;
  }
};
static_assert(mend::InvertibleOptimizer<HeavyBall>);

// With few enough bits for the sum of three equal ones, and so their mean, to be exact.
float coarse(float x) { return std::ldexp(std::round(std::ldexp(x, 12)), -12); }

int main() {
  if (!mend::check_rule<HeavyBall>()) return 2;
  std::vector<float> w(5000, 3), g(5000);
  mend::TrainState state;
  state.add("w", w, g);
  auto comm = mend::comm::join_tcp();
  HeavyBall rule{.lr = [](mend::Step applied) { return applied.value() < 50 ? 0.25 : 0.125; }};
  mend::Session session{state, rule, comm, mend::ReplicaRecovery{}, mend::SnapshotUndo{}};
  session.train(100, [&](mend::Step) {
    for (std::size_t i = 0; i < w.size(); ++i) g[i] = coarse(w[i] - static_cast<float>(i % 2));
    session.ready("w");  // reduced, and updated, before the lambda returns
  });
  std::printf("final %a %a\n", static_cast<double>(w[0]), static_cast<double>(w[4999]));
  return std::abs(w[0]) < 1e-3f && std::abs(w[4999] - 1) < 1e-3f ? 0 : 1;
}
