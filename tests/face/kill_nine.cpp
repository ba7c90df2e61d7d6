// Under a launcher, one worker is killed in the middle of its run and another one at its end; the
// bits are those of a run in which nothing failed.
#include <mend/mend.hpp>

#include <signal.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

// With few enough bits for the sum of three equal ones, and so their mean, to be exact.
float coarse(float x) { return std::ldexp(std::round(std::ldexp(x, 12)), -12); }

int main() {
  std::vector<float> w(20000, 1), g(20000);
  std::vector<double> v(3, 2), gv(3);
  std::uint64_t position = 0;
  mend::TrainState state;
  state.add("w", w, g).add("v", v, gv).add_scalar("position", position, mend::PerRank{});
  auto comm = mend::comm::join_tcp();
  mend::Session session{state, mend::Adam{.lr = 1e-2f}, comm, mend::ReplicaRecovery{}};
  auto dies = [&](int rank, int at, mend::Step step) {
    if (session.size() > 1 && session.rank() == rank && step == mend::Step{at} &&
        !comm.membership().replacement)
      ::raise(SIGKILL);
  };
  bool repeated = false;
  session.train(
      60,
      [&](mend::Step step) {
        ++position;
        for (std::size_t i = 0; i < w.size(); ++i)
          g[i] = coarse(w[i] * static_cast<float>((position + i) % 17) - 1);
        for (std::size_t i = 0; i < v.size(); ++i)
          gv[i] =
              static_cast<double>(coarse(static_cast<float>(v[i]))) * static_cast<double>(i + 1);
        dies(1, 20, step);
        dies(2, 59, step);
      },
      [&](const mend::Committed& done) { repeated = repeated || done.repeated; });
  double sum = 0;
  for (float x : w) sum += static_cast<double>(x);
  std::printf("final %a %a %a position %d\n", sum, v[0], v[2], static_cast<int>(position));
  return session.size() == 1 && repeated ? 1 : 0;
}
