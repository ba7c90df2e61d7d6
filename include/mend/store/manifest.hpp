#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mend/core/error.hpp"
#include "mend/core/hash.hpp"
#include "mend/store/json.hpp"
#include "mend/store/store.hpp"

namespace mend::store {

//! One entry of the log that says what a directory holds: the commit of a checkpoint. JSON text
//! with a checksum; docs/format.md has every field and an example.
struct Manifest {
  enum class Kind : std::uint8_t {
    claim,   //!< a writer took the directory over; holds nothing
    resume,  //!< what that writer found, and where it goes on
    full,    //!< a full checkpoint was added
    fold     //!< differentials were folded into a new base
  };
  //! Which run the directory belongs to.
  struct Run {
    std::string id{};  //!< given once, when the directory was first claimed
    Hash128 schema{};  //!< of a text that describes the state: names, types, shapes
    friend bool operator==(const Run&, const Run&) = default;
  };
  struct Shard {
    std::string name{};
    std::uint64_t length = 0;
    Hash128 hash{};  //!< hash_bytes of the whole file
    friend bool operator==(const Shard&, const Shard&) = default;
  };
  //! A state that is whole in its shards.
  struct Base {
    std::int64_t step = 0;         //!< committed steps
    std::uint64_t generation = 0;  //!< that wrote it
    std::vector<Shard> shards{};   //!< in the order of their parts
    friend bool operator==(const Base&, const Base&) = default;
  };
  //! Records of a step count only from the last generation whose resume step lies below it.
  struct Resumed {
    std::uint64_t generation = 0;
    std::int64_t resume_step = -1;  //!< the step that it went on from; -1: nothing was there
    std::int64_t ranks = 0;         //!< whose records make a step of this generation whole
    friend bool operator==(const Resumed&, const Resumed&) = default;
  };
  //! Records of an earlier generation: only these bytes of them count.
  struct Segment {
    std::string name{};
    std::uint64_t length = 0;
    friend bool operator==(const Segment&, const Segment&) = default;
  };

  std::uint64_t sequence = 0;  //!< its place in the log, from 1
  Kind kind = Kind::claim;
  std::uint64_t generation = 0;  //!< the sequence number of its writer's claim
  std::string nonce{};           //!< its writer's
  Run run{};
  std::int64_t ranks = 0;              //!< in its writer's group
  std::vector<Base> bases{};           //!< by step, ascending
  std::vector<Resumed> history{};      //!< by generation, ascending
  std::vector<Segment> segments{};     //!< sealed
  std::vector<std::string> garbage{};  //!< superseded by this manifest; may still be there

  friend bool operator==(const Manifest&, const Manifest&) = default;

  //! Pretty JSON, which parse() reads back to an equal manifest.
  [[nodiscard]] std::string text() const;

  //! Strict: every field once and no others, names that stay in the store, numbers that fit one
  //! another. Memory is linear in the text. Throws FileError, with `path`, that says what is wrong.
  [[nodiscard]] static Manifest parse(std::string_view text, const std::string& path);

  static constexpr std::string_view kind_names[] = {"claim", "resume", "full", "fold"};
};

//! Where a base's part lies, under a name that nobody else uses.
[[nodiscard]] inline std::string shard_name(std::int64_t step, std::uint64_t generation,
                                            std::size_t part) {
  return "shards/step-" + std::to_string(step) + "-generation-" + std::to_string(generation) +
         "-part-" + std::to_string(part) + "-" + unique_text() + ".safetensors";
}
//! Where a rank's records lie, likewise.
[[nodiscard]] inline std::string segment_name(std::uint64_t generation, std::int64_t rank) {
  return "differentials/generation-" + std::to_string(generation) + "-rank-" +
         std::to_string(rank) + "-" + unique_text() + ".records";
}
//! The generation in a name of the two; empty for a foreign name.
[[nodiscard]] inline std::optional<std::uint64_t> generation_of(std::string_view name) {
  constexpr std::string_view mark = "generation-";
  std::size_t at = name.find(mark);
  if (at == name.npos || !is_store_name(name)) return std::nullopt;
  name.remove_prefix(at + mark.size());
  std::uint64_t value = 0;
  auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), value);
  if (error != std::errc{} || end == name.data() + name.size() || *end != '-') return std::nullopt;
  return value;
}

namespace detail {

inline constexpr std::string_view manifest_format = "mend manifest";
inline constexpr std::uint64_t manifest_version = 1;
//! In the checksum's place while it is computed; it is the last member, so that place is known.
inline constexpr std::string_view no_manifest_checksum = "00000000000000000000000000000000";
inline constexpr std::string_view after_checksum = "\"\n}\n";

//! The checksum of a manifest's text, whatever stands in the checksum's place.
inline std::string manifest_checksum(std::string text) {
  constexpr std::size_t digits = no_manifest_checksum.size();
  text.replace(text.size() - after_checksum.size() - digits, digits, no_manifest_checksum);
  return hash_bytes(std::as_bytes(std::span{text})).to_hex();
}

//! The members of a JSON object: each is asked for once, and none may be left over.
class ManifestFields {
 public:
  ManifestFields(const Json& object, std::string place, const std::string& path)
      : members_{object.as<Json::Object>()}, place_{std::move(place)}, path_{path} {
    if (members_ == nullptr) fail("is no object");
  }

  template <class T>
  const T& get(const std::string& name) {
    const T* value = member(name).as<T>();
    if (value == nullptr) fail("has a '" + name + "' of another type");
    return *value;
  }
  std::uint64_t count(const std::string& name) { return get<std::uint64_t>(name); }
  std::int64_t integer(const std::string& name, std::int64_t least = 0) {
    const Json& value = member(name);
    constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
    if (const auto* n = value.as<std::uint64_t>(); n != nullptr && *n <= most)
      return static_cast<std::int64_t>(*n);
    if (const auto* n = value.as<std::int64_t>(); n != nullptr && *n >= least) return *n;
    fail("has a '" + name + "' out of its range");
  }
  Hash128 hash(const std::string& name) {
    const auto& digits = get<std::string>(name);
    Hash128 hash;
    auto half = [&](std::uint64_t& word, const char* from) {
      std::from_chars(from, from + 16, word, 16);
    };
    if (digits.size() == 32) half(hash.hi, digits.data()), half(hash.lo, digits.data() + 16);
    if (hash.to_hex() != digits) fail("has a '" + name + "' that is no hash");
    return hash;
  }
  std::string file(const std::string& name) { return checked_file(get<std::string>(name)); }
  std::string checked_file(const std::string& file) {
    if (!is_store_name(file)) fail("names a file that no store holds: '" + file + "'");
    return file;
  }
  //! element(fields) for each object of an array.
  void each(const std::string& name, auto element) {
    for (const Json& value : get<Json::Array>(name)) {
      ManifestFields fields{value, "an entry of its '" + name + "'", path_};
      element(fields);
      fields.end();
    }
  }
  ManifestFields object(const std::string& name) {
    return {member(name), "its '" + name + "'", path_};
  }
  void end() const {
    if (read_ != members_->size()) fail("has a member that does not belong there");
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw FileError{"the manifest cannot be used: " + place_ + " " + what, {.path = path_}};
  }

 private:
  const Json& member(const std::string& name) {
    for (const auto& [key, value] : *members_) {
      if (key != name) continue;
      ++read_;
      return value;
    }
    fail("lacks '" + name + "'");
  }

  const Json::Object* members_;
  std::size_t read_ = 0;
  std::string place_;
  const std::string& path_;
};

//! What no writer writes, though each field on its own may be right.
inline void check_manifest(const Manifest& m, const ManifestFields& fields) {
  bool claim = m.kind == Manifest::Kind::claim;
  if (m.generation == 0 || m.generation > m.sequence || claim != (m.generation == m.sequence))
    fields.fail("has a generation that does not fit its sequence");
  auto later = [](const Manifest::Base& a, const Manifest::Base& b) { return a.step > b.step; };
  if (std::adjacent_find(m.bases.begin(), m.bases.end(), later) != m.bases.end())
    fields.fail("has bases out of order");
  auto not_before = [](const Manifest::Resumed& a, const Manifest::Resumed& b) {
    return a.generation >= b.generation;
  };
  if (std::adjacent_find(m.history.begin(), m.history.end(), not_before) != m.history.end())
    fields.fail("has a history out of order");
}

}  // namespace detail

inline std::string Manifest::text() const {
  auto list = [](const auto& items, auto json_of) {
    Json::Array array;
    for (const auto& item : items) array.push_back(json_of(item));
    return array;
  };
  auto shard = [](const Shard& s) -> Json {
    return Json::Object{{"name", s.name}, {"length", s.length}, {"hash", s.hash.to_hex()}};
  };
  auto base = [&](const Base& b) -> Json {
    return Json::Object{
        {"step", b.step}, {"generation", b.generation}, {"shards", list(b.shards, shard)}};
  };
  auto resumed = [](const Resumed& r) -> Json {
    return Json::Object{
        {"generation", r.generation}, {"resume_step", r.resume_step}, {"ranks", r.ranks}};
  };
  auto segment = [](const Segment& s) -> Json {
    return Json::Object{{"name", s.name}, {"length", s.length}};
  };
  Json json =
      Json::Object{{"format", detail::manifest_format},
                   {"version", detail::manifest_version},
                   {"sequence", sequence},
                   {"kind", kind_names[static_cast<std::size_t>(kind)]},
                   {"generation", generation},
                   {"nonce", nonce},
                   {"run", Json::Object{{"id", run.id}, {"schema", run.schema.to_hex()}}},
                   {"ranks", ranks},
                   {"bases", list(bases, base)},
                   {"history", list(history, resumed)},
                   {"segments", list(segments, segment)},
                   {"garbage", list(garbage, [](const std::string& name) -> Json { return name; })},
                   {"checksum", detail::no_manifest_checksum}};
  std::string text = json.text() + '\n';
  std::string checksum = detail::manifest_checksum(text);
  return text.replace(text.size() - detail::after_checksum.size() - checksum.size(),
                      checksum.size(), checksum);
}

inline Manifest Manifest::parse(std::string_view text, const std::string& path) {
  const Json json = Json::parse(text, "the manifest", path);
  detail::ManifestFields fields{json, "it", path};
  if (fields.get<std::string>("format") != detail::manifest_format)
    fields.fail("has a format that mend does not know");
  // The version first: what another one means by the rest is not known here.
  if (std::uint64_t version = fields.count("version"); version != detail::manifest_version)
    throw FileError{"the manifest is written in version " + std::to_string(version) +
                        " of its format; this is " + std::to_string(detail::manifest_version) +
                        ". Read it with the mend that wrote it",
                    {.path = path}};
  const auto& checksum = fields.get<std::string>("checksum");
  if (checksum.size() != detail::no_manifest_checksum.size() ||
      !text.ends_with(checksum + std::string{detail::after_checksum}) ||
      detail::manifest_checksum(std::string{text}) != checksum)
    throw FileError{"the manifest is damaged: its checksum differs", {.path = path}};

  Manifest m{.sequence = fields.count("sequence")};
  const auto& kind = fields.get<std::string>("kind");
  const auto* known = std::find(std::begin(kind_names), std::end(kind_names), kind);
  if (known == std::end(kind_names)) fields.fail("has an unknown kind '" + kind + "'");
  m.kind = static_cast<Kind>(known - std::begin(kind_names));
  m.generation = fields.count("generation");
  m.nonce = fields.get<std::string>("nonce");
  detail::ManifestFields run = fields.object("run");
  m.run = {.id = run.get<std::string>("id"), .schema = run.hash("schema")};
  run.end();
  m.ranks = fields.integer("ranks");
  fields.each("bases", [&](detail::ManifestFields& base) {
    Base& b = m.bases.emplace_back(
        Base{.step = base.integer("step"), .generation = base.count("generation")});
    base.each("shards", [&](detail::ManifestFields& shard) {
      b.shards.push_back({.name = shard.file("name"),
                          .length = shard.count("length"),
                          .hash = shard.hash("hash")});
    });
  });
  fields.each("history", [&](detail::ManifestFields& resumed) {
    m.history.push_back({.generation = resumed.count("generation"),
                         .resume_step = resumed.integer("resume_step", -1),
                         .ranks = resumed.integer("ranks")});
  });
  fields.each("segments", [&](detail::ManifestFields& segment) {
    m.segments.push_back({.name = segment.file("name"), .length = segment.count("length")});
  });
  for (const Json& name : fields.get<Json::Array>("garbage")) {
    const auto* text_of = name.as<std::string>();
    if (text_of == nullptr) fields.fail("has garbage that is no name");
    m.garbage.push_back(fields.checked_file(*text_of));
  }
  fields.end();
  detail::check_manifest(m, fields);
  return m;
}

}  // namespace mend::store
