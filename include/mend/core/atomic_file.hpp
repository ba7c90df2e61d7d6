#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "mend/core/bytes.hpp"
#include "mend/core/clock.hpp"
#include "mend/core/file_system.hpp"

namespace mend {

//! A file that appears under its name whole or not at all. Until it is published, what stood there
//! before stays. Written under a hidden name beside it (".mend-…"), which goes when this is
//! destroyed; a killed process may leave one behind. The file system must outlive this.
//! Throws FileError with errno and path; EISDIR or EEXIST where the path names something that is no
//! regular file (a device, a pipe, a symbolic link).
template <FileSystem F>
class AtomicFile {
 public:
  AtomicFile(F& files, std::string path)
      : files_{files},
        path_{std::move(path)},
        temporary_{directory_of(path_) + "/.mend-" + nonce()},
        file_{guarded([&] {
          refuse_what_is_no_file();
          return files_.create(temporary_);
        })} {}
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile() {
    if (temporary_.empty()) return;
    try {
      files_.remove(temporary_);
    } catch (const Error&) {  // the failure that brought us here is the one to report
    }
  }

  void write(ByteView bytes) {
    guarded([&] { file_.write(bytes); });
  }
  void write(std::string_view text) { write(std::as_bytes(std::span{text})); }

  //! Now visible; a power loss may still take it back, or leave it empty.
  void publish() {
    guarded([&] { file_.close(); });
    files_.rename(temporary_, path_);
    temporary_.clear();
  }
  //! Visible and durable when this returns.
  void publish_durably() {
    guarded([&] { file_.sync(); });
    publish();
    files_.sync_directory(directory_of(path_));
  }

 private:
  //! A failure is reported under the name that the caller knows.
  auto guarded(auto call) {
    try {
      return call();
    } catch (const FileError& e) {
      throw FileError{"cannot write the file; what stood there before is untouched",
                      {.code = e.code(), .path = path_}};
    }
  }
  //! Renaming would put a file in the place of a device, a pipe or a link.
  void refuse_what_is_no_file() const {
    struct stat there {};
    if (::lstat(path_.c_str(), &there) == 0 && !S_ISREG(there.st_mode))
      throw FileError{"", {.code = S_ISDIR(there.st_mode) ? EISDIR : EEXIST, .path = path_}};
  }
  static std::string nonce() {
    static std::atomic<std::uint64_t> counter{0};
    return std::to_string(::getpid()) + "-" + std::to_string(SystemClock{}.now().count()) + "-" +
           std::to_string(counter++);
  }

  F& files_;
  std::string path_;
  std::string temporary_;
  typename F::File file_;
};

}  // namespace mend
