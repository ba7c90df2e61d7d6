#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "mend/comm/membership/coordinator.hpp"
#include "mend/comm/membership/process.hpp"
#include "mend/comm/membership/tcp_hub.hpp"
#include "mend/core/clock.hpp"
#include "mend/core/error.hpp"
#include "mend/trace/event.hpp"

namespace mend::comm {

struct LaunchOptions {
  std::vector<std::string> argv{};   //!< the program that every worker runs, and its arguments
  CoordinatorOptions run{};          //!< how many ranks, what may be spent on failures
  Process::Variables environment{};  //!< for the workers, on top of this process's
  std::string bind = "127.0.0.1";    //!< where workers find this process
  std::uint16_t port = 0;            //!< 0: any free one
  std::string token{};               //!< what a worker must know; empty: a random one
  //! These signals end the run: workers get SIGTERM, and SIGKILL after the grace or at a second
  //! signal. Blocked in the calling thread meanwhile; other threads of this process should block
  //! them too.
  std::vector<int> stop_signals{};
  Time grace = std::chrono::seconds{5};
  bool report = true;    //!< deaths, replacements and generations, one line each on `err`
  int out = 1, err = 2;  //!< where the workers' lines go, each with its rank before it; -1: nowhere
  std::function<void(const trace::Event&)> on_event{};
};

namespace detail {
//! What a person at the terminal wants to know; `trouble`: since when ranks are missing.
inline void report(TcpHub& hub, const trace::Event& e, Time trouble) {
  using trace::EventKind;
  std::string rank = "rank " + std::to_string(e.rank) + ": ";
  std::string step = "step " + std::to_string(e.step.value());
  std::string text = e.text.empty() ? "" : " (" + e.text + ")";
  if (e.kind == EventKind::view && e.generation == Generation{1}) {
    std::string pids;
    for (auto [r, pid] : hub.pids()) pids += " " + std::to_string(pid);
    hub.note("pids" + pids);
  } else if (e.kind == EventKind::view) {
    hub.note("generation " + std::to_string(e.generation.value()) + text);
  } else if (e.kind == EventKind::death || e.name == "suspect") {
    hub.note(rank + std::string{e.label()} + text);
  } else if (e.name == "joined" && e.generation > Generation{}) {
    const auto pids = hub.pids();
    const auto pid = pids.find(e.rank);  // it may have ended already
    hub.note(rank + "replaced" +
             (pid == pids.end() ? "" : " (pid " + std::to_string(pid->second) + ")"));
  } else if (e.name == "restore" && e.generation > Generation{1}) {
    hub.note("nobody holds the state any more: the run begins again at " + step);
  } else if (e.name == "go" && e.generation > Generation{1}) {
    auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(e.time - trouble).count();
    hub.note("whole again at " + step +
             (trouble == Time{} ? "" : " after " + std::to_string(ms) + " ms"));
  }
}
}  // namespace detail

//! Runs a program on several ranks of this machine and keeps it running: the dead are replaced.
//! Blocks until the run has ended and every worker is reaped. Call it in a thread that lives as
//! long. Throws CommError when a worker cannot be started (no such program, the port is in use).
inline Outcome launch(LaunchOptions options) {
  TcpHub hub{{.argv = std::move(options.argv),
              .environment = std::move(options.environment),
              .bind = std::move(options.bind),
              .port = options.port,
              .token = std::move(options.token),
              .lease = options.run.lease,
              .timeout = options.run.timeout,
              .out = options.out,
              .err = options.err,
              .stop_signals = std::move(options.stop_signals)}};
  Coordinator coordinator{hub, options.run};
  bool joined = false;
  Time trouble{};
  coordinator.on_event = [&](const trace::Event& e) {
    using trace::EventKind;
    joined = joined || e.name == "joined";
    if (e.kind == EventKind::death && trouble == Time{}) trouble = e.time;
    if (options.report) detail::report(hub, e, trouble);
    if (e.name == "go") trouble = {};
    if (options.on_event) options.on_event(e);
  };
  try {
    Outcome outcome = coordinator.run();
    if (outcome.finished && !joined && options.report)
      hub.note(
          "no worker joined, so nothing was guarded: does the program call "
          "mend::comm::join_tcp()?");
    return outcome;
  } catch (const RunStopped& e) {
    if (hub.stopped_by() == 0) throw;
    hub.stop(options.grace);
    Outcome stopped;
    stopped.reason = e.what();
    stopped.status = -hub.stopped_by();
    return stopped;
  }
}

//! What a launcher's process should end with: 0 only when all workers finished; the status of the
//! worker that was the cause, 128 + n for signal n; else 1.
[[nodiscard]] inline int exit_status(const Outcome& outcome) {
  if (outcome.finished) return 0;
  if (outcome.status < 0) return 128 - outcome.status;
  return outcome.status > 0 ? outcome.status : 1;
}

}  // namespace mend::comm
