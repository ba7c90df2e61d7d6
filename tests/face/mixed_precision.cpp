// Parameters in 16 bits with a float master, parameter groups, gradient accumulation, a clipped
// norm, gradients that travel while the lambda goes on, and the best model kept as a file.
#include <mend/mend.hpp>

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <vector>

struct Brain {  // stands for a device's 16-bit type
  std::uint16_t bits = 0;
  operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
  Brain& operator=(float value) {  // drops the low half: what a cast in a kernel may do
    bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
    return *this;
  }
};
template <>
inline constexpr mend::DType mend::dtype_of<Brain> = mend::DType::bf16;

int main() {
  constexpr std::size_t n = 3000, plain = 2500;  // the last 500 are in a group of their own
  std::vector<Brain> params(n), grads(n);
  std::vector<float> master(n, 1);
  std::uint64_t rng = 42;
  float best = std::numeric_limits<float>::max();

  mend::TrainState state;
  state.add("body", std::span{master}.first(plain), std::span{grads}.first(plain))
      .add("head", std::span{master}.subspan(plain), std::span{grads}.subspan(plain),
           {.group = "fast"})
      .add_copy("body", std::span{params}.first(plain))
      .add_copy("head", std::span{params}.subspan(plain))
      .add_scalar("rng", rng, mend::PerRank{})
      .add_scalar("best", best);

  auto comm = mend::comm::join_tcp();
  auto warm = [](mend::Step s) { return 0.01 * std::min(1.0, double(s.value() + 1) / 20); };
  mend::PerGroup adam{mend::Adam{.lr = warm},
                      {{"fast", mend::Adam{.lr = [=](mend::Step s) { return 2 * warm(s); }}}}};
  mend::Session session{state, adam, comm, mend::ReplicaRecovery{}, mend::ClipNorm{10.0f}};
  auto scratch =
      std::filesystem::temp_directory_path() / ("mend-face-" + std::to_string(::getpid()));
  int saved = 0;
  session.train(
      150,
      [&](mend::Step) {
        float loss = 0;
        std::vector<float> sum(n);
        for (int micro = 0; micro < 2; ++micro)
          for (std::size_t i = 0; i < n; ++i) {
            rng = rng * 6364136223846793005 + 1442695040888963407;
            float error = master[i] - static_cast<float>(i % 4) * 0.5f;
            sum[i] += error / 2;
            loss += error * error / (2 * n);
            if (micro == 1) grads[i] = sum[i];
          }
        session.ready("body");
        return loss;
      },
      [&](const mend::Committed& done) {
        if (done.loss >= best || !done.step.every(50)) return;
        best = done.loss;
        ++saved;
        mend::save(state, scratch.string());
      });
  bool kept = std::filesystem::remove(scratch);
  std::printf("final %a %a\n", static_cast<double>(master[3]), static_cast<double>(master[n - 1]));
  // The copies are the master rounded to nearest, not cut off.
  bool close = true;
  for (std::size_t i = 0; i < n; ++i)
    close = close && std::abs(float(params[i]) - master[i]) <= std::abs(master[i]) / 256;
  return close && kept && saved >= 2 && std::abs(master[n - 1] - 1.5f) < 0.1f ? 0 : 1;
}
