#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mend/checkpoint/box.hpp"
#include "mend/checkpoint/place.hpp"
#include "mend/checkpoint/shard_reader.hpp"
#include "mend/core/bytes.hpp"
#include "mend/core/dtype.hpp"
#include "mend/core/error.hpp"
#include "mend/core/train_state.hpp"
#include "mend/store/manifest.hpp"
#include "mend/store/manifest_log.hpp"
#include "mend/store/safetensors.hpp"
#include "mend/store/safetensors_header.hpp"
#include "mend/store/store.hpp"

namespace mend::checkpoint {

//! Reads full checkpoints, on any number of ranks: what is replicated comes from whichever parts
//! hold it, slices are cut anew from all blocks, per-rank entries follow their placement.
//!
//! Strict: names, kinds, types, shapes, placements and ties of the state and of the checkpoint must
//! agree (StateError that names them). Everything that a rank needs is read and its checksums are
//! compared before the first byte of the state changes; this loader remembers what was, and reads
//! it once more to restore it. What cannot be trusted is a FileError. Writes nothing, needs no
//! claim, and may read beside a writer. One thread at a time; everything blocks as the store does.
template <Store S>
class Loader {
 public:
  using Skipped = typename store::ManifestLog<S>::Skipped;
  using Base = store::Manifest::Base;
  //! Nothing, where the store holds no checkpoint that can be used.
  struct Found {
    std::optional<store::Manifest> manifest{};
    std::optional<Base> base{};      //!< one of the manifest's, and open now
    std::vector<Skipped> skipped{};  //!< newer ones, and why they were not taken
  };
  //! A tensor by itself.
  struct Tensor {
    DType dtype;
    Shape shape;
    Bytes bytes;
  };

  explicit Loader(S store) : store_{store}, log_{std::move(store)} {}
  Loader(Loader&&) = default;  // a copy's names would lie in this one's shards

  //! Opens one base: all headers are read and must say what the manifest says. Throws FileError.
  void open(const store::Manifest& manifest, const Base& base) {
    shards_.clear();
    by_name_.clear();
    std::vector<ShardReader<S>> shards;
    for (const store::Manifest::Shard& shard : base.shards) {
      const ShardReader<S>& s = shards.emplace_back(store_, shard);
      const ShardLabel expected{.step = base.step,
                                .applied = shards[0].label().applied,
                                .run = manifest.run.id,
                                .generation = base.generation,
                                .part = static_cast<int>(shards.size()) - 1,
                                .parts = static_cast<int>(base.shards.size())};
      if (s.label() != expected || s.tied() != shards[0].tied())
        throw FileError{"the shard belongs to another checkpoint than its manifest says",
                        {.path = shard.name}};
    }
    if (shards.empty())
      throw FileError{"the base of step " + std::to_string(base.step) + " has no shards",
                      {.path = log_.name_of(manifest.sequence)}};
    shards_ = std::move(shards);
    for (std::size_t s = 0; s < shards_.size(); ++s)
      for (std::size_t t = 0; t < shards_[s].tensors().size(); ++t)
        by_name_[shards_[s].tensors()[t].name].push_back({s, t});
  }

  //! Opens the newest base for which usable() does not throw a FileError; older ones and older
  //! manifests are tried where a file is damaged, missing, or cannot be read (EIO). Other errors
  //! reach the caller.
  [[nodiscard]] Found newest(auto usable) {
    for (int tries = 0;; ++tries) {
      std::optional<Found> found = newest_listed(usable, tries < 100);
      if (found) return *std::move(found);
    }
  }

  //! Reads all data of the open base and compares all checksums, its own and those of others.
  void verify() {
    for (ShardReader<S>& s : shards_) s.verify();
  }

  //! Whether the open base fits a state, here on rank `rank` of `size`, and what it needs of it is
  //! whole. The state does not change. Throws StateError, FileError.
  void check(const TrainState& state, int rank, int size) {
    for (const Task& task : match(state, rank, size)) {
      for (const Source& s : task.sources) shards_[s.shard].verify(s.tensor);
      release_others(task);
    }
    release();
  }

  //! Checks and restores, steps and counts too. Low-precision copies are not stored: whoever
  //! calls this rounds them anew. Where the store fails, or a file changes, after the check, or a
  //! load function throws, the state is only partly restored, and the error says so.
  void restore(TrainState& state, int rank, int size) {
    state.check();
    check(state, rank, size);
    std::vector<Task> tasks = match(state, rank, size);
    try {
      // Before the buffers: a load function may throw.
      for (const Task& task : tasks)
        if (task.entry->kind == TrainState::Kind::state)
          for (const Source& s : task.sources) task.entry->load(shards_[s.shard].read(s.tensor));
      for (const Task& task : tasks) {
        if (task.entry->kind != TrainState::Kind::state) fill(task);
        release_others(task);
      }
    } catch (const FileError& e) {
      throw FileError{
          std::string{e.what()} + "; the state is only partly restored, restore it again",
          {.code = e.code(), .path = e.path()}};
    }
    release();
    state.step = shards_[0].label().step;
    state.applied = shards_[0].label().applied;
  }

  //! The newest base that fits and is whole, as newest() finds it, restored. For a reader by
  //! itself: what another rank alone needs may be damaged, so a group opens the base that one rank
  //! has verified.
  Found restore_newest(TrainState& state, int rank, int size) {
    Found found = newest([&] { check(state, rank, size); });
    if (found.base) restore(state, rank, size);
    return found;
  }

  //! One entry of the open base, whatever state there is: a replicated one or a sliced array whole,
  //! of a per-rank one that of `rank`. Reads and verifies no more than its bytes. Throws StateError
  //! where there is none of that name.
  [[nodiscard]] Tensor read_tensor(const std::string& name, int rank = 0) {
    auto at = by_name_.find(name);
    std::vector<Source> sources = at == by_name_.end() ? std::vector<Source>{} : at->second;
    bool per_rank = !sources.empty() && tensor(sources[0]).place.kind == Place::Kind::rank;
    if (per_rank) sources = of_rank(sources, rank);
    if (sources.empty())
      throw StateError{"the checkpoint holds no '" + name + "'" +
                       (per_rank ? " of rank " + std::to_string(rank) : "")};
    const Stored& first = tensor(sources[0]);
    Tensor read{.dtype = first.dtype, .shape = first.shape, .bytes = {}};
    Slice all;
    if (first.place.kind == Place::Kind::rows) {
      read.shape[0] = first.place.all_rows;
    } else if (first.place.kind == Place::Kind::slice) {
      read.shape = first.place.slice.of;
      all = {.of = read.shape, .at = Shape(read.shape.size(), 0), .extent = read.shape};
    }
    store::SafetensorsHeader::Tensor described;  // spelt out for nvcc
    described.dtype = read.dtype;
    described.shape = read.shape;
    const std::optional<std::uint64_t> size = store::detail::size_of(described);
    std::optional<std::vector<Source>> covering;
    if (first.place.kind == Place::Kind::slice)
      covering = blocks(sources, all);
    else if (!per_rank)
      covering = rows(sources, read.shape);
    else
      covering = sources;
    if (!size || !covering)
      throw FileError{"parts of '" + name + "' are missing, or lie over one another",
                      {.path = shards_[sources[0].shard].name()}};
    read.bytes.resize(static_cast<std::size_t>(*size));  // as much as the files hold
    fill(*covering, all, read.bytes);
    return read;
  }

  //! Of the open base.
  [[nodiscard]] const ShardLabel& label() const { return shards_[0].label(); }

 private:
  using Stored = typename ShardReader<S>::Tensor;
  struct Source {
    std::size_t shard, tensor;
  };
  //! An entry and what it is restored from: rows in their order, or blocks that cover a slice.
  struct Task {
    const TrainState::Entry* entry;
    std::vector<Source> sources;
  };

  [[nodiscard]] const Stored& tensor(const Source& s) const {
    return shards_[s.shard].tensors()[s.tensor];
  }

  //! Empty where what was listed is gone because a newer manifest superseded it.
  std::optional<Found> newest_listed(auto& usable, bool may_list_again) {
    Found found;
    std::set<std::string> tried;
    std::uint64_t newest = 0;
    for (std::uint64_t below = std::numeric_limits<std::uint64_t>::max();;) {
      auto in_log = log_.newest(below);
      for (Skipped& s : in_log.skipped) found.skipped.push_back(std::move(s));
      if (!in_log.manifest) return found;
      const store::Manifest& m = *in_log.manifest;
      newest = std::max(newest, m.sequence);
      for (auto base = m.bases.rbegin(); base != m.bases.rend(); ++base) {
        if (!base->shards.empty() && !tried.insert(base->shards[0].name).second) continue;
        try {
          open(m, *base);
          usable();
          found.base = *base;
          found.manifest = m;
          return found;
        } catch (const FileError& e) {
          bool gone = e.code() == ENOENT || e.code() == ESTALE;
          if (gone && may_list_again && superseded(newest)) return std::nullopt;
          if (!gone && e.code() != 0 && e.code() != EIO) throw;
          found.skipped.push_back(
              {e.path(), "step " + std::to_string(base->step) + ": " + e.what()});
        }
      }
      below = m.sequence;
    }
  }

  bool superseded(std::uint64_t newest) {
    auto found = log_.newest();
    return found.manifest && found.manifest->sequence > newest;
  }

  //! Throws StateError that says all that does not agree.
  std::vector<Task> match(const TrainState& state, int rank, int size) const {
    std::vector<Task> tasks;
    std::vector<std::string> missing, unexpected, differing;
    std::set<std::string_view> known;
    for (const TrainState::Entry& e : state.entries()) {
      if (!e.tied_to.empty()) continue;
      known.insert(e.name);
      auto at = by_name_.find(e.name);
      if (at == by_name_.end()) {
        missing.push_back(e.name);
        continue;
      }
      std::string difference = match(e, at->second, rank, size, tasks);
      if (!difference.empty()) differing.push_back(std::move(difference));
    }
    bool slots = false;
    for (const auto& [name, sources] : by_name_) {
      if (known.count(name) != 0) continue;
      unexpected.emplace_back(name);
      slots = slots || tensor(sources[0]).kind == TrainState::Kind::slot;
    }
    std::sort(unexpected.begin(), unexpected.end());
    std::string text;
    auto say = [&](const std::string& what) { text += (text.empty() ? ": " : "; ") + what; };
    if (!missing.empty()) say("it lacks " + store::detail::list(missing));
    if (!unexpected.empty()) say("it also holds " + store::detail::list(unexpected));
    if (slots) say("the optimizer's slots are there only while a session is");
    for (const std::string& d : differing) say(d);
    auto here = store::detail::tied(state), there = shards_[0].tied();
    std::sort(here.begin(), here.end());
    std::sort(there.begin(), there.end());
    if (here != there) say("other tensors are tied in it");
    if (!text.empty())
      throw StateError{"the checkpoint does not fit this state" + text,
                       {.path = shards_[0].name()}};
    // As they lie in the files.
    auto place = [](const Task& t) {
      return t.sources.empty() ? std::pair<std::size_t, std::size_t>{}
                               : std::pair{t.sources[0].shard, t.sources[0].tensor};
    };
    std::stable_sort(tasks.begin(), tasks.end(),
                     [&](const Task& a, const Task& b) { return place(a) < place(b); });
    return tasks;
  }

  //! Adds a task for an entry that is there, or says what differs.
  std::string match(const TrainState::Entry& e, std::vector<Source> sources, int rank, int size,
                    std::vector<Task>& tasks) const {
    bool resized = size != static_cast<int>(shards_.size());
    Place here = Place::of(e);
    auto differs = [&](const std::string& what) { return "'" + e.name + "' " + what; };
    for (const Source& s : sources) {
      const Stored& t = tensor(s);
      Place::Kind there = t.place.kind == Place::Kind::rows ? Place::Kind::whole : t.place.kind;
      if (t.kind != e.kind || t.dtype != e.dtype || there != here.kind ||
          t.place.slice.of != here.slice.of)
        return differs("is a " + text_of(t.kind, t.dtype, t.place) + " in it and a " +
                       text_of(e.kind, e.dtype, here) + " here");
    }
    if (here.kind == Place::Kind::slice) {
      auto covering = blocks(sources, here.slice);
      if (!covering)
        return differs("has blocks that do not cover " + to_text(here.slice.extent) + " at " +
                       to_text(here.slice.at) + " of " + to_text(here.slice.of) +
                       ", or lie over one another");
      tasks.push_back({&e, *std::move(covering)});
      return "";
    }
    if (here.kind == Place::Kind::rank) {
      if (resized && e.placement.on_resize == OnResize::reset) return "";
      if (resized && e.placement.on_resize == OnResize::refuse)
        return differs("is registered per rank; it was written by " +
                       std::to_string(shards_.size()) + " ranks and here are " +
                       std::to_string(size) +
                       ": say what to do with PerRank{.on_resize = OnResize::reset} or "
                       "from_rank_0");
      sources = of_rank(sources, resized ? 0 : rank);
      if (sources.empty()) return differs("is missing for rank " + std::to_string(rank));
    }
    if (e.kind == TrainState::Kind::state) {
      if (sources.size() != 1 || tensor(sources[0]).shape.size() != 1)
        return differs("is no piece of bytes");
      tasks.push_back({&e, std::move(sources)});
      return "";
    }
    const Shape& shape = tensor(sources[0]).shape;
    auto covering = rows(sources, e.shape);
    if (!covering)
      return differs("has the shape " + to_text(whole_shape(tensor(sources[0]))) + " in it (" +
                     to_text(shape) + " in its first part) and " + to_text(e.shape) + " here");
    tasks.push_back({&e, *std::move(covering)});
    return "";
  }

  static Shape whole_shape(const Stored& t) {
    Shape shape = t.shape;
    if (t.place.kind == Place::Kind::rows) shape[0] = t.place.all_rows;
    return shape;
  }
  static std::string text_of(TrainState::Kind kind, DType dtype, const Place& place) {
    std::string text{store::detail::kind_names[static_cast<std::size_t>(kind)]};
    text.append(" of ").append(name_of(dtype));
    if (place.kind == Place::Kind::rank) text += ", per rank,";
    if (place.kind == Place::Kind::slice) text += ", a slice of " + to_text(place.slice.of) + ",";
    return text;
  }

  static std::vector<Source> of_rank(const std::vector<Source>& sources, int rank) {
    for (const Source& s : sources)
      if (s.shard == static_cast<std::size_t>(rank)) return {s};
    return {};
  }
  //! The sources in the order of their rows; empty where they are not exactly one of that shape.
  std::optional<std::vector<Source>> rows(std::vector<Source> sources, const Shape& shape) const {
    auto first = [&](const Source& s) { return tensor(s).place.first_row; };
    std::sort(sources.begin(), sources.end(),
              [&](const Source& a, const Source& b) { return first(a) < first(b); });
    std::int64_t row = 0;
    for (const Source& s : sources) {
      if (whole_shape(tensor(s)) != shape || first(s) != row) return std::nullopt;
      if (tensor(s).place.kind != Place::Kind::rows)
        return sources.size() == 1 ? std::optional{sources} : std::nullopt;
      row += tensor(s).shape[0];
    }
    if (row != shape[0]) return std::nullopt;
    return sources;
  }
  //! The sources that a block consists of; empty where they leave a gap or lie over one another.
  std::optional<std::vector<Source>> blocks(const std::vector<Source>& sources,
                                            const Slice& block) const {
    std::vector<Source> found;
    std::uint64_t volume = 1, covered = 0;
    for (std::int64_t extent : block.extent)
      if (__builtin_mul_overflow(volume, static_cast<std::uint64_t>(extent), &volume))
        return std::nullopt;
    for (const Source& s : sources) {
      const Slice& there = tensor(s).place.slice;
      if (there.of != block.of) return std::nullopt;
      if (volume != 0 && there.at == block.at && there.extent == block.extent) return {{s}};
      std::uint64_t common = Box::common(block, there).volume();
      if (common == 0) continue;
      for (const Source& o : found)
        if (Box::common(there, tensor(o).place.slice).volume() != 0) return std::nullopt;
      covered += common;
      found.push_back(s);
    }
    if (covered != volume) return std::nullopt;
    return found;
  }

  void release() {
    for (ShardReader<S>& s : shards_) s.release();
  }
  //! Tasks come shard by shard; thousands of shards would hold a window each.
  void release_others(const Task& task) {
    for (const Source& s : task.sources)
      if (s.shard > 0) shards_[s.shard - 1].release();
  }

  void fill(const Task& task) {
    const TrainState::Entry& e = *task.entry;
    if (e.memory == nullptr) {
      fill(task.sources, e.placement.slice, {e.value, e.bytes()});
      return;
    }
    Bytes bytes(e.bytes());
    fill(task.sources, e.placement.slice, bytes);
    e.write(bytes.data(), e.value, bytes.size());
  }
  //! `block`: of a slice.
  void fill(const std::vector<Source>& sources, const Slice& block, std::span<std::byte> into) {
    std::size_t done = 0;
    for (const Source& s : sources) {
      const Stored& t = tensor(s);
      const Slice& there = t.place.slice;
      if (t.place.kind != Place::Kind::slice ||
          (there.at == block.at && there.extent == block.extent)) {
        shards_[s.shard].read(s.tensor, into.subspan(done, t.bytes()));
        done += t.bytes();
        continue;
      }
      Bytes bytes = shards_[s.shard].read(s.tensor);
      Box::common(block, there)
          .each_run(block, there, size_of(t.dtype),
                    [&](std::size_t to, std::size_t from, std::size_t n) {
                      std::memcpy(into.data() + to, bytes.data() + from, n);
                    });
    }
  }

  S store_;
  store::ManifestLog<S> log_;
  std::vector<ShardReader<S>> shards_;
  std::unordered_map<std::string_view, std::vector<Source>> by_name_;
};

}  // namespace mend::checkpoint
