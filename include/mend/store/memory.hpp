#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mend/core/bytes.hpp"
#include "mend/core/error.hpp"
#include "mend/store/store.hpp"

namespace mend {

//! A store in this process's memory, for tests and for states that may end with the process.
//! Copies share what they hold, which goes with the last copy, writer or appender. Blocks for no
//! longer than a copy of the bytes takes.
class Memory {
 private:
  struct Pieces {
    std::mutex mutex;
    std::map<std::string, Bytes> by_name;
  };

 public:
  class Writer {
   public:
    void write(ByteView bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
    void publish() { put(*pieces_, name_, std::move(bytes_)); }

   private:
    friend Memory;
    Writer(std::shared_ptr<Pieces> pieces, std::string name)
        : pieces_{std::move(pieces)}, name_{std::move(name)} {}

    std::shared_ptr<Pieces> pieces_;
    std::string name_;
    Bytes bytes_;
  };

  class Appender {
   public:
    void append(ByteView bytes) {
      std::lock_guard lock{pieces_->mutex};
      auto at = pieces_->by_name.find(name_);
      if (at == pieces_->by_name.end()) return;  // removed: as with a file, nobody sees the rest
      at->second.insert(at->second.end(), bytes.begin(), bytes.end());
    }
    void sync() {}

   private:
    friend Memory;
    Appender(std::shared_ptr<Pieces> pieces, std::string name)
        : pieces_{std::move(pieces)}, name_{std::move(name)} {}

    std::shared_ptr<Pieces> pieces_;
    std::string name_;
  };

  [[nodiscard]] Writer put_new(const std::string& name) { return {pieces_, checked(name)}; }
  [[nodiscard]] Appender append_new(const std::string& name) {
    put(*pieces_, checked(name), Bytes{});
    return {pieces_, name};
  }
  [[nodiscard]] bool put_if_absent(const std::string& name, ByteView bytes) {
    std::lock_guard lock{pieces_->mutex};
    auto [at, fresh] =
        pieces_->by_name.try_emplace(checked(name), Bytes(bytes.begin(), bytes.end()));
    return fresh || std::equal(at->second.begin(), at->second.end(), bytes.begin(), bytes.end());
  }

  [[nodiscard]] std::optional<std::uint64_t> size(const std::string& name) {
    std::lock_guard lock{pieces_->mutex};
    auto at = pieces_->by_name.find(name);
    if (at == pieces_->by_name.end()) return std::nullopt;
    return at->second.size();
  }
  void read_range(const std::string& name, std::uint64_t offset, std::span<std::byte> into) {
    std::lock_guard lock{pieces_->mutex};
    auto at = pieces_->by_name.find(name);
    if (at == pieces_->by_name.end())
      throw FileError{"no such piece in memory", {.code = ENOENT, .path = name}};
    const Bytes& bytes = at->second;
    if (offset > bytes.size() || into.size() > bytes.size() - offset)
      throw FileError{"the piece is shorter than expected", {.path = name}};
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), into.size(), into.begin());
  }
  [[nodiscard]] std::vector<std::string> list(const std::string& folder) {
    std::lock_guard lock{pieces_->mutex};
    std::vector<std::string> names;
    for (auto at = pieces_->by_name.lower_bound(folder);
         at != pieces_->by_name.end() && at->first.starts_with(folder); ++at)
      names.push_back(at->first);
    return names;
  }
  void remove(const std::string& name) {
    std::lock_guard lock{pieces_->mutex};
    pieces_->by_name.erase(name);
  }
  void sync_existing(const std::string&) {}
  void remove_leftovers(const std::string&, const std::string&) {}

 private:
  static const std::string& checked(const std::string& name) {
    if (!is_store_name(name))
      throw FileError{"not a name in a store: '" + name + "'", {.code = EINVAL, .path = "memory"}};
    return name;
  }
  static void put(Pieces& pieces, const std::string& name, Bytes&& bytes) {
    std::lock_guard lock{pieces.mutex};
    if (!pieces.by_name.try_emplace(name, std::move(bytes)).second)
      throw FileError{"a piece of this name is there already", {.code = EEXIST, .path = name}};
  }

  std::shared_ptr<Pieces> pieces_ = std::make_shared<Pieces>();
};
static_assert(AppendStore<Memory>);

}  // namespace mend
