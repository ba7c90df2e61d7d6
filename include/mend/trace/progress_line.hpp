#pragma once

#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mend/core/clock.hpp"
#include "mend/core/step.hpp"
#include "mend/core/text.hpp"

namespace mend::trace {

struct ProgressOptions {
  int descriptor = STDERR_FILENO;                  //!< where to; stays the caller's
  std::optional<bool> terminal{};                  //!< empty: ask isatty
  Time interval = std::chrono::milliseconds{200};  //!< between redraws, and before an event is told
  Time plain_interval = std::chrono::seconds{10};  //!< between lines where there is no terminal
};

//! How a run is doing, on one line: "step 1200/10000  loss 0.4321  85.2 steps/s  eta 1m43s |
//! event". On a terminal the line is redrawn in place; elsewhere a new line comes now and then.
//! Never blocks training: a draw that the terminal or pipe has no room for is left out, SIGPIPE
//! does not kill. Any thread may call. Times are the caller's, so that virtual time works.
class ProgressLine {
 public:
  struct Value {
    std::string_view name;
    double value;
  };

  explicit ProgressLine(Step last, ProgressOptions options = {})
      : last_{last},
        options_{options},
        terminal_{options.terminal.value_or(::isatty(options.descriptor) == 1)} {}
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine() {
    if (live_) write("\n", patience);
  }

  //! `done`: committed steps so far. The values are shown in their order.
  void update(Time now, Step done, std::initializer_list<Value> values) {
    std::lock_guard lock{mutex_};
    step_ = done;
    values_.resize(values.size());
    std::size_t i = 0;
    for (const Value& v : values) {
      values_[i].first.assign(v.name);
      values_[i++].second = v.value;
    }
    if (due(now, terminal_ ? options_.interval : options_.plain_interval)) draw(now, 0);
  }

  //! Something worth a word; the latest few end the line, the newest first.
  void event(Time now, std::string_view text) {
    std::lock_guard lock{mutex_};
    events_.emplace_front(text.substr(0, longest));
    if (events_.size() > most_events) events_.pop_back();
    if (due(now, options_.interval)) draw(now, 0);
  }

  //! Draws the last state and ends the line. Waits at most a tenth of a second for room.
  void finish(Time now) {
    std::lock_guard lock{mutex_};
    draw(now, patience);
    if (live_) write("\n", patience);
    live_ = false;
  }

 private:
  static constexpr std::size_t most_events = 3;
  static constexpr std::size_t longest = 800;  // characters; below what a pipe takes at once
  static constexpr int patience = 100;         // milliseconds

  [[nodiscard]] bool due(Time now, Time interval) const {
    return !drawn_ || now - *drawn_ >= interval;
  }

  void draw(Time now, int wait) {
    measure(now);
    drawn_ = now;
    std::string text = cut(compose(), terminal_ ? columns() : longest);
    text = terminal_ ? "\r" + text + "\x1b[K" : text + "\n";
    if (!write(text, wait)) return;
    live_ = terminal_;
    if (!terminal_) events_.clear();  // a line that stays has told them
  }

  //! Steps per second, smoothed over draws; a step taken back counts as no progress.
  void measure(Time now) {
    if (drawn_ && now > *drawn_) {
      double seconds = std::chrono::duration<double>(now - *drawn_).count();
      double steps = static_cast<double>(std::max<std::int64_t>(0, (step_.value() - drawn_step_)));
      rate_ = rate_ == 0 ? steps / seconds : 0.7 * rate_ + 0.3 * steps / seconds;
    }
    drawn_step_ = step_.value();
  }

  [[nodiscard]] std::string compose() const {
    std::string text =
        "step " + std::to_string(step_.value()) + "/" + std::to_string(last_.value());
    for (const auto& [name, value] : values_)
      text += "  " + name + " " + number(value, std::chars_format::general, 4);
    if (rate_ > 0) {
      text += "  " + number(rate_, std::chars_format::fixed,
                            rate_ >= 100  ? 0
                            : rate_ >= 10 ? 1
                                          : 2);
      text += " steps/s";
      double left = static_cast<double>(last_.value() - step_.value()) / rate_;
      if (left > 0 && left < 1e9) text += "  eta " + duration(static_cast<std::int64_t>(left));
    }
    for (const std::string& event : events_) text += (&event == &events_[0] ? " | " : "; ") + event;
    return text;
  }

  // Not printf: the caller's locale may write a comma.
  static std::string number(double value, std::chars_format format, int precision) {
    char digits[400];
    auto end = std::to_chars(digits, digits + sizeof digits, value, format, precision).ptr;
    return {digits, end};
  }
  static std::string duration(std::int64_t seconds) {
    auto two = [](std::int64_t n) { return (n < 10 ? "0" : "") + std::to_string(n); };
    if (seconds >= 3600) return std::to_string(seconds / 3600) + "h" + two(seconds / 60 % 60) + "m";
    if (seconds >= 60) return std::to_string(seconds / 60) + "m" + two(seconds % 60) + "s";
    return std::to_string(seconds) + "s";
  }

  //! At most `width` characters; what would move the cursor or is no text becomes '?'.
  static std::string cut(std::string_view text, std::size_t width) {
    std::string out;
    for (std::size_t i = 0; i < width && !text.empty(); ++i) {
      std::size_t n = utf8_sequence(text);
      auto c = static_cast<unsigned char>(text[0]);
      bool control = c < 0x20 || c == 0x7f || (c == 0xc2 && n == 2 && text[1] < '\xa0');
      if (n == 0 || control)
        out += '?';
      else
        out += text.substr(0, n);
      text.remove_prefix(std::max<std::size_t>(n, 1));
    }
    return out;
  }

  [[nodiscard]] std::size_t columns() const {
    winsize size{};
    bool known = ::ioctl(options_.descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    // One less than there are: a character in the last column may wrap.
    return std::min<std::size_t>(known ? size.ws_col - 1u : 79u, longest);
  }

  //! Writes if there is room within `wait` milliseconds. A pipe or terminal that has room takes a
  //! text of this length without blocking.
  bool write(std::string_view text, int wait) {
    pollfd room{options_.descriptor, POLLOUT, 0};
    if (::poll(&room, 1, wait) != 1 || room.revents != POLLOUT) return false;
    // The reader may still go between poll and write; its signal is held back and taken away.
    sigset_t pipe, before;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe, &before);
    bool written = ::write(options_.descriptor, text.data(), text.size()) > 0;
    if (!written && errno == EPIPE && sigismember(&before, SIGPIPE) == 0) {
      timespec now{};
      ::sigtimedwait(&pipe, nullptr, &now);
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return written;
  }

  const Step last_;
  const ProgressOptions options_;
  const bool terminal_;
  std::mutex mutex_;
  Step step_{};
  std::vector<std::pair<std::string, double>> values_;
  std::deque<std::string> events_;
  std::optional<Time> drawn_{};
  std::int64_t drawn_step_ = 0;
  double rate_ = 0;
  bool live_ = false;  // a line stands on the terminal that has not ended
};

}  // namespace mend::trace
