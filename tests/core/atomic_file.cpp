#include <mend/core/atomic_file.hpp>

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/disk.hpp"
#include "core/scratch.hpp"

using mend::AtomicFile;
using mend::FileError;
using mend_test::Disk;

namespace {

Disk with_old_file() {
  Disk disk;
  auto node = std::make_shared<Disk::Node>(Disk::Node{"old", "old"});
  disk.now["d/file"] = disk.durable["d/file"] = node;
  return disk;
}

}  // namespace

TEST_CASE("a file appears under its name only when it is published") {
  Disk disk = with_old_file();
  {
    AtomicFile file{disk, "d/file"};
    file.write(std::string_view{"new "});
    file.write(std::string_view{"text"});
    CHECK(disk.now.at("d/file")->text == "old");
    file.publish();
    CHECK(disk.now.at("d/file")->text == "new text");
  }
  CHECK(disk.now.size() == 1);
}

TEST_CASE("one that is given up leaves nothing behind") {
  Disk disk = with_old_file();
  { AtomicFile{disk, "d/file"}.write(std::string_view{"new"}); }
  CHECK(disk.now.size() == 1);
  CHECK(disk.now.at("d/file")->text == "old");
}

TEST_CASE("a failure at any operation leaves the old file or the whole new one, and no other") {
  for (int n = 0;; ++n) {
    Disk disk = with_old_file();
    disk.fail_at = n;
    bool failed = false;
    try {
      AtomicFile file{disk, "d/file"};
      file.write(std::string_view{"new"});
      file.publish_durably();
    } catch (const FileError& e) {
      failed = true;
      CHECK(e.code() == ENOSPC);
    }
    CHECK(disk.now.size() == 1);
    std::string text = disk.now.at("d/file")->text;
    CHECK((text == "old" || text == "new"));
    CHECK(disk.after_power_loss("d/file").count("(nothing)") == 0);
    if (!failed) {
      CHECK(n == 6);  // create, write, sync, close, rename, directory
      break;
    }
  }
}

TEST_CASE("a power loss at any moment leaves the old contents or the new ones") {
  for (int n = 0; n <= 6; ++n) {
    Disk disk = with_old_file();
    disk.fail_at = n;
    try {
      AtomicFile file{disk, "d/file"};
      file.write(std::string_view{"new"});
      file.publish_durably();
      CHECK(disk.after_power_loss("d/file") == std::set<std::string>{"new"});
    } catch (const FileError&) {
      for (const std::string& text : disk.after_power_loss("d/file"))
        CHECK((text == "old" || text == "new"));
    }
  }
}

TEST_CASE("on the real disk; errors name the file that the caller knows") {
  mend_test::Scratch scratch;
  mend::PosixFileSystem files;
  std::string path = scratch / "file";
  for (std::string_view text : {"one", "two"}) {
    AtomicFile file{files, path};
    file.write(text);
    file.publish_durably();
    std::string back(3, '\0');
    files.open(path).read(0, std::as_writable_bytes(std::span{back}));
    CHECK(back == text);
  }
  CHECK(files.list(scratch.path) == std::vector<std::string>{"file"});
  try {
    AtomicFile file{files, scratch / "absent/file"};
    FAIL("a file in a directory that does not exist");
  } catch (const FileError& e) {
    CHECK(e.code() == ENOENT);
    CHECK(e.path() == scratch / "absent/file");
  }
  // A directory, a pipe or a link in the way: nothing is replaced, nothing is left.
  std::filesystem::create_directory(scratch / "directory");
  std::filesystem::create_symlink("file", scratch / "link");
  REQUIRE(::mkfifo((scratch / "pipe").c_str(), 0600) == 0);
  for (const char* name : {"directory", "link", "pipe"}) {
    auto write = [&] { AtomicFile{files, scratch / name}; };
    CHECK_THROWS_WITH_AS(write(), doctest::Contains(name), FileError);
  }
  CHECK(files.list(scratch.path) == std::vector<std::string>{"directory", "file", "link", "pipe"});
}
