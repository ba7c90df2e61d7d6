#include <mend/core/file_system.hpp>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>

#include "core/error_of.hpp"
#include "core/scratch.hpp"

using mend::Bytes;
using mend::ByteView;
using mend::FileError;
using mend::PosixFileSystem;
using mend_test::Scratch;

namespace {

ByteView view(std::string_view text) { return std::as_bytes(std::span{text}); }

std::string contents(PosixFileSystem& files, const std::string& path) {
  auto file = files.open(path);
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span{text}));
  return text;
}

using mend_test::error_of;

std::size_t open_descriptors() {
  std::filesystem::directory_iterator all{"/proc/self/fd"};
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

}  // namespace

TEST_CASE("what is written is read, from any offset") {
  Scratch scratch;
  PosixFileSystem files;
  auto file = files.create(scratch / "a");
  file.write(view("hello, "));
  file.write({});
  file.write(view("world"));
  file.start_writing();
  file.sync();
  file.close();
  files.sync_directory(scratch.path);

  auto back = files.open(scratch / "a");
  CHECK(back.size() == 12);
  std::string part(5, '\0');
  back.read(7, std::as_writable_bytes(std::span{part}));
  CHECK(part == "world");
  back.read(12, {});
  SUBCASE("a byte past the end is an error, not a short result") {
    CHECK(error_of([&] { back.read(8, std::as_writable_bytes(std::span{part})); }) == 0);
    CHECK(error_of([&] { back.read(1000, std::as_writable_bytes(std::span{part})); }) == 0);
  }
}

TEST_CASE("create never opens a file that exists") {
  Scratch scratch;
  PosixFileSystem files;
  files.create(scratch / "a").write(view("first"));
  CHECK(error_of([&] { files.create(scratch / "a"); }) == EEXIST);
  std::filesystem::create_symlink("nowhere", scratch / "dangling");
  CHECK(error_of([&] { files.create(scratch / "dangling"); }) == EEXIST);
  CHECK(contents(files, scratch / "a") == "first");
}

TEST_CASE("errors carry errno and path") {
  Scratch scratch;
  PosixFileSystem files;
  CHECK(error_of([&] { files.open(scratch / "absent"); }) == ENOENT);
  CHECK(error_of([&] { files.create(scratch / "absent/a"); }) == ENOENT);
  CHECK(error_of([&] { files.remove(scratch / "absent"); }) == ENOENT);
  CHECK(error_of([&] { files.rename(scratch / "absent", scratch / "b"); }) == ENOENT);
  CHECK(error_of([&] { files.link(scratch / "absent", scratch / "b"); }) == ENOENT);
  CHECK(error_of([&] { files.list(scratch / "absent"); }) == ENOENT);
  CHECK(error_of([&] { files.sync_directory(scratch / "absent"); }) == ENOENT);
  files.create(scratch / "file");
  CHECK(error_of([&] { files.sync_directory(scratch / "file"); }) == ENOTDIR);
  CHECK(error_of([&] { files.list(scratch / "file"); }) == ENOTDIR);
  try {
    files.open(scratch / "absent");
  } catch (const FileError& e) {
    CHECK(e.path() == scratch / "absent");
    CHECK(std::string{e.what()}.find("No such file or directory") != std::string::npos);
  }
}

TEST_CASE("only regular files are opened, and a named pipe does not block") {
  Scratch scratch;
  PosixFileSystem files;
  REQUIRE(::mkfifo((scratch / "pipe").c_str(), 0600) == 0);
  CHECK(error_of([&] { files.open(scratch / "pipe"); }) == 0);
  CHECK(error_of([&] { files.open(scratch.path); }) == 0);
}

TEST_CASE("link takes a free name only, rename any") {
  Scratch scratch;
  PosixFileSystem files;
  files.create(scratch / "a").write(view("a"));
  files.create(scratch / "b").write(view("b"));
  CHECK_FALSE(files.link(scratch / "a", scratch / "b"));
  CHECK(contents(files, scratch / "b") == "b");
  CHECK(files.link(scratch / "a", scratch / "c"));
  files.rename(scratch / "a", scratch / "b");
  CHECK(contents(files, scratch / "b") == "a");
  CHECK(contents(files, scratch / "c") == "a");
  CHECK(files.list(scratch.path) == std::vector<std::string>{"b", "c"});
  files.remove(scratch / "b");
  CHECK(files.list(scratch.path) == std::vector<std::string>{"c"});
}

TEST_CASE("a file moves and closes once; no descriptor is left") {
  Scratch scratch;
  PosixFileSystem files;
  std::size_t before = open_descriptors();
  {
    auto a = files.create(scratch / "a");
    auto b = files.create(scratch / "b");
    b = std::move(a);
    b.write(view("moved"));
    auto c = std::move(b);
    c.write(view(" twice"));
    CHECK(error_of([&] { files.open(scratch.path); }) == 0);
    CHECK(open_descriptors() == before + 2);
  }
  CHECK(open_descriptors() == before);
  CHECK(contents(files, scratch / "a") == "moved twice");
}

TEST_CASE("more than 2 GiB in one call") {
  // The pages are never touched: /dev/null takes them unseen, at most 2 GiB - 4 KiB per call.
  std::size_t size = (std::size_t{5} << 30) / 2;
  void* pages =
      ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(pages != MAP_FAILED);
  int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  REQUIRE(null >= 0);
  CHECK_NOTHROW(
      mend::detail::write_fully(null, {static_cast<std::byte*>(pages), size}, "/dev/null"));
  ::close(null);
  ::munmap(pages, size);
}

TEST_CASE("short writes and interrupting signals lose nothing") {
  struct sigaction interrupt {
  }, before{};
  interrupt.sa_handler = [](int) {};  // without SA_RESTART: write returns early, or EINTR
  REQUIRE(::sigaction(SIGUSR1, &interrupt, &before) == 0);
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  Bytes sent(3 << 20);
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 7 + i / 251);
  std::atomic<bool> done{false};
  std::thread writer{[&] {
    mend::detail::write_fully(ends[1], sent, "pipe");
    done = true;
  }};
  Bytes got;
  Bytes chunk(10'007);
  for (int i = 0; got.size() < sent.size(); ++i) {
    // The first signal ends a write early; the second comes before the next has moved a byte.
    for (int k = 0; k < 2 && !done; ++k) {
      ::pthread_kill(writer.native_handle(), SIGUSR1);
      if (i < 20) std::this_thread::sleep_for(std::chrono::milliseconds{2});
    }
    ssize_t n = ::read(ends[0], chunk.data(), chunk.size());
    REQUIRE(n > 0);
    got.insert(got.end(), chunk.begin(), chunk.begin() + n);
  }
  writer.join();
  CHECK(got == sent);
  ::close(ends[0]);
  ::close(ends[1]);
  ::sigaction(SIGUSR1, &before, nullptr);
}

TEST_CASE("a full disk and a file size limit are errors with their errno") {
  int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  REQUIRE(full >= 0);
  CHECK(error_of([&] { mend::detail::write_fully(full, view("x"), "/dev/full"); }) == ENOSPC);
  ::close(full);

  Scratch scratch;
  PosixFileSystem files;
  auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  rlimit limit = before;
  limit.rlim_cur = 4096;
  auto file = files.create(scratch / "a");
  Bytes large(10'000);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  int code = error_of([&] { file.write(large); });
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, handler);
  CHECK(code == EFBIG);
}

TEST_CASE("a directory is made once, and nothing else passes for one") {
  Scratch scratch;
  PosixFileSystem files;
  CHECK(files.make_directory(scratch / "new"));
  CHECK_FALSE(files.make_directory(scratch / "new"));
  std::filesystem::create_directory_symlink("new", scratch / "link");
  CHECK_FALSE(files.make_directory(scratch / "link"));
  files.create(scratch / "file");
  CHECK(error_of([&] { files.make_directory(scratch / "file"); }) == ENOTDIR);
  CHECK(error_of([&] { files.make_directory(scratch / "absent/new"); }) == ENOENT);
  std::filesystem::create_symlink("loop", scratch / "loop");
  CHECK(error_of([&] { files.make_directory(scratch / "loop"); }) == ELOOP);
  std::filesystem::create_symlink("nowhere", scratch / "dangling");
  CHECK(error_of([&] { files.make_directory(scratch / "dangling"); }) == ENOENT);
}

TEST_CASE("the directory of a path") {
  CHECK(mend::directory_of("a") == ".");
  CHECK(mend::directory_of("a/b") == "a");
  CHECK(mend::directory_of("/a/b.c/d") == "/a/b.c");
  CHECK(mend::directory_of("/a") == "/");
}

namespace {

struct NoRename {  // near miss: everything but rename
  using File = PosixFileSystem::File;
  File create(const std::string&);
  File open(const std::string&);
  bool link(const std::string&, const std::string&);
  void remove(const std::string&);
  std::vector<std::string> list(const std::string&);
  bool make_directory(const std::string&);
  void sync_directory(const std::string&);
};
static_assert(!mend::FileSystem<NoRename>);
static_assert(!std::is_copy_constructible_v<PosixFileSystem::File>);

}  // namespace
