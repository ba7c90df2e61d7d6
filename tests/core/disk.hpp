#pragma once

#include <mend/core/file_system.hpp>

#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace mend_test {

//! A file system in memory that forgets at a power loss what was not synced, and whose n-th
//! operation that changes something (or, as its own count, that reads something) fails.
struct Disk {
  struct Node {
    std::string text{}, durable{};
  };
  struct File {
    Disk* disk;
    std::shared_ptr<Node> node;

    void write(mend::ByteView bytes) {
      disk->change();
      node->text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    void sync() {
      disk->change();
      node->durable = node->text;
    }
    void close() { disk->change(); }
    std::uint64_t size() { return node->text.size(); }
    void read(std::uint64_t offset, std::span<std::byte> into) {
      if (disk->reads++ == disk->fail_read_at)
        throw mend::FileError{"injected", {.code = EIO, .path = "disk"}};
      if (offset > node->text.size() || into.size() > node->text.size() - offset)
        throw mend::FileError{"the file is shorter than expected", {.path = "disk"}};
      if (!into.empty()) std::memcpy(into.data(), node->text.data() + offset, into.size());
    }
  };
  using Names = std::map<std::string, std::shared_ptr<Node>>;

  File create(const std::string& path) {
    change();
    auto node = std::make_shared<Node>();
    if (!now.emplace(path, node).second)
      throw mend::FileError{"exists", {.code = EEXIST, .path = path}};
    return {this, node};
  }
  File open(const std::string& path) {
    auto it = now.find(path);
    if (it == now.end()) throw mend::FileError{"absent", {.code = ENOENT, .path = path}};
    return {this, it->second};
  }
  bool link(const std::string& from, const std::string& to) {
    change();
    return now.emplace(to, now.at(from)).second;
  }
  void rename(const std::string& from, const std::string& to) {
    change();
    now[to] = now.at(from);
    now.erase(from);
  }
  void remove(const std::string& path) { now.erase(path); }
  std::vector<std::string> list(const std::string&) {
    std::vector<std::string> names;
    for (const auto& [name, node] : now) names.push_back(name);
    return names;
  }
  bool make_directory(const std::string&) {
    change();
    return false;  // a path needs no directory here
  }
  void sync_directory(const std::string&) {
    change();
    durable = now;
  }

  //! What may stand at a path after a power loss: names old or new, contents synced or not.
  [[nodiscard]] std::set<std::string> after_power_loss(const std::string& path) const {
    std::set<std::string> possible;
    for (const Names* names : {&now, &durable}) {
      auto it = names->find(path);
      if (it == names->end()) {
        possible.insert("(nothing)");
      } else {
        possible.insert(it->second->text);
        possible.insert(it->second->durable);
      }
    }
    return possible;
  }

  int changes = 0, fail_at = -1, reads = 0, fail_read_at = -1;
  Names now{}, durable{};

 private:
  void change() {
    if (changes++ == fail_at) throw mend::FileError{"injected", {.code = ENOSPC, .path = "disk"}};
  }
};
static_assert(mend::FileSystem<Disk>);

}  // namespace mend_test
