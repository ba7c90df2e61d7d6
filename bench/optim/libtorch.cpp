// mend's Adam step on one core against LibTorch's C++ torch::optim::Adam on the same tensors: those
// of GPT-2 small, 768 wide, with two of its twelve layers. In each moment both run once. Smaller
// sets are printed beside it: LibTorch pays for a call per operation where tensors are tiny, and
// for fresh memory where they are large.
#include <fmt/core.h>
#include <torch/optim/adam.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <torch/version.h>

#include <mend/kernel/host/apply.hpp>
#include <mend/kernel/host/simd.hpp>
#include <mend/optim/adam.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "bars.hpp"

namespace {

float value(std::uint64_t i) {  // of either sign, below a hundredth
  return static_cast<float>(i * 0x9e3779b97f4a7c15 >> 40) * 0x1p-30f - 0.005f;
}

struct Tensor {
  std::vector<float> p, m, v, g;
};

//! How many times as long LibTorch takes for a step. Both must come to the same parameters.
double ratio(std::string_view name, const std::vector<std::size_t>& sizes, int steps) {
  std::vector<torch::Tensor> theirs;
  std::vector<Tensor> ours;
  std::uint64_t at = 0;
  for (std::size_t n : sizes) {
    Tensor t{std::vector<float>(n), std::vector<float>(n), std::vector<float>(n),
             std::vector<float>(n)};
    for (std::size_t i = 0; i < n; ++i) {
      t.p[i] = value(at++);
      t.g[i] = value(at++);
    }
    const auto size = static_cast<std::int64_t>(n);
    theirs.push_back(torch::from_blob(t.p.data(), size).clone().set_requires_grad(true));
    theirs.back().mutable_grad() = torch::from_blob(t.g.data(), size).clone();
    ours.push_back(std::move(t));
  }
  torch::optim::Adam adam{theirs, torch::optim::AdamOptions{1e-3}};
  const mend::Adam rule{.lr = 1e-3};

  std::vector<double> their_seconds, our_seconds;
  for (int step = 0; step < steps; ++step) {
    double start = bench::seconds();
    adam.step();
    their_seconds.push_back(bench::seconds() - start);
    start = bench::seconds();
    const auto c = rule.at(mend::Step{step});
    for (Tensor& t : ours)
      mend::kernel::apply<mend::Adam>(c, t.p.data(), {t.m.data(), t.v.data()}, t.g.data(),
                                      t.p.size());
    our_seconds.push_back(bench::seconds() - start);
  }

  double worst = 0;
  for (std::size_t k = 0; k < ours.size(); ++k)
    for (std::size_t i = 0; i < ours[k].p.size(); ++i)
      worst = std::max(worst, std::abs(static_cast<double>(ours[k].p[i]) -
                                       static_cast<double>(theirs[k].data_ptr<float>()[i])));
  const double theirs_ms = 1e3 * bench::median(their_seconds);
  const double ours_ms = 1e3 * bench::median(our_seconds);
  fmt::print("  {:<30} {:8.2f} ms, mend {:7.2f} ms, {:5.2f} times; largest difference {:.0e}\n",
             name, theirs_ms, ours_ms, theirs_ms / ours_ms, worst);
  if (worst > 1e-6) {
    fmt::print("the two optimizers differ\n");
    std::exit(1);
  }
  return theirs_ms / ours_ms;
}

}  // namespace

int main() {
  torch::set_num_threads(1);
  fmt::print("one core, {}, LibTorch {}, a step:\n", name_of(mend::kernel::best_simd()),
             TORCH_VERSION);
  std::vector<std::size_t> gpt2;
  for (int layer = 0; layer < 2; ++layer)
    for (std::size_t n :
         {768 * 2304, 2304, 768 * 768, 768, 768 * 3072, 3072, 3072 * 768, 768, 768, 768, 768, 768})
      gpt2.push_back(n);
  ratio("1000 tensors of 1000", std::vector<std::size_t>(1000, 1000), 41);
  ratio("the layers alone, 14 million", gpt2, 41);
  gpt2.insert(gpt2.begin(), {50257 * 768, 1024 * 768});
  const double all = ratio("GPT-2 small, two layers", gpt2, 21);
  bench::bar("adam_vs_libtorch", all, 4, true);
}
