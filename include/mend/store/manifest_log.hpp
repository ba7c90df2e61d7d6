#pragma once

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mend/core/bytes.hpp"
#include "mend/core/error.hpp"
#include "mend/store/manifest.hpp"
#include "mend/store/store.hpp"

namespace mend {

//! Another writer took the store over. This one must stop writing; what it acknowledged is kept.
class Fenced : public Error {
 public:
  explicit Fenced(std::string_view message, ErrorContext context = {},
                  SourceLocation where = SourceLocation::current())
      : Error{message, std::move(context), where} {}
};

namespace store {

//! The numbered manifests of a store: "manifests/00000007.json". A number is given once, to whoever
//! puts a manifest there first, and that decides who may write.
//!
//! A writer claims: its claim takes the number after the newest, which is its generation, so that
//! every writer before it finds its own next number taken and is fenced out. Only then it reads
//! newest(), makes what it read durable (Store::sync_existing), publishes `resume`, and writes on.
//! What others write between is either in what it reads or was never acknowledged: whoever says
//! that a step is durable asks fenced() after the sync and before saying so.
//! Claims are never removed: they are what keeps a writer out that wakes up later.
//!
//! Reading needs no claim and may go on beside a writer. One thread at a time. Everything blocks as
//! the store does and throws FileError.
template <Store S>
class ManifestLog {
 public:
  //! What could not be used, and why.
  struct Skipped {
    std::string name, why;
  };
  struct Found {
    std::optional<Manifest> manifest{};
    std::vector<Skipped> skipped{};
  };

  explicit ManifestLog(S store) : store_{std::move(store)} {}

  //! In ascending order, claims among them.
  [[nodiscard]] std::vector<std::uint64_t> numbers() {
    std::vector<std::uint64_t> numbers;
    for (const std::string& name : store_.list(folder))
      if (std::uint64_t n = number_of(name); n != 0) numbers.push_back(n);
    std::sort(numbers.begin(), numbers.end());
    return numbers;
  }

  //! Throws FileError with ENOENT where it was removed, without errno where it is damaged.
  [[nodiscard]] Manifest read(std::uint64_t sequence) {
    std::string name = name_of(sequence);
    Bytes bytes = read_all(store_, name);
    Manifest m = Manifest::parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, name);
    if (m.sequence != sequence)
      throw FileError{
          "the manifest is number " + std::to_string(m.sequence) + " and stands under another",
          {.path = name}};
    return m;
  }

  //! The newest manifest with a number less than `below` that holds something and is whole; damaged
  //! ones on the way, and those that the disk cannot read (EIO), are named.
  [[nodiscard]] Found newest(std::uint64_t below = ~std::uint64_t{}) {
    for (int tries = 0;; ++tries) {
      try {
        return newest_listed(below);
      } catch (const FileError& e) {
        // Removed since it was listed: a newer one is there by now.
        if ((e.code() != ENOENT && e.code() != ESTALE) || tries == 100) throw;
      }
    }
  }

  //! Fences every earlier writer out and returns this one's generation. `ranks`: the size of its
  //! group. Throws StateError where the store belongs to another run, before anything is written.
  std::uint64_t claim(Manifest::Run run, std::int64_t ranks) {
    if (Found found = newest(); found.manifest) {
      if (found.manifest->run.schema != run.schema)
        throw StateError{
            "the directory belongs to another run, whose state has other names, types "
            "or shapes; choose another directory",
            {.path = name_of(found.manifest->sequence)}};
      run.id = found.manifest->run.id;
    }
    if (run.id.empty()) run.id = unique_text();
    current_ = {.nonce = unique_text(), .run = std::move(run), .ranks = ranks};
    for (;;) {
      std::vector<std::uint64_t> taken = numbers();
      current_.sequence = current_.generation = taken.empty() ? 1 : taken.back() + 1;
      if (!put(current_)) continue;
      // While this one slept after the first look, the number may have been given, and freed by
      // retention; then it stands below a live writer's and keeps nobody out.
      taken = numbers();
      if (taken.empty() || taken.back() <= current_.sequence) return current_.generation;
    }
  }

  //! Commits: when this returns, the manifest is durable and whole. Sequence, generation, nonce,
  //! run and ranks are filled in. Throws Fenced where a newer claim exists, and FileError where
  //! nobody knows whether it was published; the next call finds out.
  void publish(Manifest manifest) {
    manifest.generation = current_.generation;
    manifest.nonce = current_.nonce;
    manifest.run = current_.run;
    manifest.ranks = current_.ranks;
    do {
      if (fenced())
        throw Fenced{"another writer took the directory over; this one stops",
                     {.path = name_of(current_.sequence + 1)}};
      manifest.sequence = current_.sequence + 1;
    } while (!put(manifest));
    current_ = std::move(manifest);
  }

  //! Whether a newer claim exists. Asked between the sync of a record and the word that it is
  //! durable. Cost: a look for one name.
  [[nodiscard]] bool fenced() {
    while (store_.size(name_of(current_.sequence + 1))) {
      if (!is_ours(current_.sequence + 1)) return true;
      ++current_.sequence;  // put by a publish() that ended in an error
    }
    return false;
  }

  //! What this writer put last: its claim, then what it published.
  [[nodiscard]] const Manifest& current() const { return current_; }

  //! Removes manifests that newer ones supersede, but for the newest `keep`. Call after publish().
  void remove_superseded(std::size_t keep = 2) {
    if (current_.kind == Manifest::Kind::claim) return;
    std::vector<std::uint64_t> before = numbers();
    before.erase(std::lower_bound(before.begin(), before.end(), current_.sequence), before.end());
    std::size_t kept = 1;  // the current one
    for (auto n = before.rbegin(); n != before.rend(); ++n)
      if (holds_something(*n) && kept++ >= std::max<std::size_t>(keep, 1))
        store_.remove(name_of(*n));
  }

  //! Removes what earlier generations left that the current manifest does not name: shards and
  //! segments of theirs, and the hidden files of their manifests. Call after `resume` is published
  //! and before anything else is written; does nothing while the manifest has no base.
  void sweep() {
    if (current_.bases.empty()) return;
    std::set<std::string_view> named;
    for (const Manifest::Base& base : current_.bases)
      for (const Manifest::Shard& shard : base.shards) named.insert(shard.name);
    for (const Manifest::Segment& segment : current_.segments) named.insert(segment.name);
    for (const char* place : {"shards/", "differentials/"})
      for (const std::string& name : store_.list(place)) {
        std::optional<std::uint64_t> generation = generation_of(name);
        if (generation && *generation < current_.generation && named.count(name) == 0)
          store_.remove(name);
      }
    store_.remove_leftovers(folder, name_of(current_.generation));
  }

  [[nodiscard]] static std::string name_of(std::uint64_t sequence) {
    std::string digits = std::to_string(sequence);
    return folder + std::string(8 - std::min<std::size_t>(8, digits.size()), '0') + digits + suffix;
  }

 private:
  inline static const std::string folder = "manifests/", suffix = ".json";

  //! 0 for a foreign name.
  static std::uint64_t number_of(std::string_view name) {
    std::uint64_t n = 0;
    if (name.size() > folder.size())
      std::from_chars(name.data() + folder.size(), name.data() + name.size(), n);
    return n != 0 && name == name_of(n) ? n : 0;
  }

  Found newest_listed(std::uint64_t below) {
    Found found;
    std::vector<std::uint64_t> listed = numbers();
    for (auto n = listed.rbegin(); n != listed.rend(); ++n) {
      if (*n >= below || claims_.count(*n) != 0) continue;
      try {
        Manifest m = read(*n);
        if (m.kind == Manifest::Kind::claim) {
          claims_.insert(*n);
          continue;
        }
        found.manifest = std::move(m);
        return found;
      } catch (const FileError& e) {
        if (e.code() != 0 && e.code() != EIO) throw;
        found.skipped.push_back({name_of(*n), e.what()});
      }
    }
    return found;
  }

  //! False for claims, and for what cannot be read: that is left as it is.
  bool holds_something(std::uint64_t n) {
    if (claims_.count(n) != 0) return false;
    try {
      bool claim = read(n).kind == Manifest::Kind::claim;
      if (claim) claims_.insert(n);
      return !claim;
    } catch (const FileError&) {
      return false;
    }
  }
  bool is_ours(std::uint64_t n) {
    try {
      return read(n).nonce == current_.nonce;
    } catch (const FileError& e) {
      if (e.code() != 0 && e.code() != ENOENT) throw;
      return false;
    }
  }
  bool put(const Manifest& manifest) {
    std::string text = manifest.text();
    return store_.put_if_absent(name_of(manifest.sequence), std::as_bytes(std::span{text}));
  }

  S store_;
  Manifest current_;
  std::set<std::uint64_t> claims_;  // known not to hold anything
};

}  // namespace store

}  // namespace mend
