#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mend/checkpoint/loader.hpp"
#include "mend/core/error.hpp"
#include "mend/core/hash.hpp"
#include "mend/store/manifest.hpp"
#include "mend/store/manifest_log.hpp"
#include "mend/store/store.hpp"

namespace mend::checkpoint {

//! Which checkpoints stay. The newest one always does.
struct Retention {
  int keep = 2;                 //!< the newest ones; with 1 there is nothing to fall back to
  std::int64_t keep_every = 0;  //!< those of steps that it divides, for good; 0: none
};

//! What the one rank does that commits full checkpoints for all: takes the store over, finds what
//! is there, and publishes manifests. Shards are written by FullWriter, on every rank.
//!
//! The manifest is the commit: until it is published the checkpoint before it is the newest, and
//! nothing of that one changes. Only then files that it supersedes are removed, by exact name.
//! One thread at a time; everything blocks as the store does. Throws FileError as the store does,
//! and Fenced, for good, where another writer took the store over.
template <Store S>
class Publisher {
 public:
  using Base = store::Manifest::Base;
  using Skipped = typename Loader<S>::Skipped;
  struct Opened {
    std::optional<Base> base{};      //!< to restore; empty where the store holds no checkpoint
    std::vector<Skipped> skipped{};  //!< newer ones, and why they were not taken
  };

  Publisher(S store, Retention retention)
      : store_{store}, log_{store}, loader_{std::move(store)}, retention_{retention} {
    if (retention_.keep < 1) throw OptionError{"a checkpointer keeps at least one checkpoint"};
    if (retention_.keep_every < 0) throw OptionError{"keep_every is a number of steps"};
  }

  //! Takes the store over for a state of that schema (schema_of) on `ranks` ranks; every earlier
  //! writer is fenced out. Reads all of the newest checkpoint, or of the newest one that is whole,
  //! makes it durable, publishes that this run goes on from it, and removes what earlier runs left
  //! that nothing names. Throws StateError where the store belongs to another state, FileError
  //! where it holds checkpoints and none can be used: nobody starts afresh unasked.
  //! May be called again after an error.
  Opened open(Hash128 schema, std::int64_t ranks) {
    log_.claim({.id = {}, .schema = schema}, ranks);
    discarded_.clear();  // what is left of them the sweep takes
    auto found = loader_.newest([&] { loader_.verify(); });
    if (!found.base) {
      if (!found.skipped.empty())
        throw FileError{
            "no checkpoint of the directory can be used; to start afresh, choose "
            "another one or remove it. " +
                found.skipped[0].why,
            {.path = found.skipped[0].name}};
      next_ = {.kind = store::Manifest::Kind::full};
      next_.history.push_back({.generation = generation(), .resume_step = -1, .ranks = ranks});
      return {};
    }
    for (const store::Manifest::Shard& shard : found.base->shards) store_.sync_existing(shard.name);
    store_.sync_existing(log_.name_of(found.manifest->sequence));
    next_ = *std::move(found.manifest);
    next_.kind = store::Manifest::Kind::resume;
    std::erase_if(next_.bases, [&](const Base& b) { return b.step > found.base->step; });
    next_.garbage.clear();
    next_.history.push_back(
        {.generation = generation(), .resume_step = found.base->step, .ranks = ranks});
    log_.publish(next_);
    log_.sweep();
    return {std::move(found.base), std::move(found.skipped)};
  }

  //! Commits a checkpoint: all parts are durable, in their order. When this returns, it is what a
  //! restart finds; bases of later steps, which an earlier run left, are superseded too. After a
  //! FileError from the publication nobody knows whether it is; the parts go with the next commit.
  //! A superseded file that cannot be removed is tried again with the next commit.
  void commit(std::int64_t step, std::span<const store::Manifest::Shard> shards) {
    store::Manifest manifest = next_;
    manifest.kind = store::Manifest::Kind::full;
    std::vector<std::string> superseded = discarded_;
    auto drop = [&](auto which) {
      auto gone = std::stable_partition(manifest.bases.begin(), manifest.bases.end(),
                                        [&](const Base& b) { return !which(b); });
      for (auto base = gone; base != manifest.bases.end(); ++base)
        for (const store::Manifest::Shard& s : base->shards) superseded.push_back(s.name);
      manifest.bases.erase(gone, manifest.bases.end());
    };
    drop([&](const Base& b) { return b.step >= step; });
    manifest.bases.push_back(
        {.step = step, .generation = generation(), .shards = {shards.begin(), shards.end()}});
    std::vector<std::int64_t> newest;
    for (const Base& b : manifest.bases) newest.push_back(b.step);
    std::size_t kept = static_cast<std::size_t>(retention_.keep);
    std::int64_t oldest = newest.size() <= kept ? 0 : newest[newest.size() - kept];
    drop([&](const Base& b) { return b.step < oldest && !stays(b.step); });
    manifest.garbage = superseded;
    try {
      log_.publish(manifest);
    } catch (const FileError&) {
      for (const store::Manifest::Shard& s : shards) discarded_.push_back(s.name);
      throw;
    }
    next_ = std::move(manifest);
    discarded_.clear();
    for (const std::string& name : superseded) remove(name);
    remove_old_manifests();
  }

  //! Removes parts that are durable, of a checkpoint whose other parts failed: no manifest names
  //! them, and commit() was not called for them.
  void discard(std::span<const store::Manifest::Shard> shards) {
    for (const store::Manifest::Shard& s : shards) remove(s.name);
  }

  //! Whether another writer took the store over. Cost: a look for one name.
  [[nodiscard]] bool fenced() { return log_.fenced(); }
  //! For ShardLabel.
  [[nodiscard]] std::uint64_t generation() const { return log_.current().generation; }
  [[nodiscard]] const std::string& run() const { return log_.current().run.id; }
  //! What this writer published last; of it every rank can read the base to restore.
  [[nodiscard]] const store::Manifest& manifest() const { return log_.current(); }
  //! Open at the base that open() chose, all of which it has verified.
  [[nodiscard]] Loader<S>& loader() { return loader_; }

 private:
  [[nodiscard]] bool stays(std::int64_t step) const {
    return retention_.keep_every > 0 && step % retention_.keep_every == 0;
  }
  //! The checkpoint is committed whatever becomes of old files.
  void remove(const std::string& name) {
    try {
      store_.remove(name);
    } catch (const FileError&) {
      discarded_.push_back(name);
    }
  }
  void remove_old_manifests() {
    try {
      log_.remove_superseded();
    } catch (const FileError&) {  // the next commit tries again
    }
  }

  S store_;
  store::ManifestLog<S> log_;
  Loader<S> loader_;
  Retention retention_;
  store::Manifest next_;                // what the next manifest begins as
  std::vector<std::string> discarded_;  // to be removed with the next commit
};

}  // namespace mend::checkpoint
