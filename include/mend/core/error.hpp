#pragma once

#include <cerrno>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "mend/core/rank.hpp"
#include "mend/core/source_location.hpp"
#include "mend/core/step.hpp"

namespace mend {

//! What is known about the place of a failure; every field is optional.
struct ErrorContext {
  int code = 0;  //!< an errno value, 0 when no system call failed
  std::string path{};
  std::optional<Rank> rank{};
  std::optional<Step> step{};
};

//! Base of everything that mend throws. what() says what happened, where, and what to do about it.
class Error : public std::runtime_error {
 public:
  explicit Error(std::string_view message, ErrorContext context = {},
                 SourceLocation where = SourceLocation::current())
      : std::runtime_error{compose(message, context)},
        context_{std::move(context)},
        where_{where} {}

  [[nodiscard]] int code() const { return context_.code; }
  [[nodiscard]] const std::string& path() const { return context_.path; }
  [[nodiscard]] std::optional<Rank> rank() const { return context_.rank; }
  [[nodiscard]] std::optional<Step> step() const { return context_.step; }
  [[nodiscard]] const SourceLocation& where() const { return where_; }

 private:
  static std::string compose(std::string_view message, const ErrorContext& c) {
    std::string text{message};
    if (!c.path.empty()) text += " [" + c.path + "]";
    if (c.code != 0) text += std::string{": "} + std::strerror(c.code);
    std::string place;
    if (c.rank) place = "on rank " + std::to_string(static_cast<int>(*c.rank));
    if (c.step) place += (c.rank ? ", step " : "at step ") + std::to_string(c.step->value());
    return place.empty() ? text : text + " (" + place + ")";
  }

  ErrorContext context_;
  SourceLocation where_;
};

// The constructors are written out: nvcc 13 crashes on inherited ones with a SourceLocation.

//! A registration that cannot work: sizes, names, overlaps, placements, a moved buffer.
class StateError : public Error {
 public:
  explicit StateError(std::string_view message, ErrorContext context = {},
                      SourceLocation where = SourceLocation::current())
      : Error{message, std::move(context), where} {}
};

//! A coefficient or option outside its range, a combination that cannot work.
class OptionError : public Error {
 public:
  explicit OptionError(std::string_view message, ErrorContext context = {},
                       SourceLocation where = SourceLocation::current())
      : Error{message, std::move(context), where} {}
};

//! A file could not be read, written or trusted. path() and code() are set where they exist.
class FileError : public Error {
 public:
  explicit FileError(std::string_view message, ErrorContext context = {},
                     SourceLocation where = SourceLocation::current())
      : Error{message, std::move(context), where} {}
};

//! A peer, a link or a deadline failed, or a group was used outside its life.
class CommError : public Error {
 public:
  explicit CommError(std::string_view message, ErrorContext context = {},
                     SourceLocation where = SourceLocation::current())
      : Error{message, std::move(context), where} {}
};

//! The run as a whole cannot go on: no replacement left, a poison step, diverged replicas, nobody
//! holds the state any more. All members get it with the same reason.
class RunStopped : public Error {
 public:
  explicit RunStopped(std::string_view message, ErrorContext context = {},
                      SourceLocation where = SourceLocation::current())
      : Error{message, std::move(context), where} {}
};

}  // namespace mend
