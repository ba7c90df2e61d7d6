#pragma once

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "mend/core/bytes.hpp"
#include "mend/core/error.hpp"
#include "mend/core/file_system.hpp"
#include "mend/store/json.hpp"
#include "mend/store/store.hpp"

namespace mend {

//! Another process writes to the directory; what() says on which host, and its number.
class StoreInUse : public Error {
 public:
  explicit StoreInUse(std::string_view message, ErrorContext context = {},
                      SourceLocation where = SourceLocation::current())
      : Error{message, std::move(context), where} {}
};

namespace store {

//! Says who writes to a directory, in its file "lock", so that a second run is told at once. It
//! protects nothing: ManifestLog does, and two that take one stale lock at once may both get it.
//!
//! A lock of this host counts while its process lives, by number, start and boot; one of another
//! host counts always, unless `take_over` is said. A dead process's lock, one from before a reboot
//! and a damaged one are taken over. The file goes when this is destroyed, unless somebody took it
//! over. Processes of containers with their own numbers and the host's name are not told apart.
class DirectoryLock {
 public:
  struct Options {
    bool take_over = false;  //!< whoever has it
  };

  //! `directory` must be there. Throws StoreInUse, FileError.
  explicit DirectoryLock(const std::string& directory, Options options)
      : path_{directory + "/lock"} {
    const Owner self = Owner::self();
    mine_ = text_of(self, unique_text());
    std::string hidden = directory + "/.mend-lock-" + unique_text();
    auto file = files_.create(hidden);
    try {
      file.write(std::as_bytes(std::span{mine_}));
      file.close();
      if (!files_.link(hidden, path_)) {
        if (std::optional<Owner> owner = read();
            owner && !options.take_over && owner->may_live(self))
          throw in_use(*owner);
        files_.rename(hidden, path_);
        hidden.clear();
      }
    } catch (...) {
      remove_quietly(hidden);
      throw;
    }
    remove_quietly(hidden);
  }
  explicit DirectoryLock(const std::string& directory) : DirectoryLock{directory, Options{}} {}
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
  ~DirectoryLock() {
    if (contents() == mine_) remove_quietly(path_);
  }

 private:
  //! A process, wherever it runs.
  struct Owner {
    std::string host{}, boot{};
    std::int64_t process = 0;
    std::uint64_t start = 0;  //!< clock ticks since the boot; 0: unknown

    static Owner self() {
      std::array<char, 256> name{};
      ::gethostname(name.data(), name.size() - 1);
      std::string boot = said_by("/proc/sys/kernel/random/boot_id");
      boot.resize(std::min(boot.size(), boot.find('\n')));
      return {
          .host = name.data(), .boot = boot, .process = ::getpid(), .start = start_of(::getpid())};
    }

    //! A short file of the kernel's; empty where there is none. (<fstream> would take a third of a
    //! second to parse.)
    static std::string said_by(const std::string& path) {
      const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{std::fopen(path.c_str(), "re"),
                                                                 std::fclose};
      std::string text(4096, '\0');
      text.resize(file ? std::fread(text.data(), 1, text.size(), file.get()) : 0);
      return text;
    }

    //! The 22nd field of /proc/N/stat; the second is in parentheses and may hold anything.
    static std::uint64_t start_of(std::int64_t process) {
      const std::string text = said_by("/proc/" + std::to_string(process) + "/stat");
      std::size_t at = text.rfind(')');
      for (int field = 2; field < 22 && at != text.npos; ++field) at = text.find(' ', at + 1);
      return at == text.npos ? 0 : std::strtoull(text.c_str() + at, nullptr, 10);
    }

    [[nodiscard]] bool may_live(const Owner& self) const {
      if (host != self.host) return true;
      if (boot != self.boot) return false;
      if (process <= 0 || (::kill(static_cast<pid_t>(process), 0) < 0 && errno == ESRCH))
        return false;
      return start == 0 || start == start_of(process);
    }
  };

  static std::string text_of(const Owner& owner, std::string nonce) {
    return Json{Json::Object{{"host", owner.host},
                             {"process", owner.process},
                             {"start", owner.start},
                             {"boot", owner.boot},
                             {"nonce", std::move(nonce)}}}
               .text() +
           '\n';
  }

  //! Empty where the file is not there or too large to be a lock.
  std::string contents() {
    try {
      auto file = files_.open(path_);
      std::string text(file.size() < 4096 ? file.size() : 0, '\0');
      file.read(0, std::as_writable_bytes(std::span{text}));
      return text;
    } catch (const FileError&) {
      return {};
    }
  }
  //! Empty where it names nobody.
  std::optional<Owner> read() {
    try {
      const Json json = Json::parse(contents(), "the lock", path_);
      auto get = [&]<class T>(std::string_view name, T& value) {
        const Json* member = json.find(name);
        const T* found = member == nullptr ? nullptr : member->as<T>();
        if (found != nullptr) value = *found;
        return found != nullptr;
      };
      Owner owner;
      std::uint64_t process = 0;
      if (!get("host", owner.host) || !get("boot", owner.boot) || !get("process", process) ||
          !get("start", owner.start) || process > 1u << 30)
        return std::nullopt;
      owner.process = static_cast<std::int64_t>(process);
      return owner;
    } catch (const FileError&) {
      return std::nullopt;
    }
  }

  [[nodiscard]] StoreInUse in_use(const Owner& owner) const {
    return StoreInUse{"the directory is in use by " + owner.host + ", process " +
                          std::to_string(owner.process) +
                          "; if that one is gone, remove the lock file",
                      {.path = path_}};
  }
  void remove_quietly(const std::string& path) {
    if (path.empty()) return;
    try {
      files_.remove(path);
    } catch (const FileError&) {  // a lock that stays is taken over
    }
  }

  PosixFileSystem files_;
  std::string path_, mine_;
};

}  // namespace store

}  // namespace mend
