#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mend/core/bytes.hpp"
#include "mend/core/error.hpp"

namespace mend {

//! Seam: what mend does with files, and nothing else, so that it can run over a model of a disk.
//!
//! Laws. 1: create() makes a new file or throws; it never opens one that exists. 2: write() appends
//! everything or throws; read() fills its span from an offset or throws. 3: link() gives a file a
//! second name only if that name is free, and says whether it was; rename() replaces. 4: contents
//! are durable after file.sync(), names after sync_directory(): until then a power loss may undo
//! any of them, in any order. 5: after a failed sync a file is not to be trusted again.
//! 6: make_directory() says whether it made it; false: a directory was there. Everything blocks as
//! the disk does. Throws FileError with errno and path.
template <class F>
concept FileSystem = requires(F& files, const std::string& path, typename F::File& file,
                              ByteView bytes, std::uint64_t offset, std::span<std::byte> into) {
  { files.create(path) } -> std::same_as<typename F::File>;
  file.write(bytes);
  file.sync();
  file.close();
  { files.open(path) } -> std::same_as<typename F::File>;
  { file.size() } -> std::same_as<std::uint64_t>;
  file.read(offset, into);
  { files.link(path, path) } -> std::same_as<bool>;
  files.rename(path, path);
  files.remove(path);
  { files.list(path) } -> std::same_as<std::vector<std::string>>;
  { files.make_directory(path) } -> std::same_as<bool>;
  files.sync_directory(path);
};

namespace detail {

// Linux moves at most 2 GiB - 4 KiB per call, other systems refuse more than 2 GiB - 1.
inline constexpr std::size_t most_per_call = std::size_t{1} << 30;

inline void write_fully(int descriptor, ByteView bytes, const std::string& path) {
  while (!bytes.empty()) {
    ssize_t n = ::write(descriptor, bytes.data(), std::min(bytes.size(), most_per_call));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw FileError{"cannot write", {.code = errno, .path = path}};
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

inline void read_fully(int descriptor, std::uint64_t offset, std::span<std::byte> into,
                       const std::string& path) {
  while (!into.empty()) {
    ssize_t n = ::pread(descriptor, into.data(), std::min(into.size(), most_per_call),
                        static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw FileError{"cannot read", {.code = errno, .path = path}};
    if (n == 0) throw FileError{"the file is shorter than expected", {.path = path}};
    into = into.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
}

//! Calls again while a signal interrupts.
inline int retry(auto call) {
  int result;
  do result = call();
  while (result < 0 && errno == EINTR);
  return result;
}

}  // namespace detail

//! The directory that holds a path's last component; "." for a bare name.
[[nodiscard]] inline std::string directory_of(const std::string& path) {
  std::size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return path.substr(0, std::max<std::size_t>(slash, 1));
}

//! The machine's files.
class PosixFileSystem {
 public:
  //! An open file; closes itself. One thread at a time.
  class File {
   public:
    File(File&& other) noexcept
        : descriptor_{std::exchange(other.descriptor_, -1)}, path_{std::move(other.path_)} {}
    File& operator=(File&& other) noexcept {
      std::swap(descriptor_, other.descriptor_);
      std::swap(path_, other.path_);
      return *this;
    }
    ~File() {
      if (descriptor_ >= 0) ::close(descriptor_);
    }

    void write(ByteView bytes) { detail::write_fully(descriptor_, bytes, path_); }
    void read(std::uint64_t offset, std::span<std::byte> into) const {
      detail::read_fully(descriptor_, offset, into, path_);
    }
    [[nodiscard]] std::uint64_t size() const {
      return static_cast<std::uint64_t>(status().st_size);
    }
    void sync() {
      if (detail::retry([&] { return ::fsync(descriptor_); }) < 0)
        throw FileError{"cannot make the file durable; it is abandoned",
                        {.code = errno, .path = path_}};
    }
    //! Asks the system to begin with the writing of what it holds, and does not wait: a sync then
    //! finds less left to do, and is the one to report errors.
    void start_writing() noexcept {
      (void)::sync_file_range(descriptor_, 0, 0, SYNC_FILE_RANGE_WRITE);
    }
    //! Throws FileError where the system reports a late write error (network file systems, quotas).
    void close() {
      // Not repeated after EINTR: the descriptor is gone, and its number may be another thread's.
      if (::close(std::exchange(descriptor_, -1)) < 0 && errno != EINTR)
        throw FileError{"cannot close the file after writing", {.code = errno, .path = path_}};
    }

   private:
    friend class PosixFileSystem;
    File(int descriptor, std::string path) : descriptor_{descriptor}, path_{std::move(path)} {}

    [[nodiscard]] struct stat status() const {
      struct stat s {};
      if (::fstat(descriptor_, &s) < 0)
        throw FileError{"cannot look at the file", {.code = errno, .path = path_}};
      return s;
    }

    int descriptor_;
    std::string path_;
  };

  File create(const std::string& path) {
    return {opened(path, O_WRONLY | O_CREAT | O_EXCL, "cannot create a file"), path};
  }
  //! A regular file, for reading.
  File open(const std::string& path) {
    // Without O_NONBLOCK a named pipe would block here until somebody writes.
    File file{opened(path, O_RDONLY | O_NONBLOCK, "cannot open the file"), path};
    if (!S_ISREG(file.status().st_mode)) throw FileError{"not a regular file", {.path = path}};
    return file;
  }
  bool link(const std::string& from, const std::string& to) {
    if (::link(from.c_str(), to.c_str()) == 0) return true;
    if (errno == EEXIST) return false;
    throw FileError{"cannot link '" + from + "' to another name", {.code = errno, .path = to}};
  }
  void rename(const std::string& from, const std::string& to) {
    if (::rename(from.c_str(), to.c_str()) < 0)
      throw FileError{"cannot rename '" + from + "'", {.code = errno, .path = to}};
  }
  void remove(const std::string& path) {
    if (::unlink(path.c_str()) < 0)
      throw FileError{"cannot remove the file", {.code = errno, .path = path}};
  }
  //! Names in a directory, sorted, without "." and "..".
  std::vector<std::string> list(const std::string& directory) {
    std::unique_ptr<DIR, int (*)(DIR*)> stream{::opendir(directory.c_str()), ::closedir};
    if (stream == nullptr)
      throw FileError{"cannot list the directory", {.code = errno, .path = directory}};
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(stream.get())) {
      std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(std::move(name));
      errno = 0;
    }
    if (errno != 0)
      throw FileError{"cannot list the directory", {.code = errno, .path = directory}};
    std::sort(names.begin(), names.end());
    return names;
  }
  //! Not the directories above it. Throws FileError with ENOTDIR where something else is there.
  bool make_directory(const std::string& directory) {
    if (::mkdir(directory.c_str(), mode_t{0777}) == 0) return true;
    int code = errno;
    struct stat there {};
    if (code == EEXIST) code = ::stat(directory.c_str(), &there) < 0 ? errno : ENOTDIR;
    if (code == ENOTDIR && S_ISDIR(there.st_mode)) return false;
    throw FileError{"cannot make the directory", {.code = code, .path = directory}};
  }
  void sync_directory(const std::string& directory) {
    File file{opened(directory, O_RDONLY | O_DIRECTORY, "cannot open the directory"), directory};
    // EINVAL: a file system whose directories need no sync, or know none.
    if (detail::retry([&] { return ::fsync(file.descriptor_); }) < 0 && errno != EINVAL)
      throw FileError{"cannot make the directory durable", {.code = errno, .path = directory}};
  }

 private:
  static int opened(const std::string& path, int flags, const char* what) {
    int descriptor =
        detail::retry([&] { return ::open(path.c_str(), flags | O_CLOEXEC, mode_t{0666}); });
    if (descriptor < 0) throw FileError{what, {.code = errno, .path = path}};
    return descriptor;
  }
};
static_assert(FileSystem<PosixFileSystem>);

}  // namespace mend
