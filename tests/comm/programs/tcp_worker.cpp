// A worker that does what its arguments say, one after the other:
//   join            joins its launcher           ready:N      says N times Ready
//   serve           answers Go with Ready, stops itself at Feed and ends at Bye; a lost launcher is
//                   exit status 3
//   print:TEXT      writes TEXT, no end of line  error:TEXT   the same to standard error
//   sleep:MS        does not look at its link    exit:N       ends with status N
//   kill            ends by SIGKILL              ignore:N     ignores signal N
//   spawn           starts a child that holds its output and sleeps
#include <mend/comm/tcp_link.hpp>

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

using namespace mend;
using namespace mend::comm;

namespace {

void tell(TcpLink& link, Kind kind, std::uint32_t tag = 0) {
  Header h;
  h.kind = static_cast<std::uint16_t>(kind);
  h.tag = tag;
  link.tell(h, {});
}

void serve(TcpLink& link) {
  for (;;) {
    std::optional<Frame> f = link.poll(never, false);
    if (!f) continue;
    if (f->header.kind == static_cast<std::uint16_t>(Kind::bye)) return;
    if (f->header.kind == static_cast<std::uint16_t>(Kind::go))
      tell(link, Kind::ready, f->header.tag);
    if (f->header.kind == static_cast<std::uint16_t>(Kind::feed)) ::raise(SIGSTOP);
  }
}

int run(int argc, char** argv) {
  std::unique_ptr<TcpLink> link;
  for (int i = 1; i < argc; ++i) {
    std::string_view command{argv[i]};
    std::string value{command.substr(std::min(command.find(':'), command.size() - 1) + 1)};
    command = command.substr(0, command.find(':'));
    if (command == "join")
      link = std::make_unique<TcpLink>(*WorkerEnvironment::read());
    else if (command == "serve")
      serve(*link);
    else if (command == "ready")
      for (int n = 0; n < std::stoi(value); ++n)
        tell(*link, Kind::ready, static_cast<std::uint32_t>(n));
    else if (command == "print")
      std::fputs(value.c_str(), stdout), std::fflush(stdout);
    else if (command == "error")
      std::fputs(value.c_str(), stderr);
    else if (command == "sleep")
      std::this_thread::sleep_for(std::chrono::milliseconds{std::stoi(value)});
    else if (command == "exit")
      return std::stoi(value);
    else if (command == "kill")
      ::raise(SIGKILL);
    else if (command == "ignore")
      ::signal(std::stoi(value), SIG_IGN);
    else if (command == "spawn") {
      if (::fork() == 0)
        for (;;) ::pause();
    } else
      return 64;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 3;
  }
}
