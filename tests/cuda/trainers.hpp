#pragma once

#include <mend/mend_cuda.cuh>

#include <mend/comm/threads.hpp>
#include <mend/kernel/host/half.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device.hpp"

namespace test {

struct BFloat16 {
  std::uint16_t bits;
};

}  // namespace test

template <>
inline constexpr mend::DType mend::dtype_of<test::BFloat16> = mend::DType::bf16;

namespace test {

using namespace mend;
using comm::Fault;
using comm::ThreadComm;

inline constexpr std::size_t large = 9000, small = 5;

//! The gradient of step s on a rank: the same numbers for host and device.
inline float gradient(Step s, int rank, std::size_t i) {
  return number<float>(
      i * 31 + static_cast<std::size_t>(s.value()) * 7919 + static_cast<std::size_t>(rank) * 104729,
      4);
}
inline std::vector<BFloat16> narrow(const std::vector<float>& values) {
  std::vector<BFloat16> low;
  for (float x : values) low.push_back({kernel::float_to_bf16(x)});
  return low;
}

//! A large float tensor with a bf16 copy, a small one in doubles, a master with a bf16 gradient, a
//! buffer that the step changes; in host memory.
struct OnHost {
  std::vector<float> a{std::vector<float>(large, 0.5f)}, ga{std::vector<float>(large)},
      c{std::vector<float>(small, 2)}, mean{std::vector<float>(3)};
  std::vector<double> b{std::vector<double>(small, 1)}, gb{std::vector<double>(small)};
  std::vector<BFloat16> low{std::vector<BFloat16>(large)}, gc{std::vector<BFloat16>(small)};
  TrainState state;

  OnHost() {
    state.add("a", a, ga).add_copy("a", low).add("b", b, gb).add("c", c, gc);
    state.add_buffer("mean", mean, PerRank{});
  }
  void step(Step s, int rank, const std::function<void(const char*)>& ready) {
    for (std::size_t i = 0; i < small; ++i) gb[i] = static_cast<double>(gradient(s, rank, i + 1));
    ready("b");
    for (std::size_t i = 0; i < large; ++i) ga[i] = gradient(s, rank, i);
    for (float& x : mean) x = 0.5f * x + ga[7];
    ready("a");
    std::vector<float> wide(small);
    for (std::size_t i = 0; i < small; ++i) wide[i] = gradient(s, rank, i + 2);
    std::ranges::copy(narrow(wide), gc.begin());
  }
  static HostThreads policy() { return HostThreads{1}; }
};

//! The same on the device.
struct OnTheDevice {
  Stream stream;
  OnDevice<float> a{std::vector<float>(large, 0.5f)}, ga{std::vector<float>(large)},
      c{std::vector<float>(small, 2)}, mean{std::vector<float>(3)};
  OnDevice<double> b{std::vector<double>(small, 1)}, gb{std::vector<double>(small)};
  OnDevice<BFloat16> low{std::vector<BFloat16>(large)}, gc{std::vector<BFloat16>(small)};
  std::vector<float> mean_here{std::vector<float>(3)};
  TrainState state;

  OnTheDevice() {
    state.add("a", a.span(), ga.span()).add_copy("a", low.span()).add("b", b.span(), gb.span());
    state.add("c", c.span(), gc.span());
    state.add_buffer("mean", mean.span(), PerRank{});
  }
  template <class T>
  void put(const std::vector<T>& values, const OnDevice<T>& to) {
    cuda::copy_async<T>(std::span<const T>{values}, to.span(), stream);
  }
  void step(Step s, int rank, const std::function<void(const char*)>& ready) {
    std::vector<double> doubles(small);
    for (std::size_t i = 0; i < small; ++i)
      doubles[i] = static_cast<double>(gradient(s, rank, i + 1));
    put(doubles, gb);
    ready("b");
    std::vector<float> floats(large), wide(small);
    for (std::size_t i = 0; i < large; ++i) floats[i] = gradient(s, rank, i);
    put(floats, ga);
    ready("a");
    for (std::size_t i = 0; i < small; ++i) wide[i] = gradient(s, rank, i + 2);
    put(narrow(wide), gc);
    mean_here = mean.read(stream);
    for (float& x : mean_here) x = 0.5f * x + floats[7];
    put(mean_here, mean);
    stream.wait();
  }
  OnStream policy() const { return OnStream{stream}; }
};

struct Outcome {
  std::map<int, Hash128> final;
  std::vector<comm::World::Trace> trace;
  bool finished = false;
  std::string reason;
};

//! A run of two ranks, with what goes wrong in it.
template <class Trainer, class Rule, class... Policies>
Outcome trained(const Rule& rule, bool early, std::vector<Fault> faults, Policies... policies) {
  Outcome out;
  std::mutex mutex;
  comm::WorldOptions world{.simulated = true, .chunk_bytes = 4096};
  world.faults = std::move(faults);
  comm::Threads cluster{{.ranks = 2, .max_restarts = 32, .poison = 20}, world};
  const auto outcome = cluster.run([&](ThreadComm& comm) {
    Trainer trainer;
    Session session{trainer.state, rule, comm, ReplicaRecovery{}, trainer.policy(), policies...};
    session.train(4, [&](Step s) {
      trainer.step(s, comm.rank(), [&](const char* name) {
        if (early) session.ready(name);
      });
    });
    std::lock_guard lock{mutex};
    out.final[comm.rank()] = trainer.state.hash();
  });
  out.finished = outcome.finished;
  out.reason = outcome.reason;
  out.trace = cluster.world().trace();
  return out;
}

}  // namespace test
