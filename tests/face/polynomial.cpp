// A data-parallel fit handed over to train(): every rank sees the same samples, so that any number
// of them must end with the same bits.
#include <mend/mend.hpp>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

struct Sample {
  float x, y;
};
Sample sample(mend::Step step, int i) {
  float x = static_cast<float>((step.value() * 7 + i * 13) % 64) / 32 - 1;
  return {x, 2 * x * x * x - x + 0.5f};
}

// With few enough bits for the sum of three equal ones, and so their mean, to be exact.
float coarse(float x) { return std::ldexp(std::round(std::ldexp(x, 12)), -12); }

int main() {
  std::vector<float> coefficients(4, 0.25f), slope(4);
  std::array<double, 4> visited{};  // a running statistic of this rank's own
  std::int64_t seen = 0;

  mend::TrainState state;
  state.add("coefficients", coefficients, slope, {.shape = {4}});
  state.add_buffer("visited", visited, mend::PerRank{});
  state.add_scalar("seen", seen);

  auto comm = mend::comm::join_tcp();
  mend::Session session{state, mend::Adam{.lr = 2e-2f}, comm, mend::ReplicaRecovery{}};
  float first = 0, last = 0;
  session.train(
      400,
      [&](mend::Step step) {
        float loss = 0;
        for (float& s : slope) s = 0;
        for (int i = 0; i < 8; ++i) {
          auto [x, y] = sample(step, i);
          float powers[4] = {1, x, x * x, x * x * x}, error = -y;
          for (int k = 0; k < 4; ++k)
            error += coefficients[static_cast<std::size_t>(k)] * powers[k];
          for (int k = 0; k < 4; ++k) slope[static_cast<std::size_t>(k)] += error * powers[k] / 8;
          loss += error * error / 8;
          visited[static_cast<std::size_t>(i % 4)] += static_cast<double>(x);
          ++seen;
        }
        for (float& s : slope) s = coarse(s);
        return coarse(loss);
      },
      [&](const mend::Committed& done) {
        if (done.step == mend::Step{0}) first = done.loss;
        last = done.loss;
        if (done.step.every(100) && session.rank() == 0)
          std::printf("loss %g\n", static_cast<double>(done.loss));
        if (done.loss < 1e-9f) session.request_stop();
      });
  std::printf("final %a %a %a %a after %d\n", static_cast<double>(coefficients[0]),
              static_cast<double>(coefficients[1]), static_cast<double>(coefficients[2]),
              static_cast<double>(coefficients[3]), static_cast<int>(session.step()));
  return last < first / 10 && seen == session.step().value() * 8 ? 0 : 1;
}
