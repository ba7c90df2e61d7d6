// timings [ELEMENTS]: how fast the kernels run on this device, in one `bar` line each: what a
// kernel moves per second, as a share of what a copy on the device moves, measured in the same run.

#include <cuda_runtime.h>

#include <mend/core/dtype.hpp>
#include <mend/kernel/cuda/apply.cuh>
#include <mend/kernel/cuda/buffer.cuh>
#include <mend/kernel/cuda/copy.cuh>
#include <mend/kernel/cuda/device.cuh>
#include <mend/kernel/cuda/exact.cuh>
#include <mend/kernel/cuda/finite.cuh>
#include <mend/kernel/cuda/hash.cuh>
#include <mend/kernel/cuda/launch.cuh>
#include <mend/kernel/cuda/norms.cuh>
#include <mend/kernel/cuda/pack.cuh>
#include <mend/kernel/cuda/reduce.cuh>
#include <mend/kernel/cuda/rule_norms.cuh>
#include <mend/optim/adam.hpp>
#include <mend/optim/lamb.hpp>
#include <mend/optim/sgd.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <span>
#include <vector>

#include "cuda/device.hpp"

namespace {

using mend::DType;
using mend::cuda::Buffer;
using mend::cuda::check;

class Event {
 public:
  Event() { check(cudaEventCreate(&event_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { (void)cudaEventDestroy(event_); }
  operator cudaEvent_t() const { return event_; }  // NOLINT

 private:
  cudaEvent_t event_ = nullptr;
};

//! The median time of a run in milliseconds, after some to warm up; before: what comes before each,
//! untimed.
double milliseconds(
    const test::Stream& stream, const std::function<void()>& run,
    const std::function<void()>& before = [] {}) {
  constexpr int warm_up = 3, runs = 15;
  const Event begin, end;
  std::vector<float> times;
  for (int i = 0; i < warm_up + runs; ++i) {
    before();
    check(cudaEventRecord(begin, stream));
    run();
    check(cudaEventRecord(end, stream));
    check(cudaEventSynchronize(end));
    float time = 0;
    check(cudaEventElapsedTime(&time, begin, end));
    if (i >= warm_up) times.push_back(time);
  }
  std::nth_element(times.begin(), times.begin() + runs / 2, times.end());
  return static_cast<double>(times[runs / 2]);
}

void bar(const char* name, double value, double limit, bool at_least) {
  const bool ok = at_least ? value >= limit : value <= limit;
  std::printf("bar %s %.3f %.2f %s\n", name, value, limit, ok ? "ok" : "short");
}

//! Numbers of either sign around 2^-7, other ones for every seed.
__global__ void noise(float* to, std::size_t n, std::uint32_t seed) {
  const std::size_t all = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += all) {
    std::uint32_t x = static_cast<std::uint32_t>(i) * 0x9e3779b9u + seed * 0x85ebca6bu;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    to[i] = static_cast<float>(static_cast<std::int32_t>(x ^ x >> 16)) * 0x1p-37f;
  }
}

class Timings {
 public:
  explicit Timings(std::size_t n) : n_{n} {
    for (auto& array : arrays_) {
      array = Buffer<float>{n};
      // 0x3c3c3c3c is 0.0115: an ordinary number, so that nothing takes a rare path.
      check(cudaMemsetAsync(array.data(), 0x3c, 4 * n, stream_));
    }
    const double copy = milliseconds(
        stream_, [&] { mend::cuda::copy_async<float>(arrays_[0], arrays_[1], stream_); });
    copied_ = 8 * static_cast<double>(n) / copy;
    std::printf("a device copy moves %.0f GB/s\n", copied_ / 1e6);
  }

  void run() {
    updates();
    norms();
    moves();
    exact_undo();
  }

 private:
  //! bytes: what a run has to move, per element.
  double share(double bytes, const std::function<void()>& body) {
    return bytes * static_cast<double>(n_) / milliseconds(stream_, body) / copied_;
  }
  [[nodiscard]] std::vector<mend::cuda::ConstTensor> tensor(DType type) const {
    return {{arrays_[0].data(), type, type == DType::bf16 ? 2 * n_ : n_}};
  }
  //! Cut as a model is: many small tensors, some large.
  template <class Rule>
  mend::cuda::Parameters<Rule> parameters(bool many) const {
    std::vector<mend::cuda::Parameter<Rule>> all;
    std::size_t at = 0;
    for (std::size_t i = 0; at < n_; ++i) {
      const std::size_t size = std::min(n_ - at, many ? (i % 2 == 0 ? 768 : 65536) : n_);
      mend::cuda::Parameter<Rule> p{
          arrays_[0].data() + at, {}, arrays_[3].data() + at, DType::f32, size};
      if constexpr (Rule::slots.size() == 2)
        for (std::size_t k = 0; k < 2; ++k) p.slots[k] = arrays_[1 + k].data() + at;
      all.push_back(p);
      at += size;
    }
    return mend::cuda::parameters<Rule>(std::move(all), stream_);
  }

  void updates() {
    const auto one = parameters<mend::Adam>(false), many = parameters<mend::Adam>(true);
    const auto c = mend::Adam{}.at(10);
    bar("cuda_adam_bandwidth", share(28, [&] { mend::cuda::apply_async(one, c, 1, stream_); }), 0.9,
        true);
    bar("cuda_adam_many_bandwidth",
        share(28, [&] { mend::cuda::apply_async(many, c, 1, stream_); }), 0.85, true);
    bar("cuda_adam_revert_bandwidth",
        share(28, [&] { mend::cuda::revert_async(one, c, 1, stream_); }), 0.85, true);
    const auto plain = parameters<mend::Sgd>(false);
    bar("cuda_sgd_bandwidth",
        share(12, [&] { mend::cuda::apply_async(plain, mend::Sgd{}.at(0), 1, stream_); }), 0.9,
        true);
  }

  void norms() {
    mend::cuda::SquareSums floats{tensor(DType::f32), stream_},
        halves{tensor(DType::bf16), stream_};
    bar("cuda_sum_of_squares_bandwidth", share(4, [&] { floats.compute_async(stream_); }), 0.7,
        true);
    bar("cuda_sum_of_squares_bf16_bandwidth", share(4, [&] { halves.compute_async(stream_); }), 0.5,
        true);
    const auto lamb = parameters<mend::Lamb>(true);
    mend::cuda::RuleNorms<mend::Lamb> of_rule{lamb, stream_};
    bar("cuda_lamb_norms_bandwidth",
        share(16, [&] { of_rule.compute_async(mend::Lamb{}.at(3), 1, stream_); }), 0.7, true);
    mend::cuda::FiniteCheck finite{tensor(DType::f32), stream_};
    bar("cuda_all_finite_bandwidth", share(4, [&] { finite.compute_async(stream_); }), 0.85, true);
    mend::cuda::Hashes hashes{{{reinterpret_cast<const std::byte*>(arrays_[0].data()), 4 * n_}},
                              stream_};
    bar("cuda_hash_bandwidth", share(4, [&] { hashes.compute_async(stream_); }), 0.5, true);
  }

  void moves() {
    float *a = arrays_[0].data(), *b = arrays_[1].data();
    bar("cuda_accumulate_bandwidth",
        share(12, [&] { mend::cuda::accumulate_async(DType::f32, a, b, n_, stream_); }), 0.9, true);
    bar("cuda_mean_bandwidth",
        share(8, [&] { mend::cuda::scale_to_mean_async(DType::f32, a, n_, 3, stream_); }), 0.85,
        true);
    bar("cuda_from_float_bandwidth",
        share(6, [&] { mend::cuda::from_float_async(DType::bf16, a, b, n_, stream_); }), 0.85,
        true);
    bar("cuda_to_float_bandwidth",
        share(6, [&] { mend::cuda::to_float_async(DType::f16, a, b, n_, stream_); }), 0.85, true);

    std::vector<mend::cuda::span<std::byte>> tensors;
    for (std::size_t at = 0; at + 1000 <= n_; at += 1000)
      tensors.emplace_back(reinterpret_cast<std::byte*>(a + at), 4 * 1000);
    const mend::cuda::Packing packing{tensors, stream_};
    const Buffer<std::byte> packed{packing.size()};
    bar("cuda_gather_bandwidth", share(8, [&] { packing.gather_async(packed, stream_); }), 0.7,
        true);
    bar("cuda_scatter_bandwidth", share(8, [&] { packing.scatter_async(packed, stream_); }), 0.7,
        true);
  }

  //! In the state that Adam reaches after a hundred steps.
  void exact_undo() {
    const auto parameters = this->parameters<mend::Adam>(false);
    for (Buffer<float>& array : arrays_)
      check(cudaMemsetAsync(array.data(), 0, array.size() * sizeof(float), stream_));
    std::uint32_t step = 0;
    for (; step < 100; ++step) {
      mend::cuda::Launch{1024, stream_}(&noise, arrays_[3].data(), n_, step);
      mend::cuda::apply_async(parameters, mend::Adam{}.at(step), 1, stream_);
    }
    const auto c = mend::Adam{}.at(step);
    mend::cuda::ExactRecord<mend::Adam> record{parameters, n_ / 4, stream_};
    const auto apply = [&] { record.apply_async(c, 1, stream_); };
    const auto revert = [&] { record.revert_async(c, 1, stream_); };
    apply();
    if (!record.complete(stream_)) std::printf("the record had to grow\n");
    apply();
    std::printf("the record holds %.1f bits a parameter\n",
                8 * static_cast<double>(record.bytes()) / static_cast<double>(n_));
    const double forward = milliseconds(stream_, apply, revert);
    const double back = milliseconds(stream_, revert, apply);
    revert();
    const double plain =
        milliseconds(stream_, [&] { mend::cuda::apply_async(parameters, c, 1, stream_); });
    bar("cuda_exact_undo_forward_cost", forward / plain, 1.15, false);
    bar("cuda_exact_undo_cost", back / plain, 1.25, false);
  }

  std::size_t n_;
  test::Stream stream_;
  Buffer<float> arrays_[4];
  double copied_ = 1;  // bytes per millisecond
};

}  // namespace

int main(int argc, char** argv) {
  try {
    const mend::cuda::Device device = mend::cuda::Device::current();
    std::printf("%s, %d multiprocessors\n", device.name.c_str(), device.processors);
    Timings{argc > 1 ? std::strtoull(argv[1], nullptr, 10) : std::size_t{1} << 27}.run();
  } catch (const std::exception& e) {
    std::printf("%s\n", e.what());
    return 1;
  }
}
