// What it costs to be able to take an Adam step back, one core: the same step with ExactUndo and
// PingPong against the bare one, and ExactUndo's undo against it; and how large the exact record
// is after 2, 10, 100 and 1000 steps. Parameters near N(0, 0.02), gradients of many sizes with
// heavy tails, one in fifty zero. Each step of a policy is timed next to a bare one, from the same
// state; then the state is put back.
#include <fmt/core.h>

#include <mend/core/arena.hpp>
#include <mend/kernel/host/exact.hpp>
#include <mend/kernel/host/simd.hpp>
#include <mend/optim/adam.hpp>
#include <mend/optim/undo/exact.hpp>
#include <mend/optim/undo/ping_pong.hpp>
#include <mend/optim/undo/roll_forward.hpp>
#include <mend/optim/undo/snapshot.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "bars.hpp"

namespace {

using mend::Adam;

//! Parameters, averages and gradients in arenas, trained up to some step.
class Model {
 public:
  explicit Model(std::size_t parameters)
      : n{parameters},
        memory_{mend::ByteCount{7 * n * sizeof(float)}},
        pool_(std::size_t{1} << 20) {
    auto* at = reinterpret_cast<float*>(memory_.data());
    for (float** array : {&p, &slots[0], &slots[1], &g, &before_[0], &before_[1], &before_[2]}) {
      *array = at;
      at += n;
    }
    std::student_t_distribution<float> tails{3};
    std::normal_distribution<float> normal;
    for (float& x : pool_) x = 1e-3f * tails(random_) * std::exp(normal(random_));
    for (std::size_t i = 0; i < n; ++i) p[i] = 0.02f * normal(random_);
  }

  //! The step to come is step t, its gradients are drawn.
  void train_to(int t) {
    for (; t_ < t; ++t_) {
      draw();
      mend::kernel::apply<Adam>(Adam{}.at(t_ - 1), p, slots, g, n);
    }
    draw();
    std::memcpy(before_[0], p, n * sizeof(float));
    for (std::size_t k = 0; k < 2; ++k) std::memcpy(before_[k + 1], slots[k], n * sizeof(float));
  }
  void put_back() {
    std::memcpy(p, before_[0], n * sizeof(float));
    for (std::size_t k = 0; k < 2; ++k) std::memcpy(slots[k], before_[k + 1], n * sizeof(float));
  }
  [[nodiscard]] bool is_back() const {
    return std::memcmp(p, before_[0], n * sizeof(float)) == 0 &&
           std::memcmp(slots[0], before_[1], n * sizeof(float)) == 0 &&
           std::memcmp(slots[1], before_[2], n * sizeof(float)) == 0;
  }
  [[nodiscard]] mend::UpdateRange<Adam, float> range() const {
    return {Adam{}.at(t_ - 1), p, slots, g, n, 1.0f};
  }
  [[nodiscard]] mend::UndoTensor tensor() const { return {n, mend::DType::f32, false}; }

  std::size_t n;
  float *p, *g;
  std::array<float*, 2> slots;

 private:
  void draw() {
    const std::size_t mask = pool_.size() - 1, offset = random_();
    for (std::size_t i = 0; i < n; ++i)
      g[i] = i % 50 == 7 ? 0 : pool_[(i * 7 + offset * (i >> 20 | 1)) & mask];
  }

  mend::Arena memory_;
  std::vector<float> pool_;
  std::array<float*, 3> before_;
  std::mt19937 random_{1};
  int t_ = 1;
};

template <class Policy>
class Side {
 public:
  explicit Side(Model& model) : model_{model} {
    const mend::UndoTensor tensor = model.tensor();
    record.reserve({&tensor, 1});
  }
  double apply() {
    const auto range = model_.range();
    const double start = bench::seconds();
    record.apply(0, 0, range);
    return bench::seconds() - start;
  }
  double revert() {
    const auto range = model_.range();
    const double start = bench::seconds();
    record.revert(0, 0, range);
    return bench::seconds() - start;
  }

  typename Policy::template Record<Adam> record;

 private:
  Model& model_;
};

//! Medians of adjacent pairs: a policy's step, and its undo, against the bare step.
template <class Policy>
std::pair<double, double> cost(Model& model) {
  Side<mend::RollForward> bare{model};
  Side<Policy> policy{model};
  std::vector<double> forward, undo, absolute;
  for (int i = 0; i < 25; ++i) {
    const double plain = bare.apply();
    model.put_back();
    const double with = policy.apply(), back = policy.revert();
    if (!model.is_back()) throw std::runtime_error{"not the same bits"};
    policy.record.drop();
    if (i == 0) continue;  // first touches of the record's memory
    absolute.push_back(plain);
    forward.push_back(with / plain);
    undo.push_back(back / plain);
  }
  fmt::print("  bare {:.3f} ns per parameter\n",
             bench::median(absolute) / static_cast<double>(model.n) * 1e9);
  return {bench::median(forward), bench::median(undo)};
}

//! The forward cost of the record alone at one width, chunk by chunk.
double cost_at(Model& model, mend::kernel::Simd simd) {
  constexpr std::size_t chunk = mend::undo_chunk;
  const std::size_t codes_bytes = mend::kernel::exact_codes_bytes<Adam>(chunk);
  mend::Arena codes{mend::ByteCount{model.n / chunk * codes_bytes}};
  std::vector<float> values(mend::kernel::exact_values_size<Adam>(chunk));
  std::vector<float> groups(mend::kernel::exact_groups_size<Adam>(chunk));
  std::vector<double> ratios;
  for (int i = 0; i < 12; ++i) {
    const auto range = model.range();
    double start = bench::seconds();
    mend::kernel::apply<Adam>(range.coefficients, range.p, range.slots, range.g, range.n, 1.0f,
                              simd);
    const double plain = bench::seconds() - start;
    model.put_back();
    start = bench::seconds();
    for (std::size_t at = 0; at < model.n; at += chunk) {
      const auto r = range.part(at, chunk);
      (void)mend::kernel::apply_exact<Adam>(
          r.coefficients, r.p, r.slots, r.g, r.n, 1.0f,
          {codes.data() + at / chunk * codes_bytes, values.data(), groups.data()}, simd);
    }
    const double with = bench::seconds() - start;
    model.put_back();
    if (i > 0) ratios.push_back(with / plain);
  }
  return bench::median(ratios);
}

}  // namespace

int main() {
  Model small{std::size_t{1} << 20};
  for (int t : {2, 10, 100, 1000}) {
    small.train_to(t);
    Side<mend::ExactUndo> exact{small};
    exact.apply();
    const double bits =
        8 * static_cast<double>(exact.record.used().value()) / static_cast<double>(small.n);
    exact.revert();
    if (!small.is_back()) throw std::runtime_error{"not the same bits"};
    fmt::print("exact record at t = {}: {:.2f} bits per parameter\n", t, bits);
    if (t == 100) bench::bar("exact_undo_bits_per_param", bits, 9, false);
  }

  Model model{std::size_t{16} << 20};
  for (int t : {1, 2, 10}) {
    model.train_to(t);
    fmt::print("t = {}\n", t);
    const auto [exact, undo] = cost<mend::ExactUndo>(model);
    fmt::print("  exact undo: forward {:.3f}, undo {:.3f} of a bare step\n", exact, undo);
  }
  model.train_to(100);
  fmt::print("t = 100\n");
  const auto [exact, undo] = cost<mend::ExactUndo>(model);
  const auto [ping_pong, swap] = cost<mend::PingPong>(model);
  const auto [snapshot, copy] = cost<mend::SnapshotUndo>(model);
  fmt::print("  snapshot: forward {:.3f}, undo {:.3f}; ping-pong's undo {:.3f}\n", snapshot, copy,
             swap);
  bench::bar("exact_undo_forward_cost", exact, 1.15, false);
  bench::bar("exact_undo_cost", undo, 1.25, false);
  bench::bar("pingpong_forward_cost", ping_pong, 1.25, false);
  if (mend::kernel::supported(mend::kernel::Simd::avx2))
    fmt::print("exact_undo_forward_cost_avx2 {:.3f} (reported)\n",
               cost_at(model, mend::kernel::Simd::avx2));
}
