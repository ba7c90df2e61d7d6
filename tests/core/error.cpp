#include <mend/core/error.hpp>

#include <doctest/doctest.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <type_traits>

using mend::Error;
using mend::ErrorContext;
using mend::Rank;
using mend::Step;

namespace {

template <class E>
constexpr bool is_error = std::is_base_of_v<Error, E>;
static_assert(std::is_base_of_v<std::runtime_error, Error>);
static_assert(is_error<mend::StateError> && is_error<mend::OptionError>);
static_assert(is_error<mend::FileError> && is_error<mend::CommError>);
static_assert(is_error<mend::RunStopped>);
static_assert(!std::is_base_of_v<mend::FileError, mend::CommError>);
static_assert(!std::is_convertible_v<const char*, mend::FileError>);

}  // namespace

TEST_CASE("an error says what, where, why, who and when") {
  mend::FileError e{"cannot write",
                    {.code = ENOSPC, .path = "/a/b", .rank = Rank{2}, .step = Step{17}}};
  CHECK(std::string{e.what()} ==
        std::string{"cannot write [/a/b]: "} + std::strerror(ENOSPC) + " (on rank 2, step 17)");
  CHECK(e.code() == ENOSPC);
  CHECK(e.path() == "/a/b");
  CHECK(*e.rank() == 2);
  CHECK(*e.step() == Step{17});
}

TEST_CASE("the place stands apart from the sentence, which may be about another rank") {
  auto text = [](ErrorContext c) { return std::string{Error{"rank 1 threw", c}.what()}; };
  CHECK(text({.rank = Rank{0}}) == "rank 1 threw (on rank 0)");
  CHECK(text({.step = Step{12}}) == "rank 1 threw (at step 12)");
  CHECK(text({.rank = Rank{0}, .step = Step{12}}) == "rank 1 threw (on rank 0, step 12)");
}

TEST_CASE("what is not known is not said") {
  mend::CommError e{"the link is gone"};
  CHECK(std::string{e.what()} == "the link is gone");
  CHECK(e.code() == 0);
  CHECK(e.path().empty());
  CHECK_FALSE(e.rank());
  CHECK_FALSE(e.step());
}

TEST_CASE_TEMPLATE("every kind knows its place and is caught as an Error", E, mend::StateError,
                   mend::OptionError, mend::FileError, mend::CommError, mend::RunStopped) {
  int line = 0;
  try {
    line = __LINE__ + 1;
    throw E{"reason", {.code = EIO}};
  } catch (const Error& e) {
    CHECK(e.where().line == line);
    CHECK(std::string{e.where().file}.find("error.cpp") != std::string::npos);
    CHECK(e.code() == EIO);
    const Error copy = e;
    CHECK(std::string{copy.what()} == e.what());
    CHECK(copy.where().line == line);
  }
}
