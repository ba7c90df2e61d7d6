// What a killed worker costs: the time from the kill to the next committed step with
// ReplicaRecovery, against stopping the run, starting it again and doing the steps since the last
// checkpoint anew.
#include <mend/comm/membership/launch.hpp>
#include <mend/mend.hpp>

#include "bars.hpp"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace {

constexpr std::size_t parameters = std::size_t{1} << 20;
constexpr std::int64_t interval = 100, checkpoint = 20, killed = checkpoint + interval - 1;
constexpr int ranks = 3, repetitions = 3;

void forward_backward(std::span<const float> w, std::span<float> g, std::vector<float>& scratch) {
  constexpr std::size_t n = 256;
  scratch.resize(n * n);
  for (int repeat = 0; repeat < 10; ++repeat)
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t k = 0; k < n; ++k) {
        float a = w[i * n + k];
        for (std::size_t j = 0; j < n; ++j) scratch[i * n + j] += a * w[k * n + j];
      }
  for (std::size_t i = 0; i < g.size(); ++i) g[i] = w[i] * 0.01f + scratch[i % (n * n)] * 1e-9f;
}

// Every process of a run appends "when" lines here: kill, and the commit of the step that was hit.
void note(const char* what) {
  std::FILE* f = std::fopen(std::getenv("BENCH_LOG"), "a");
  if (f == nullptr) return;
  std::fprintf(f, "%s %.6f\n", what, bench::seconds());
  std::fclose(f);
}
double noted(const std::string& log, const std::string& what) {
  std::FILE* f = std::fopen(log.c_str(), "r");
  char word[32];
  double when = 0, last = 0;
  while (f != nullptr && std::fscanf(f, "%31s %lf", word, &when) == 2)
    if (what == word) last = when;
  if (f != nullptr) std::fclose(f);
  return last;
}

int work() {
  std::string file = std::getenv("BENCH_FILE");
  bool reload = std::getenv("BENCH_RELOAD") != nullptr,
       again = std::getenv("BENCH_AGAIN") != nullptr;
  std::vector<float> w(parameters, 0.01f), g(parameters), scratch;
  auto comm = mend::comm::join_tcp();
  mend::TrainState state;
  state.add("w", w, g);
  mend::Session session{state, mend::Adam{}, comm, mend::ReplicaRecovery{}};
  if (again) mend::load(state, file);
  bool replacement = comm.membership().replacement;
  session.train(
      killed + 1,
      [&](mend::Step step) {
        if (step == killed && session.rank() == 1 && !replacement && !again) {
          note("kill");
          std::raise(SIGKILL);
        }
        forward_backward(w, g, scratch);
        return 0.0f;
      },
      [&](const mend::Committed& done) {
        if (session.rank() != 0) return;
        if (done.step == killed - 1) note("before");
        if (done.step == killed) note("commit");
        if (reload && !again && done.step == checkpoint - 1) mend::save(state, file);
        if (done.step == checkpoint) note("first");
      });
  return 0;
}

}  // namespace

int main(int, char** argv) {
  if (std::getenv("MEND_LAUNCHER") != nullptr) return work();
  std::string folder =
      std::filesystem::temp_directory_path() / ("mend_recovery_" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  std::string log = folder + "/log", file = folder + "/checkpoint.safetensors";
  auto run = [&](mend::comm::Process::Variables more, int restarts) {
    more.push_back({"BENCH_LOG", log});
    more.push_back({"BENCH_FILE", file});
    return mend::comm::launch({.argv = {argv[0]},
                               .run = {.ranks = ranks, .max_restarts = restarts},
                               .environment = std::move(more),
                               .report = false});
  };
  std::vector<double> recovery, reloading, step;
  for (int i = 0; i < repetitions; ++i) {
    std::filesystem::remove(log);
    if (auto o = run({}, 1); !o.finished) return fmt::print(stderr, "{}\n", o.reason), 1;
    double per_step = (noted(log, "before") - noted(log, "first")) / (interval - 2);
    step.push_back(per_step);
    recovery.push_back(noted(log, "commit") - noted(log, "kill") -
                       per_step);  // the step itself is no loss
    std::filesystem::remove(log);
    run({{"BENCH_RELOAD", "1"}}, 0);
    double from = noted(log, "kill");
    run({{"BENCH_AGAIN", "1"}}, 0);
    reloading.push_back(noted(log, "commit") - from - per_step);
  }
  std::filesystem::remove_all(folder);
  double a = bench::median(recovery), b = bench::median(reloading);
  fmt::print(
      "a killed worker of {}, {:.1f} ms per step: replica {:.1f} ms; reload after {} steps {:.1f} "
      "ms\n",
      ranks, bench::median(step) * 1e3, a * 1e3, interval - 1, b * 1e3);
  bench::bar("replica_recovery_vs_reload", a / b, 0.02, false);
}
