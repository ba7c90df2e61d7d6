// What a session costs when nothing fails: a step of train() against the same step written by hand
// (the same lambda, all-reduce and rule), interleaved in one run of two ranks.
#include <mend/mend.hpp>

#include "bars.hpp"

#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace {

constexpr std::size_t parameters = std::size_t{1} << 20;
constexpr int steps = 80;

// Stands for forward and backward: matrix products, and gradients that depend on the parameters.
void forward_backward(std::span<const float> w, std::span<float> g, std::vector<float>& scratch) {
  constexpr std::size_t n = 256;
  scratch.resize(n * n);
  for (int repeat = 0; repeat < 6; ++repeat)
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t k = 0; k < n; ++k) {
        float a = w[i * n + k];
        for (std::size_t j = 0; j < n; ++j) scratch[i * n + j] += a * w[k * n + j];
      }
  for (std::size_t i = 0; i < g.size(); ++i) g[i] = w[i] * 0.01f + scratch[i % (n * n)] * 1e-9f;
}

struct Model {
  mend::Arena memory{mend::ByteCount{4 * parameters * sizeof(float)}};
  std::span<float> part(std::size_t i) {
    return {reinterpret_cast<float*>(memory.data()) + i * parameters, parameters};
  }
};

}  // namespace

int main() {
  std::vector<double> bare, guarded;
  mend::comm::Threads cluster{{.ranks = 2}};
  mend::comm::Outcome outcome = cluster.run([&](mend::comm::ThreadComm& comm) {
    Model by_hand, by_mend;
    std::vector<float> scratch;
    for (float& x : by_hand.part(0)) x = 0.01f;
    for (float& x : by_mend.part(0)) x = 0.01f;
    mend::TrainState state;
    state.add("w", by_mend.part(0), by_mend.part(1));
    mend::Adam rule{.lr = 1e-3f};
    mend::Session session{state, rule, comm, mend::ReplicaRecovery{}};
    double begin = 0, committed = 0;
    session.train(
        steps,
        [&](mend::Step step) {
          // The session's own step reaches from its lambda to its next one, the bare step cut out.
          double entered = bench::seconds();
          auto p = by_hand.part(0), g = by_hand.part(1);
          comm.barrier();
          double t0 = bench::seconds();
          forward_backward(p, g, scratch);
          comm.all_reduce(g);
          mend::kernel::apply<mend::Adam>(rule.at(step), p.data(),
                                          {by_hand.part(2).data(), by_hand.part(3).data()},
                                          g.data(), g.size());
          comm.barrier();
          double t1 = bench::seconds();
          if (comm.rank() == 0 && step.value() > 5) {
            bare.push_back(t1 - t0);
            guarded.push_back(committed - begin + (entered - committed));
          }
          begin = bench::seconds();
          forward_backward(by_mend.part(0), by_mend.part(1), scratch);
          return 0.0f;
        },
        [&](const mend::Committed&) { committed = bench::seconds(); });
  });
  if (!outcome.finished) {
    fmt::print(stderr, "{}\n", outcome.reason);
    return 1;
  }
  double a = bench::median(bare), b = bench::median(guarded);
  fmt::print("by hand {:.3f} ms, in a session {:.3f} ms per step (2 ranks, {} parameters)\n",
             a * 1e3, b * 1e3, parameters);
  bench::bar("session_overhead", b / a, 1.01, false);
}
