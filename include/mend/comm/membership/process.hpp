#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mend/comm/socket.hpp"
#include "mend/core/clock.hpp"
#include "mend/core/error.hpp"

namespace mend::comm {

//! A child process in a process group of its own, its output on two pipes. It does not outlive the
//! thread that started it (the kernel kills it then), nor this object: the destructor kills and
//! reaps.
class Process {
 public:
  using Variables = std::vector<std::pair<std::string, std::string>>;

  //! Starts argv (found through PATH where it has no slash) with these variables on top of this
  //! process's environment; input is empty. Blocks until the program runs. Throws CommError with
  //! errno and path when it cannot be run.
  explicit Process(const std::vector<std::string>& argv, const Variables& variables = {})
      : Process{} {  // from here on a throw runs the destructor
    if (argv.empty()) throw CommError{"no program to start"};
    // Everything that needs memory comes before the fork: other threads may hold the allocator.
    std::vector<std::string> environment = merged(variables);
    std::vector<char*> arguments = pointers(argv), settings = pointers(environment);
    auto [out, child_out] = pipe();
    auto [err, child_err] = pipe();
    auto [failure, child_failure] = pipe();
    Descriptor null{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
    Plan plan{arguments.data(), settings.data(),     null.get(), child_out.get(),
              child_err.get(),  child_failure.get(), ::getpid()};
    // No handler of this process may run in the child.
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_ = ::fork();
    if (pid_ == 0) become(plan);
    int code = errno;
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (pid_ < 0) throw CommError{"cannot start a process", {.code = code, .path = argv[0]}};
    ::setpgid(pid_, pid_);  // whoever of the two comes first
    handle_ = Descriptor{static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0))};
    if (!handle_) {
      code = errno;
      ::kill(pid_, SIGKILL);
      ::waitpid(std::exchange(pid_, -1), nullptr, 0);
      throw CommError{code == ENOSYS ? "this system has no pidfd_open; Linux 5.3 has"
                                     : "cannot watch a process",
                      {.code = code}};
    }
    output_ = std::move(out);
    errors_ = std::move(err);
    child_failure.close();
    code = await_exec(failure);
    if (code != 0) throw CommError{"cannot start the program", {.code = code, .path = argv[0]}};
  }
  Process(Process&& other) noexcept
      : pid_{std::exchange(other.pid_, -1)},
        handle_{std::move(other.handle_)},
        output_{std::move(other.output_)},
        errors_{std::move(other.errors_)} {}
  Process& operator=(Process&&) = delete;
  ~Process() { end(); }

  [[nodiscard]] int pid() const { return pid_; }
  //! Readable when the process has ended.
  [[nodiscard]] const Descriptor& handle() const { return handle_; }
  //! What it writes to its standard output and its standard error; nonblocking.
  [[nodiscard]] Descriptor& output() { return output_; }
  [[nodiscard]] Descriptor& errors() { return errors_; }

  //! To the process and to all that it started in its group, once each. SIGKILL ends a stopped one
  //! too.
  void signal(int number) {
    if (pid_ < 0) return;
    bool sent = ::kill(-pid_, number) == 0;  // not reaped yet, so nobody else has this number
    if (!sent || number == SIGKILL)          // it may have left its group
      ::syscall(SYS_pidfd_send_signal, handle_.get(), number, nullptr, 0);
  }
  //! nullopt while it runs; else 0 success, n exit status n, -n signal n. Kills what it left behind
  //! in its group.
  std::optional<int> reap() {
    if (pid_ < 0) return status_;
    siginfo_t info{};
    auto id = static_cast<id_t>(pid_);
    if (::waitid(P_PID, id, &info, WEXITED | WNOHANG | WNOWAIT) != 0) {
      status_ = -SIGKILL;  // somebody else reaped it and knows how it ended
    } else {
      if (info.si_pid == 0) return {};
      ::kill(-pid_, SIGKILL);  // its number is nobody else's before it is reaped
      ::waitid(P_PID, id, &info, WEXITED | WNOHANG);
      status_ = info.si_code == CLD_EXITED ? info.si_status : -info.si_status;
    }
    pid_ = -1;
    return status_;
  }

 private:
  //! What the child needs; it must not allocate.
  struct Plan {
    char* const* arguments;
    char* const* environment;
    int in, out, err, failure;
    pid_t parent;
  };

  //! In the child, between fork and exec: system calls only.
  [[noreturn]] static void become(const Plan& plan) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);            // sent when the thread that forked ends ...
    if (::getppid() != plan.parent) ::_exit(127);  // ... which it may have done before
    ::setpgid(0, 0);
    if (::dup2(plan.in, 0) == 0 && ::dup2(plan.out, 1) == 1 && ::dup2(plan.err, 2) == 2) {
      sigset_t none;
      sigemptyset(&none);
      ::sigprocmask(SIG_SETMASK, &none, nullptr);
      ::execvpe(plan.arguments[0], plan.arguments, plan.environment);
    }
    int code = errno;
    [[maybe_unused]] ssize_t n = ::write(plan.failure, &code, sizeof code);
    ::_exit(127);  // the child alone: it has no program to go on with
  }

  //! errno of the child's exec; 0 when it succeeded, and closed the pipe by that.
  static int await_exec(const Descriptor& failure) {
    SystemClock clock;
    Deadline deadline = after(clock.now(), std::chrono::seconds{10});
    for (;;) {
      int code = 0;
      ssize_t n = ::read(failure.get(), &code, sizeof code);
      if (n == sizeof code) return code;
      if (n == 0) return 0;
      Time now = clock.now();
      if (now >= deadline) return ETIMEDOUT;
      pollfd p{.fd = failure.get(), .events = POLLIN, .revents = 0};
      wait_for({&p, 1}, now, deadline);
    }
  }

  void end() {
    if (pid_ < 0) return;
    signal(SIGKILL);
    SystemClock clock;
    Deadline deadline = after(clock.now(), std::chrono::seconds{10});
    while (!reap() && clock.now() < deadline) {  // in the middle of a disk access it takes a while
      pollfd p{.fd = handle_.get(), .events = POLLIN, .revents = 0};
      ::poll(&p, 1, 100);
    }
  }

  //! {read, write}, both beyond the standard three, so that dup2 in the child really duplicates.
  static std::pair<Descriptor, Descriptor> pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw CommError{"no pipe", {.code = errno}};
    std::pair<Descriptor, Descriptor> p{Descriptor{ends[0]}, Descriptor{ends[1]}};
    for (Descriptor* d : {&p.first, &p.second}) {
      if (d->get() > 2) continue;
      *d = Descriptor{::fcntl(d->get(), F_DUPFD_CLOEXEC, 3)};
      if (!*d) throw CommError{"no pipe", {.code = errno}};
    }
    ::fcntl(p.first.get(), F_SETFL, O_NONBLOCK);
    return p;
  }

  static std::vector<std::string> merged(const Variables& variables) {
    std::vector<std::string> all;
    for (char** e = environ; e != nullptr && *e != nullptr; ++e) {
      std::string_view entry{*e}, name = entry.substr(0, entry.find('='));
      bool replaced = false;
      for (const auto& [n, value] : variables) replaced = replaced || n == name;
      if (!replaced) all.emplace_back(entry);
    }
    for (const auto& [name, value] : variables) all.push_back(name + "=" + value);
    return all;
  }
  static std::vector<char*> pointers(const std::vector<std::string>& texts) {
    std::vector<char*> all;
    all.reserve(texts.size() + 1);
    for (const std::string& t : texts) all.push_back(const_cast<char*>(t.c_str()));  // exec's type
    all.push_back(nullptr);
    return all;
  }

  Process() = default;

  pid_t pid_ = -1;
  std::optional<int> status_{};
  Descriptor handle_, output_, errors_;
};

}  // namespace mend::comm
