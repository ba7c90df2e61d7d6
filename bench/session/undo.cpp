// The cost of SnapshotUndo's copies against RollForward, which keeps nothing: the same training
// step, interleaved.
#include <mend/mend.hpp>

#include "bars.hpp"

#include <cstddef>
#include <optional>
#include <vector>

namespace {

constexpr std::size_t parameters = std::size_t{4} << 20;

template <class... Policies>
struct Trainer {
  mend::TrainState state;
  std::pair<std::span<float>, std::span<float>> tensor =
      state.make<float>("w", {std::int64_t(parameters)});
  mend::comm::Tcp comm;  // a group of one
  mend::Session<mend::Adam, mend::comm::Tcp, mend::ReplicaRecovery, Policies...> session{
      state, mend::Adam{}, comm, mend::ReplicaRecovery{}, Policies{}...};

  double step() {
    double begin = bench::seconds();
    for (float& g : tensor.second) g = 1e-3f;  // the lightest backward pass there is
    session.next(1 << 20);
    return bench::seconds() - begin;
  }
};

}  // namespace

int main() {
  Trainer<> roll_forward;
  Trainer<mend::SnapshotUndo> snapshot;
  std::vector<double> a, b;
  for (int i = 0; i < 60; ++i) {
    double x = roll_forward.step(), y = snapshot.step();
    if (i < 10) continue;
    a.push_back(x);
    b.push_back(y);
  }
  fmt::print("roll forward {:.3f} ms, snapshot {:.3f} ms per step ({} parameters)\n",
             bench::median(a) * 1e3, bench::median(b) * 1e3, parameters);
  // A copy of 12 bytes per parameter beside an update that moves 28: reported, with room for noise.
  bench::bar("snapshot_undo_vs_roll_forward", bench::median(b) / bench::median(a), 2.5, false);
}
