// Three workers train a small network on Fashion-MNIST; two of them are killed (kill -9) in the
// middle of their work, are replaced, and the run ends with the same bits as one in which nothing
// failed.
//
//   03_lost_worker                                    the show, then the same run without failures
//   03_lost_worker --kill 0@100:update --kill 2@100:during_reduce
//   03_lost_worker --kill-every 50 --steps 1000 --ranks 4
#include <mend/mend.hpp>

#include <mend/comm/membership/launch.hpp>
#include <mend/trace/chart.hpp>
#include <mend/trace/progress_line.hpp>
#include <mend/trace/timeline.hpp>

#include "board.hpp"
#include "network.hpp"

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

struct Kill {
  int rank = 0;
  std::int64_t step = 0;
  std::string point;
};

struct Options {
  int ranks = 3;
  std::int64_t steps = 600;
  std::size_t batch = 64;  // images per rank and step
  std::vector<std::string> kills;
  std::int64_t kill_every = 0;
  bool reference = true;
  std::string out = "03_lost_worker.out", data = "/usr/share/datasets/fashion-mnist";
};

// Where a worker can be struck, and what it is doing then; docs/protocol.md tells what happens.
const std::vector<std::pair<std::string, std::string>> points{
    {"lambda", "before its forward pass"},
    {"reduce", "before gradients are reduced"},
    {"during_reduce", "while gradients are reduced"},
    {"bucket", "between two buckets of gradients"},
    {"reduced", "when gradients are reduced"},
    {"done", "when it has said that it has all gradients"},
    {"update", "in the middle of the update"},
    {"updated", "after the update"},
    {"commit", "before the step is committed"},
    {"committed", "after the step is committed"},
    {"view", "in a recovery, told of the new members"},
    {"plan", "in a recovery, told what to do"},
    {"roll_forward", "in a recovery, while it finishes the step"},
    {"ready", "in a recovery, when it has said that it is whole"},
    {"go", "in a recovery, before the first step after it"}};

std::string doing(const std::string& point) {
  auto at = std::find_if(points.begin(), points.end(),
                         [&](const auto& known) { return known.first == point; });
  return at == points.end() ? "" : at->second;
}

std::optional<Kill> parse_kill(const std::string& text) {
  Kill k;
  char point[32];
  int end = 0;
  if (std::sscanf(text.c_str(), "%d@%ld:%31[a-z_]%n", &k.rank, &k.step, point, &end) != 3 ||
      static_cast<std::size_t>(end) != text.size())
    return {};
  k.point = point;
  return k;
}

std::vector<Kill> planned_kills(const Options& o) {
  std::vector<Kill> kills;
  for (const std::string& text : o.kills) kills.push_back(*parse_kill(text));
  if (o.kill_every > 0)
    for (std::int64_t step = o.kill_every, i = 0; step < o.steps; step += o.kill_every, ++i)
      kills.push_back({static_cast<int>(i) % o.ranks, step,
                       points[static_cast<std::size_t>(i) % points.size()].first});
  if (o.kills.empty() && o.kill_every == 0)
    kills = {{1, o.steps / 3, "update"}, {2 % o.ranks, 2 * o.steps / 3, "during_reduce"}};
  if (kills.size() > Board::most_kills) kills.resize(Board::most_kills);
  return kills;
}

// ---- a worker: the whole trainer
// ------------------------------------------------------------------

int work(const Options& o, const std::vector<Kill>& kills) {
  Board& board = Board::open(std::getenv("DEMO_BOARD"));
  Images images = read_fashion(o.data, "train"), test = read_fashion(o.data, "t10k");
  Network net{1};

  mend::TrainState state;
  for (Network::Tensor& t : net.tensors) state.add(t.name, t.value, t.gradient, {.shape = t.shape});
  auto comm = mend::comm::join_tcp();
  mend::trace::Recorder recorder;
  mend::Session session{state, mend::Adam{.lr = 2e-3f}, comm, mend::ReplicaRecovery{},
                        mend::Traced{recorder}};

  comm.on_crash_point = [&](const mend::comm::CrashPoint& at) {  // strike once, from the inside
    for (std::size_t i = 0; i < kills.size(); ++i)
      if (at.step == kills[i].step && at.name == kills[i].point &&
          session.rank() == kills[i].rank && !board.killed[i].exchange(true))
        std::raise(SIGKILL);
  };

  session.train(
      o.steps,
      [&](mend::Step step) {  // this rank's share of the step's images
        std::vector<std::size_t> batch;
        for (std::size_t i = static_cast<std::size_t>(session.rank());
             i < o.batch * std::size_t(session.size());
             i += static_cast<std::size_t>(session.size()))
          batch.push_back(
              (static_cast<std::size_t>(step.value()) * o.batch * std::size_t(session.size()) + i) *
              7919 % images.size());
        return net.forward_backward(images, batch);
      },
      [&](const mend::Committed& done) {
        if (session.rank() != 0) return;
        auto i = static_cast<std::size_t>(done.step.value());
        board.loss[i] = done.loss;
        board.when[i] = comm.now().count();
        board.committed = done.step.value() + 1;
        if (done.step.every(50)) board.accuracy = net.accuracy(test, 500);
      });

  board.hash[static_cast<std::size_t>(session.rank())] = state.hash();
  if (session.rank() == 0) board.accuracy = net.accuracy(test, test.size());
  mend::trace::write_timeline(
      fmt::format("{}/worker-{}.json", o.out, comm.membership().incarnation), recorder.events());
  return 0;
}

// ---- the launcher
// ---------------------------------------------------------------------------------

struct Run {
  mend::comm::Outcome outcome;
  std::vector<mend::trace::Event> events;
  double seconds = 0, lost = 0;  // lost: from each death to the next commit, less one ordinary step
  double accuracy = 0;
  mend::Hash128 hash{};
  bool ranks_agree = true;
};

Run run(const Options& o, const std::string& program, std::vector<std::string> argv,
        const std::string& title) {
  std::string path = o.out + "/board";
  Board& board = Board::create(path);
  Run r;
  mend::SystemClock clock;
  fmt::print("{}\n", title);
  std::fflush(stdout);  // at once, into a file or pipe too
  mend::trace::ProgressLine progress{o.steps};
  std::atomic<bool> over = false;
  sigset_t stops;  // the launcher's own thread takes them
  sigemptyset(&stops);
  sigaddset(&stops, SIGINT);
  sigaddset(&stops, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &stops, nullptr);
  std::thread painter{[&] {
    while (!over) {
      if (std::int64_t n = board.committed; n > 0)
        progress.update(clock.now(), n,
                        {{"loss", board.loss[std::size_t(n - 1)]}, {"accuracy", board.accuracy}});
      std::this_thread::sleep_for(std::chrono::milliseconds{50});
    }
  }};
  mend::Time begin = clock.now();
  argv.insert(argv.begin(), program);
  try {
    r.outcome = mend::comm::launch(
        {.argv = std::move(argv),
         .run = {.ranks = o.ranks, .max_restarts = 1000},
         .environment = {{"DEMO_BOARD", path}},
         .stop_signals = {SIGINT, SIGTERM},
         .report = false,
         .on_event = [&](const mend::trace::Event& e) {
           r.events.push_back(e);
           using mend::trace::EventKind;
           if (e.kind == EventKind::death)
             progress.event(clock.now(), fmt::format("rank {} died ({})", int(e.rank), e.text));
           if (e.name == "replacement")
             progress.event(clock.now(), fmt::format("rank {} replaced", int(e.rank)));
           if (e.name == "go" && e.generation > mend::Generation{1})
             progress.event(clock.now(), fmt::format("whole again at step {}", e.step.value()));
         }});
  } catch (...) {
    over = true;
    painter.join();
    throw;
  }
  r.seconds = std::chrono::duration<double>(clock.now() - begin).count();
  over = true;
  painter.join();
  if (std::int64_t n = board.committed; n > 0)
    progress.update(clock.now(), n,
                    {{"loss", board.loss[std::size_t(n - 1)]}, {"accuracy", board.accuracy}});
  progress.finish(clock.now());

  std::vector<double> steps;
  for (std::size_t i = 1; i < std::size_t(o.steps); ++i)
    steps.push_back(double(board.when[i] - board.when[i - 1]) / 1e9);
  std::sort(steps.begin(), steps.end());
  double usual = steps.empty() ? 0 : steps[steps.size() / 2];
  for (const auto& e : r.events) {
    if (e.kind != mend::trace::EventKind::death || e.name != "death") continue;
    auto next = std::find_if(board.when, board.when + o.steps,
                             [&](std::int64_t t) { return t > e.time.count(); });
    if (next != board.when + o.steps)
      r.lost += std::max(0.0, double(*next - e.time.count()) / 1e9 - usual);
  }
  r.accuracy = board.accuracy;
  r.hash = board.hash[0];
  for (int i = 1; i < o.ranks; ++i) r.ranks_agree = r.ranks_agree && board.hash[i] == board.hash[0];

  mend::trace::write_timeline(o.out + "/timeline.json", r.events);
  std::vector<mend::trace::Chart::Point> loss;
  for (std::int64_t i = 0; i < board.committed; ++i) loss.push_back({double(i), board.loss[i]});
  mend::trace::Chart chart{"Fashion-MNIST, " + std::to_string(o.ranks) + " workers"};
  chart.series("training loss", loss);
  for (const auto& e : r.events)
    if (e.kind == mend::trace::EventKind::death)
      chart.mark(double(std::count_if(board.when, board.when + board.committed,
                                      [&](std::int64_t t) { return t <= e.time.count(); })),
                 fmt::format("rank {} killed", int(e.rank)));
  if (r.outcome.deaths > 0) chart.write(o.out + "/loss.svg");
  return r;
}

int launch(const Options& o, const std::vector<Kill>& kills, const std::string& program,
           const std::vector<std::string>& argv) {
  std::filesystem::create_directories(o.out);
  read_fashion(o.data, "t10k");  // says now, not in every worker, when the data set is missing
  std::string what;
  for (const Kill& k : kills)
    what += fmt::format("{}rank {} at step {}, {}", what.empty() ? "" : "; ", k.rank, k.step,
                        doing(k.point));
  Run shown = run(o, program, argv, "kill -9: " + what);
  if (!shown.outcome.finished) {
    fmt::print(stderr, "the run did not finish: {}\n", shown.outcome.reason);
    return mend::comm::exit_status(shown.outcome);
  }
  std::optional<Run> plain;
  if (o.reference) {
    auto quiet = argv;
    quiet.push_back("--no-kills");
    plain = run(o, program, quiet, "the same run, and nothing fails");
    if (!plain->outcome.finished) {
      fmt::print(stderr, "the uninterrupted run did not finish: {}\n", plain->outcome.reason);
      return mend::comm::exit_status(plain->outcome);
    }
  }
  fmt::print("\n  {:<26}{}\n", "steps", o.steps);
  fmt::print("  {:<26}{} ({} killed, {} replaced, {} generations)\n", "failures",
             shown.outcome.deaths, shown.outcome.deaths, shown.outcome.restarts,
             shown.outcome.generations);
  fmt::print("  {:<26}{:.2f} s of {:.1f} s\n", "time lost", shown.lost, shown.seconds);
  fmt::print("  {:<26}{:.4f}\n", "test accuracy", shown.accuracy);
  fmt::print("  {:<26}{}\n", "hash", shown.hash.to_hex());
  bool same = shown.ranks_agree;
  if (plain) {
    fmt::print("  {:<26}{}\n", "hash, uninterrupted run", plain->hash.to_hex());
    same = same && plain->ranks_agree && plain->hash == shown.hash;
    fmt::print("  {:<26}{}\n", "same bits", same ? "yes" : "NO");
  }
  fmt::print("\nalso written to {}: loss.svg, timeline.json and worker-*.json (chrome://tracing)\n",
             std::filesystem::absolute(o.out).lexically_normal().string());
  return same ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  bool no_kills = false, no_reference = false;
  std::vector<std::string> names;
  for (const auto& [name, what] : points) names.push_back(name);
  CLI::App app{"Trains on Fashion-MNIST while workers are killed, and compares the bits."};
  app.add_option("-n,--ranks", o.ranks, "workers")
      ->check(CLI::Range(1, int(Board::most_ranks)))
      ->capture_default_str();
  app.add_option("--steps", o.steps, "training steps")
      ->check(CLI::Range(std::int64_t{1}, Board::most_steps))
      ->capture_default_str();
  app.add_option("--batch", o.batch, "images per worker and step")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--kill", o.kills,
                 "RANK@STEP:POINT, repeatable; POINT is one of " + CLI::detail::join(names, ", "))
      ->check([&](const std::string& text) {
        auto k = parse_kill(text);
        if (!k) return "'" + text + "' is not RANK@STEP:POINT, such as 1@200:update";
        if (doing(k->point).empty()) return "no such point: " + k->point;
        return std::string{};
      });
  app.add_option("--kill-every", o.kill_every, "kill a worker every N steps, at changing points")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--no-reference", no_reference, "leave the uninterrupted run out");
  app.add_flag("--no-kills", no_kills, "kill nobody");
  app.add_option("--out", o.out, "folder for the pictures")->capture_default_str();
  app.add_option("--data", o.data, "folder of the data set")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  o.reference = !no_reference && !no_kills;
  std::vector<Kill> kills = no_kills ? std::vector<Kill>{} : planned_kills(o);
  try {
    if (std::getenv("MEND_LAUNCHER") != nullptr) return work(o, kills);
    return launch(o, kills, argv[0], {argv + 1, argv + argc});
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}
