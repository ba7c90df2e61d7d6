#pragma once

#include <mend/core/file_system.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace mend_test {

//! The disk of a machine that loses power. Until a file is synced, any of its dirty sectors may be
//! lost, its length may be the old one, the new one or one between, and what was lost reads as
//! zeros or as anything; until a directory is synced, any of its changes may be lost. What is lost
//! of one does not depend on what is lost of another.
//!
//! Operations that change something are counted. One of them can fail, or be the last before the
//! process dies: then it and all that follow throw Died. Sectors are small, so that small files
//! have several.
struct PowerLossDisk {
  static constexpr std::size_t sector = 128;

  struct Node {
    bool directory = false;
    std::string now{}, durable{};                         // a file's bytes
    std::set<std::size_t> dirty{};                        // its sectors that are not durable
    std::map<std::string, int> names{}, names_durable{};  // a directory's entries
    struct Change {
      std::string name;
      int node;  // -1: the entry went
    };
    std::vector<Change> pending{};
  };

  struct Died : mend::FileError {
    Died() : mend::FileError{"the process died", {.path = "disk"}} {}
  };

  enum class Fault {
    none,
    no_space,  //!< ENOSPC; of a write half is done
    io_error,  //!< EIO, and nothing is done
    dies_before,
    dies_after
  };

  std::vector<Node> nodes{Node{.directory = true}};
  int changes = 0;    //!< operations so far
  int fault_at = -1;  //!< the number of the one that goes wrong
  Fault fault = Fault::none;
  bool dead = false;
  bool files_sync = true, directories_sync = true;  //!< false: a mutant, which leaves syncs out
  std::function<void()> before_each{};              //!< called before every operation, reads too

  //! After the death of the process alone.
  [[nodiscard]] PowerLossDisk rebooted() const {
    PowerLossDisk disk = *this;
    disk.changes = 0;
    disk.fault_at = -1;
    disk.dead = false;
    disk.files_sync = disk.directories_sync = true;
    disk.before_each = {};
    return disk;
  }

  //! Calls see(disk) with disks that may be found after a power loss now: with all where there are
  //! no more than `most`, else with the extremes and a random choice of that many. Returns how
  //! many.
  int after_power_loss(int most, std::mt19937_64& random, auto see) const {
    std::vector<Choice> choices = all_choices();
    double total = 1;
    for (const Choice& c : choices) total *= c.ways();
    int seen = 0;
    auto look = [&](const std::vector<std::size_t>& picks, bool garbage) {
      PowerLossDisk disk = lost(choices, picks, garbage ? &random : nullptr);
      ++seen;
      see(disk);
    };
    std::vector<std::size_t> picks(choices.size(), 0);
    if (total <= most) {
      for (bool more = true; more;) {
        look(picks, seen % 2 != 0);
        more = false;
        for (std::size_t i = 0; i < picks.size() && !more; ++i) {
          more = ++picks[i] < choices[i].count();
          if (!more) picks[i] = 0;
        }
      }
      return seen;
    }
    // Nothing survives; all does; all but one, and one alone.
    auto last = [&](std::size_t i) { return choices[i].count() - 1; };
    auto extreme = [&](auto pick) {
      for (std::size_t i = 0; i < picks.size(); ++i) picks[i] = pick(i);
      look(picks, seen % 2 != 0);
    };
    extreme([](std::size_t) { return std::size_t{0}; });
    extreme(last);
    for (std::size_t k = 0; k < choices.size(); ++k) {
      extreme([&](std::size_t i) { return i == k ? 0 : last(i); });
      extreme([&](std::size_t i) { return i == k ? last(i) : 0; });
    }
    while (seen < most)
      extreme(
          [&](std::size_t i) { return static_cast<std::size_t>(random() % choices[i].count()); });
    return seen;
  }

  // What follows is what the handle below is made of.

  //! -1 where nothing is there.
  [[nodiscard]] int find(const std::string& path) const {
    int at = 0;
    for (const std::string& part : parts(path)) {
      const Node& node = nodes[static_cast<std::size_t>(at)];
      if (!node.directory) throw mend::FileError{"no directory", {.code = ENOTDIR, .path = path}};
      auto it = node.names.find(part);
      if (it == node.names.end()) return -1;
      at = it->second;
    }
    return at;
  }
  Node& at(const std::string& path) {
    int node = find(path);
    if (node < 0) throw mend::FileError{"absent", {.code = ENOENT, .path = path}};
    return nodes[static_cast<std::size_t>(node)];
  }
  Node& directory(const std::string& path) {
    Node& node = at(path);
    if (!node.directory) throw mend::FileError{"no directory", {.code = ENOTDIR, .path = path}};
    return node;
  }
  static std::vector<std::string> parts(std::string_view path) {
    std::vector<std::string> found;
    while (!path.empty()) {
      std::size_t n = std::min(path.find('/'), path.size());
      if (n != 0 && path.substr(0, n) != ".") found.emplace_back(path.substr(0, n));
      path.remove_prefix(std::min(n + 1, path.size()));
    }
    return found;
  }

  void enter(const std::string& path, int node) {
    Node& parent = directory(mend::directory_of(path));
    std::string name = parts(path).back();
    parent.names[name] = node;
    parent.pending.push_back({name, node});
  }
  int make(const std::string& path, bool is_directory) {
    if (find(path) >= 0) throw mend::FileError{"exists", {.code = EEXIST, .path = path}};
    (void)directory(mend::directory_of(path));
    nodes.push_back(Node{.directory = is_directory});
    int node = static_cast<int>(nodes.size()) - 1;
    enter(path, node);
    return node;
  }
  void append(int node, std::string_view bytes) {
    Node& file = nodes[static_cast<std::size_t>(node)];
    std::size_t begin = file.now.size();
    file.now += bytes;
    for (std::size_t s = begin / sector; s * sector < file.now.size(); ++s) file.dirty.insert(s);
  }
  void sync_file(int node) {
    if (!files_sync) return;
    Node& file = nodes[static_cast<std::size_t>(node)];
    file.durable = file.now;
    file.dirty.clear();
  }
  void sync_names(const std::string& path) {
    Node& node = directory(path);
    if (!directories_sync) return;
    node.names_durable = node.names;
    node.pending.clear();
  }

  void read_happens() {
    if (dead) throw Died{};
    if (before_each) before_each();
  }
  //! Runs an operation, or what the faults make of it; `partly` is the half of a write.
  auto change(auto operation, auto partly) {
    read_happens();
    bool now = changes++ == fault_at;
    if (now && fault == Fault::dies_before) {
      partly();  // a write may have begun
      dead = true;
      throw Died{};
    }
    if (now && fault == Fault::no_space) {
      partly();
      throw mend::FileError{"injected", {.code = ENOSPC, .path = "disk"}};
    }
    if (now && fault == Fault::io_error)
      throw mend::FileError{"injected", {.code = EIO, .path = "disk"}};
    if (now && fault == Fault::dies_after) {
      operation();
      dead = true;
      throw Died{};
    }
    return operation();
  }
  auto change(auto operation) {
    return change(operation, [] {});
  }

 private:
  //! What may become of one file or one directory, counted from "nothing survives".
  struct Choice {
    std::size_t node;
    std::vector<std::size_t> lengths{};  // of a file
    std::vector<std::size_t> sectors{};  // of a file: dirty ones; of a directory: pending changes

    [[nodiscard]] double ways() const {
      return static_cast<double>(std::max<std::size_t>(lengths.size(), 1)) *
             std::pow(2.0, static_cast<double>(sectors.size()));
    }
    //! Saturates: such a choice is only sampled.
    [[nodiscard]] std::size_t count() const {
      return std::max<std::size_t>(lengths.size(), 1) << std::min<std::size_t>(sectors.size(), 40);
    }
  };

  [[nodiscard]] std::vector<Choice> all_choices() const {
    std::vector<Choice> choices;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const Node& n = nodes[i];
      Choice c{.node = i};
      if (n.directory) {
        for (std::size_t k = 0; k < n.pending.size(); ++k) c.sectors.push_back(k);
      } else {
        c.sectors.assign(n.dirty.begin(), n.dirty.end());
        std::set<std::size_t> lengths{n.durable.size(), n.now.size()};
        for (std::size_t s : c.sectors)
          if (s * sector > n.durable.size()) lengths.insert(s * sector);
        c.lengths.assign(lengths.begin(), lengths.end());
      }
      if (c.count() > 1) choices.push_back(std::move(c));
    }
    return choices;
  }

  [[nodiscard]] PowerLossDisk lost(const std::vector<Choice>& choices,
                                   const std::vector<std::size_t>& picks,
                                   std::mt19937_64* garbage) const {
    PowerLossDisk disk = rebooted();
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const Choice& c = choices[i];
      std::size_t ways = std::max<std::size_t>(c.lengths.size(), 1);
      std::size_t which = picks[i] % ways, kept = picks[i] / ways;
      auto survives = [&](std::size_t k) { return k >= 40 || (kept >> k & 1) != 0; };
      Node& n = disk.nodes[c.node];
      if (n.directory) {
        n.names = n.names_durable;
        for (std::size_t k = 0; k < c.sectors.size(); ++k) {
          if (!survives(k)) continue;
          const Node::Change& change = n.pending[c.sectors[k]];
          if (change.node < 0)
            n.names.erase(change.name);
          else
            n.names[change.name] = change.node;
        }
        continue;
      }
      std::string after = n.durable;
      after.resize(n.now.size());
      for (std::size_t k = 0; k < c.sectors.size(); ++k) {
        std::size_t begin = c.sectors[k] * sector;
        std::size_t end = std::min(begin + sector, n.now.size());
        for (std::size_t b = begin; b < end; ++b) {
          if (survives(k))
            after[b] = n.now[b];
          else if (b >= n.durable.size())
            after[b] = garbage != nullptr ? static_cast<char>((*garbage)()) : '\0';
        }
      }
      after.resize(c.lengths[which]);
      n.now = after;
    }
    for (Node& n : disk.nodes) {
      n.durable = n.now;
      n.dirty.clear();
      n.names_durable = n.names;
      n.pending.clear();
    }
    return disk;
  }
};

//! The file system on such a disk; copies mean the same one. The disk must outlive it.
struct PowerLossFiles {
  struct File {
    void write(mend::ByteView bytes) {
      std::string_view text{reinterpret_cast<const char*>(bytes.data()), bytes.size()};
      disk->change([&] { disk->append(node, text); },
                   [&] { disk->append(node, text.substr(0, text.size() / 2)); });
    }
    void sync() {
      disk->change([&] { disk->sync_file(node); });
    }
    void close() { disk->read_happens(); }
    std::uint64_t size() { return contents().size(); }
    void read(std::uint64_t offset, std::span<std::byte> into) {
      disk->read_happens();
      if (offset > contents().size() || into.size() > contents().size() - offset)
        throw mend::FileError{"the file is shorter than expected", {.path = "disk"}};
      if (!into.empty()) std::memcpy(into.data(), contents().data() + offset, into.size());
    }
    std::string& contents() const { return disk->nodes[static_cast<std::size_t>(node)].now; }

    PowerLossDisk* disk;
    int node;
  };

  File create(const std::string& path) {
    return disk->change([&] { return File{disk, disk->make(path, false)}; });
  }
  File open(const std::string& path) {
    disk->read_happens();
    if (disk->at(path).directory) throw mend::FileError{"not a regular file", {.path = path}};
    return {disk, disk->find(path)};
  }
  bool link(const std::string& from, const std::string& to) {
    return disk->change([&] {
      int node = disk->find(from);
      if (node < 0) throw mend::FileError{"absent", {.code = ENOENT, .path = from}};
      if (disk->find(to) >= 0) return false;
      disk->enter(to, node);
      return true;
    });
  }
  void rename(const std::string& from, const std::string& to) {
    disk->change([&] {
      (void)disk->at(from);
      disk->enter(to, disk->find(from));
      leave(from);
    });
  }
  void remove(const std::string& path) {
    disk->change([&] {
      (void)disk->at(path);
      leave(path);
    });
  }
  std::vector<std::string> list(const std::string& path) {
    disk->read_happens();
    std::vector<std::string> names;
    for (const auto& [name, node] : disk->directory(path).names) names.push_back(name);
    return names;
  }
  bool make_directory(const std::string& path) {
    return disk->change([&] {
      int there = disk->find(path);
      if (there < 0) {
        disk->make(path, true);
        return true;
      }
      (void)disk->directory(path);
      return false;
    });
  }
  void sync_directory(const std::string& path) {
    disk->change([&] { disk->sync_names(path); });
  }

  PowerLossDisk* disk;

 private:
  void leave(const std::string& path) const {
    PowerLossDisk::Node& parent = disk->directory(mend::directory_of(path));
    std::string name = PowerLossDisk::parts(path).back();
    parent.names.erase(name);
    parent.pending.push_back({name, -1});
  }
};
static_assert(mend::FileSystem<PowerLossFiles>);

}  // namespace mend_test
