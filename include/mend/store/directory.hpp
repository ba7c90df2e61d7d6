#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mend/core/bytes.hpp"
#include "mend/core/error.hpp"
#include "mend/core/file_system.hpp"
#include "mend/store/store.hpp"

namespace mend {

//! What survives what.
enum class Durability : std::uint8_t {
  durable,  //!< all that was put or synced survives a power loss: files and directories are synced
  relaxed,  //!< only put_if_absent() syncs, so manifests survive a power loss and what they name
            //!< may not have: checksums find that out, and an older checkpoint is taken
  flushed   //!< nothing is synced: it survives the process, not the machine
};

struct DirectoryOptions {
  Durability durability = Durability::durable;
};

//! A store in a directory of a local disk, or of a file system that several hosts share.
//!
//! A name is a path below the directory. The directory, those above it that are missing, and its
//! folders are made, and made durable, when something is first written there; if they vanish later,
//! that is an error (FileError, ENOENT). put_if_absent() writes a hidden file beside the name
//! (".mend-NAME-NONCE"), syncs it, links it to the name and syncs the folder; so the file system
//! must know hard links. Nothing but names that were asked for, and such hidden files, is touched.
//! F is copied: copies of it must mean the same files. Where folders are shared over NFS, size() of
//! a name that was just put elsewhere may be empty for as long as the client caches names.
//! Cost beyond the bytes: two syncs for a put, four system calls for a read.
template <FileSystem F>
class BasicDirectory {
 public:
  explicit BasicDirectory(std::string path, DirectoryOptions options = {}, F files = {})
      : files_{std::move(files)}, path_{std::move(path)}, options_{options} {
    if (path_.empty()) throw OptionError{"a directory has no name"};
    while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
  }

 private:
  //! A file that is written; after an error it takes nothing more, since what follows a hole would
  //! be durable and unreadable, and a repeated sync may succeed without having written.
  struct Output {
    void write(ByteView bytes) {
      guarded([&] { file.write(bytes); });
    }
    void sync() {
      guarded([&] {
        if (syncs) file.sync();
      });
    }
    void guarded(auto call) {
      if (std::exchange(failed, true))
        throw FileError{"the file was abandoned after an earlier error", {.path = path}};
      call();
      failed = false;
    }

    typename F::File file;
    std::string path;
    bool syncs, failed = false;
  };

  static void remove_quietly(F& files, const std::string& path) {
    try {
      files.remove(path);
    } catch (const Error&) {  // what brought us here is the thing to report
    }
  }

 public:
  class Writer {
   public:
    Writer(Writer&& other) noexcept
        : files_{std::move(other.files_)},
          output_{std::move(other.output_)},
          pending_{other.pending_} {
      other.output_.path.clear();
    }
    Writer& operator=(Writer&&) = delete;
    ~Writer() {
      if (!output_.path.empty()) remove_quietly(files_, output_.path);
    }

    void write(ByteView bytes) {
      while (!bytes.empty()) {
        ByteView piece = bytes.first(std::min(bytes.size(), stride - pending_));
        output_.write(piece);
        bytes = bytes.subspan(piece.size());
        pending_ = (pending_ + piece.size()) % stride;
        if (pending_ == 0) start_writing();
      }
    }
    void publish() {
      output_.sync();
      output_.file.close();
      if (output_.syncs) files_.sync_directory(directory_of(output_.path));
      output_.path.clear();  // nothing to take away any more
    }

   private:
    friend BasicDirectory;
    Writer(F files, const std::string& path, bool syncs)
        : files_{std::move(files)}, output_{files_.create(path), path, syncs} {}

    //! The disk works while the next piece is made: measured, a fifth less time.
    void start_writing() {
      if constexpr (requires { output_.file.start_writing(); })
        if (output_.syncs) output_.file.start_writing();
    }
    static constexpr std::size_t stride = std::size_t{1} << 20;

    F files_;
    Output output_;
    std::size_t pending_ = 0;  // bytes since the last start
  };

  class Appender {
   public:
    void append(ByteView bytes) { output_.write(bytes); }
    void sync() { output_.sync(); }

   private:
    friend BasicDirectory;
    explicit Appender(Output output) : output_{std::move(output)} {}

    Output output_;
  };

  [[nodiscard]] Writer put_new(const std::string& name) {
    return {files_, ready_path(name), syncs()};
  }

  [[nodiscard]] Appender append_new(const std::string& name) {
    std::string path = ready_path(name);
    Output output{files_.create(path), path, syncs()};
    try {
      if (syncs()) files_.sync_directory(directory_of(path));
    } catch (const FileError&) {
      remove_quietly(files_, path);
      throw;
    }
    return Appender{std::move(output)};
  }

  [[nodiscard]] bool put_if_absent(const std::string& name, ByteView bytes) {
    bool syncs = options_.durability != Durability::flushed;
    std::string path = ready_path(name), folder = directory_of(path);
    std::string hidden = folder + "/" + hidden_name(name) + store::unique_text();
    Hidden guard{files_, hidden};
    try {
      Output output{files_.create(hidden), hidden, syncs};
      output.write(bytes);
      output.sync();
      output.file.close();
    } catch (const FileError& e) {
      throw FileError{"cannot write the file; nothing of it is kept",
                      {.code = e.code(), .path = path}};
    }
    // A server may link, and its answer be lost; the bytes tell.
    if (!files_.link(hidden, path) && !holds(name, bytes)) return false;
    if (syncs) files_.sync_directory(folder);
    return true;
  }

  [[nodiscard]] std::optional<std::uint64_t> size(const std::string& name) {
    try {
      return files_.open(path_of(name)).size();
    } catch (const FileError& e) {
      if (e.code() == ENOENT) return std::nullopt;
      throw;
    }
  }
  void read_range(const std::string& name, std::uint64_t offset, std::span<std::byte> into) {
    files_.open(path_of(name)).read(offset, into);
  }
  //! `folder` ends in a slash, or is empty for what lies in the directory itself; folders in it are
  //! listed as names too.
  [[nodiscard]] std::vector<std::string> list(const std::string& folder) {
    std::vector<std::string> names;
    for (const std::string& name : files_in(folder))
      if (is_store_name(name)) names.push_back(folder + name);
    return names;
  }
  void remove(const std::string& name) {
    try {
      files_.remove(path_of(name));
    } catch (const FileError& e) {
      if (e.code() != ENOENT) throw;
    }
  }
  void sync_existing(const std::string& name) {
    if (!syncs()) return;
    std::string path = ready_path(name);
    files_.open(path).sync();
    files_.sync_directory(directory_of(path));
  }
  void remove_leftovers(const std::string& folder, const std::string& before) {
    for (const std::string& name : files_in(folder)) {
      std::string path = path_ + "/" + folder + name;
      if (name.starts_with(hidden_prefix) && name < hidden_name(before))
        remove_quietly(files_, path);
    }
  }

  [[nodiscard]] const std::string& path() const { return path_; }

  //! Makes the directory itself, for what needs it before the first write (DirectoryLock).
  void prepare() {
    std::lock_guard lock{made_->mutex};
    make(path_);
  }

 private:
  //! A file that goes at the end of a scope.
  struct Hidden {
    ~Hidden() { remove_quietly(files, path); }

    F& files;
    const std::string& path;
  };

  //! The folders that are there and durable.
  struct Made {
    std::mutex mutex;
    std::set<std::string> folders;
  };

  static constexpr std::string_view hidden_prefix = ".mend-";

  //! Without the nonce; sorts as the names do.
  static std::string hidden_name(const std::string& name) {
    return std::string{hidden_prefix} + name.substr(name.rfind('/') + 1) + "-";
  }

  [[nodiscard]] bool syncs() const { return options_.durability == Durability::durable; }

  [[nodiscard]] std::string path_of(const std::string& name) const {
    if (!is_store_name(name))
      throw FileError{"not a name in a store: '" + name + "'", {.code = EINVAL, .path = path_}};
    return path_ + "/" + name;
  }
  //! A name's path, in a folder that is there and durable.
  [[nodiscard]] std::string ready_path(const std::string& name) {
    std::string path = path_of(name), folder = directory_of(path);
    std::lock_guard lock{made_->mutex};
    if (made_->folders.count(folder) == 0) {
      make(folder);
      made_->folders.insert(folder);
    }
    return path;
  }
  //! Durable whoever made them, since that one may have died before its syncs.
  void make(const std::string& directory) {
    std::string parent = directory_of(directory);
    if (parent == directory) return;
    make(parent);
    bool made = files_.make_directory(directory);
    if (options_.durability == Durability::flushed) return;
    try {
      files_.sync_directory(parent);
    } catch (const FileError& e) {
      // Those high above may not be ours to read.
      if (made || e.code() != EACCES) throw;
    }
  }

  [[nodiscard]] bool holds(const std::string& name, ByteView bytes) {
    if (size(name) != bytes.size()) return false;
    Bytes there(bytes.size());
    read_range(name, 0, there);
    return std::equal(there.begin(), there.end(), bytes.begin());
  }

  [[nodiscard]] std::vector<std::string> files_in(const std::string& folder) {
    std::vector<std::string> names;
    try {
      std::string_view plain{folder};
      if (plain.ends_with('/')) plain.remove_suffix(1);
      names = files_.list(folder.empty() ? path_ : path_of(std::string{plain}));
    } catch (const FileError& e) {
      if (e.code() != ENOENT) throw;
    }
    return names;
  }

  F files_;
  std::string path_;
  DirectoryOptions options_;
  std::shared_ptr<Made> made_ = std::make_shared<Made>();
};

using Directory = BasicDirectory<PosixFileSystem>;
static_assert(AppendStore<Directory>);

}  // namespace mend
