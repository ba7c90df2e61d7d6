#include <mend/store/directory_lock.hpp>

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include "core/scratch.hpp"

using mend::StoreInUse;
using mend::store::DirectoryLock;
using mend::store::Json;
using mend_test::Scratch;

namespace {

std::string host() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string contents(const std::string& path) {
  std::ifstream file{path};
  return {std::istreambuf_iterator<char>{file}, {}};
}

//! Rewrites the lock with one member changed.
void change(const std::string& path, const std::string& key, Json value) {
  Json::Object members = *Json::parse(contents(path), "the lock", path).as<Json::Object>();
  for (auto& [k, v] : members)
    if (k == key) v = value;
  std::ofstream{path} << Json{members}.text();
}

//! The message with which the directory is refused; empty if it is not.
std::string refusal(const std::string& directory) {
  try {
    DirectoryLock lock{directory};
  } catch (const StoreInUse& e) {
    CHECK(e.path() == directory + "/lock");
    return e.what();
  }
  return "";
}

std::size_t files_in(const std::string& directory) {
  std::filesystem::directory_iterator all{directory};
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

//! A process that has just ended, and its number.
pid_t dead_process() {
  pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  return child;
}

}  // namespace

TEST_CASE("a second writer is told who the first one is, until that one ends") {
  Scratch scratch;
  {
    DirectoryLock lock{scratch.path};
    std::string why = refusal(scratch.path);
    CHECK(why.find("in use by " + host() + ", process " + std::to_string(::getpid())) !=
          std::string::npos);
    CHECK(files_in(scratch.path) == 1);
  }
  CHECK(files_in(scratch.path) == 0);
  CHECK(refusal(scratch.path).empty());
}

TEST_CASE("a killed writer's lock is taken over, a living one's is not") {
  Scratch scratch;
  std::array<int, 2> ready{}, end{};
  REQUIRE(::pipe(ready.data()) == 0);
  REQUIRE(::pipe(end.data()) == 0);
  pid_t child = ::fork();
  if (child == 0) {
    DirectoryLock lock{scratch.path};
    char c = 'x';
    if (::write(ready[1], &c, 1) == 1) (void)!::read(end[0], &c, 1);
    ::_exit(0);  // without destroying the lock, as a kill would
  }
  char c = 0;
  REQUIRE(::read(ready[0], &c, 1) == 1);
  CHECK(refusal(scratch.path).find("process " + std::to_string(child)) != std::string::npos);
  REQUIRE(::write(end[1], &c, 1) == 1);
  ::waitpid(child, nullptr, 0);
  CHECK(files_in(scratch.path) == 1);
  CHECK(refusal(scratch.path).empty());
  CHECK(files_in(scratch.path) == 0);
  for (int fd : {ready[0], ready[1], end[0], end[1]}) ::close(fd);
}

TEST_CASE("a lock counts by host, number, start and boot") {
  Scratch scratch;
  std::string path = scratch / "lock";
  DirectoryLock held{scratch.path};
  std::string whole = contents(path);
  auto changed = [&](const std::string& key, Json value) {
    std::ofstream{path} << whole;
    change(path, key, std::move(value));
  };
  changed("nonce", "another");
  CHECK_FALSE(refusal(scratch.path).empty());
  changed("process", static_cast<std::uint64_t>(dead_process()));
  CHECK(refusal(scratch.path).empty());
  changed("start", std::uint64_t{1});  // the number was given to another process since
  CHECK(refusal(scratch.path).empty());
  changed("boot", "an earlier one");
  CHECK(refusal(scratch.path).empty());
  changed("host", "another-host");
  CHECK(refusal(scratch.path).find("in use by another-host, process") != std::string::npos);
  {
    DirectoryLock taken{scratch.path, {.take_over = true}};
    CHECK(contents(path).find(host()) != std::string::npos);
  }
  CHECK(files_in(scratch.path) == 0);
}

TEST_CASE("a damaged lock names nobody") {
  Scratch scratch;
  for (const char* text : {"", "{}", "[]", "x", "{\"host\":\"h\"}",
                           "{\"host\":1,\"boot\":\"\",\"process\":1,\"start\":0}"}) {
    std::ofstream{scratch / "lock"} << text;
    CHECK(refusal(scratch.path).empty());
  }
  std::ofstream{scratch / "lock"} << std::string(10'000, 'x');
  CHECK(refusal(scratch.path).empty());
}

TEST_CASE("whoever lost the lock does not remove the other's") {
  Scratch scratch;
  std::optional<DirectoryLock> first{std::in_place, scratch.path};
  DirectoryLock second{scratch.path, {.take_over = true}};
  first.reset();
  CHECK(files_in(scratch.path) == 1);
  CHECK_FALSE(refusal(scratch.path).empty());
}

TEST_CASE("a directory that is not there is a FileError") {
  Scratch scratch;
  try {
    DirectoryLock lock{scratch / "absent"};
    FAIL("no error");
  } catch (const mend::FileError& e) {
    CHECK(e.code() == ENOENT);
  }
}
