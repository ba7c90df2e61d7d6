// The ring against Gloo's: 64 MiB of floats, two processes on loopback, interleaved in one run.
#include <mend/comm/membership/launch.hpp>
#include <mend/comm/tcp.hpp>

#include "bars.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#if defined(MEND_WITH_GLOO)
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#endif

namespace {

constexpr std::size_t count = std::size_t{16} << 20;
constexpr int rounds = 15;

int work() {
  auto comm = mend::comm::join_tcp();
  std::vector<float> ours(count, 1), theirs(count, 1);
  std::vector<double> mend_seconds, gloo_seconds;
#if defined(MEND_WITH_GLOO)
  auto context = std::make_shared<gloo::rendezvous::Context>(comm.rank(), comm.size());
  gloo::rendezvous::FileStore store{std::getenv("BENCH_STORE")};
  auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
  comm.barrier();
  context->connectFullMesh(store, device);
#endif
  auto timed = [&](std::vector<double>& into, auto&& f) {
    comm.barrier();
    double begin = bench::seconds();
    f();
    comm.barrier();
    into.push_back(bench::seconds() - begin);
  };
  for (int i = 0; i < rounds; ++i) {
    timed(mend_seconds, [&] { comm.all_reduce(std::span{ours}, mend::comm::Reduction::sum); });
#if defined(MEND_WITH_GLOO)
    timed(gloo_seconds, [&] {
      gloo::AllreduceOptions options{context};
      options.setOutput(theirs.data(), count);
      options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
      options.setReduceFunction([](void* a, const void* b, const void* c, std::size_t n) {
        gloo::sum<float>(a, b, c, n);
      });
      gloo::allreduce(options);
    });
#endif
  }
  if (comm.rank() != 0) return 0;
  std::FILE* result =
      std::fopen((std::string{std::getenv("BENCH_STORE")} + "/result").c_str(), "w");
  if (result == nullptr) return 1;
  double gigabytes = double(count) * sizeof(float) / 1e9, a = bench::median(mend_seconds);
#if defined(MEND_WITH_GLOO)
  std::fprintf(result, "%g %g", gigabytes / a, gigabytes / bench::median(gloo_seconds));
#else
  std::fprintf(result, "%g 0", gigabytes / a);
#endif
  std::fclose(result);
  return 0;
}

}  // namespace

int main(int, char** argv) {
  if (std::getenv("MEND_LAUNCHER") != nullptr) return work();
  std::string store =
      std::filesystem::temp_directory_path() / ("mend_all_reduce_" + std::to_string(::getpid()));
  std::filesystem::create_directory(store);
  auto outcome = mend::comm::launch({.argv = {argv[0]},
                                     .run = {.ranks = 2},
                                     .environment = {{"BENCH_STORE", store}},
                                     .report = false});
  double ours = 0, gloo = 0;
  if (std::FILE* result = std::fopen((store + "/result").c_str(), "r")) {
    if (std::fscanf(result, "%lf %lf", &ours, &gloo) != 2) ours = 0;
    std::fclose(result);
  }
  std::filesystem::remove_all(store);
  if (!outcome.finished) fmt::print(stderr, "{}\n", outcome.reason);
  if (gloo > 0) {
    fmt::print("64 MiB, 2 processes: mend {:.2f} GB/s, Gloo {:.2f} GB/s\n", ours, gloo);
    bench::bar("allreduce_vs_gloo", ours / gloo, 1.0, true);
  } else {
    fmt::print("64 MiB, 2 processes: mend {:.2f} GB/s; Gloo (libgloo-dev) is not installed\n",
               ours);
    bench::bar("allreduce_gigabytes_per_second", ours, 0, true);
  }
  return mend::comm::exit_status(outcome);
}
