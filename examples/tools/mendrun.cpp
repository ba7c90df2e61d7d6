// mendrun -n 4 ./trainer args...: runs a program on several ranks of this machine and replaces the
// ranks that die. `mendrun --help` lists the options; docs/reference/comm.md explains them.
#include <mend/comm/membership/launch.hpp>

#include <signal.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  mend::comm::LaunchOptions options;
  double lease = 5, timeout = 300;
  bool quiet = false;

  CLI::App app{
      "mendrun -n RANKS [OPTIONS] PROGRAM [ARGUMENTS]...\n"
      "Runs a program on several ranks of this machine; a rank that dies is replaced.",
      "mendrun"};
  app.prefix_command();  // what follows the program is the program's
  app.set_version_flag("--version", std::string{mend::library_version});
  app.add_option("-n,--ranks", options.run.ranks, "How many workers")
      ->required()
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--max-restarts", options.run.max_restarts, "Replacements in the whole run")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag("--shrink", options.run.shrink,
               "Go on with fewer ranks when no replacement is left (not the same bits any more)");
  app.add_option("--lease", lease, "Seconds of silence after which a worker is killed and replaced")
      ->check(CLI::Range(0.05, 1e6))
      ->capture_default_str();
  app.add_option("--timeout", timeout, "Longest start of a worker and longest step, in seconds")
      ->check(CLI::Range(0.05, 1e6))
      ->capture_default_str();
  app.add_option("--bind", options.bind, "Address to listen at")->capture_default_str();
  app.add_option("--port", options.port, "Port to listen at; 0: any")->capture_default_str();
  app.add_option("--token", options.token, "What workers must know to join; random by default")
      ->envname("MEND_TOKEN");
  app.add_flag("--quiet", quiet, "Say nothing about deaths and replacements");
  try {
    app.parse(argc, argv);
    options.argv = app.remaining();
    if (!options.argv.empty() && options.argv[0] == "--") options.argv.erase(options.argv.begin());
    if (options.argv.empty()) throw CLI::RequiredError{"PROGRAM"};
    if (options.argv[0].starts_with("-")) throw CLI::ExtrasError{{options.argv[0]}};
    if (!std::isfinite(lease) || !std::isfinite(timeout))
      throw CLI::ValidationError{"--lease and --timeout take a number of seconds"};
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;  // as shells and compilers say it
  }
  options.run.lease = std::chrono::milliseconds{static_cast<long>(lease * 1000)};
  options.run.timeout = std::chrono::milliseconds{static_cast<long>(timeout * 1000)};
  options.stop_signals = {SIGINT, SIGTERM, SIGHUP};
  options.report = !quiet;

  std::string program = options.argv[0], reason;
  int status = 1;
  try {
    mend::comm::Outcome outcome = mend::comm::launch(std::move(options));
    status = mend::comm::exit_status(outcome);
    reason = outcome.reason;
  } catch (const mend::Error& e) {
    reason = e.what();
    // As shells say it.
    if (e.path() == program) status = e.code() == ENOENT ? 127 : e.code() == EACCES ? 126 : 1;
  }
  ::signal(SIGPIPE, SIG_IGN);  // the status counts, even where nobody reads the reason
  if (status != 0) std::fprintf(stderr, "mendrun: %s\n", reason.c_str());
  return status;
}
