#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mend/core/atomic_file.hpp"
#include "mend/core/bytes.hpp"
#include "mend/core/error.hpp"
#include "mend/core/file_system.hpp"
#include "mend/core/hash.hpp"
#include "mend/core/text.hpp"
#include "mend/core/train_state.hpp"
#include "mend/store/safetensors_header.hpp"

namespace mend {

namespace store::detail {

using Tensor = SafetensorsHeader::Tensor;
using Entry = TrainState::Entry;
using Kind = TrainState::Kind;

inline constexpr std::string_view kind_names[] = {"tensor", "buffer", "scalar", "state", "slot"};
inline constexpr std::string_view no_checksum = "00000000000000000000000000000000";
inline constexpr std::string_view checksum_key = "\"mend.checksum\":\"";
inline constexpr std::string_view format_version = "1";

//! "'a', 'b' and 3 more"
inline std::string list(const std::vector<std::string>& names) {
  constexpr std::size_t most = 5;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), most); ++i)
    text += (i == 0 ? "'" : ", '") + names[i] + "'";
  if (names.size() > most) text += " and " + std::to_string(names.size() - most) + " more";
  return text;
}

inline std::string type_of(DType dtype, const std::vector<std::int64_t>& shape) {
  return std::string{name_of(dtype)} + " " + to_text(shape);
}

//! The tied entries of a state, each with the entry that owns its bytes.
inline SafetensorsHeader::Strings tied(const TrainState& state) {
  SafetensorsHeader::Strings pairs;
  for (const Entry& e : state.entries())
    if (!e.tied_to.empty()) pairs.emplace_back(e.name, e.tied_to);
  return pairs;
}

//! Throws StateError where an entry cannot be in a file.
inline void refuse_unstorable(const TrainState& state) {
  for (const Entry& e : state.entries()) {
    if (!is_utf8(e.name) || e.name == "__metadata__")
      throw StateError{"'" + e.name +
                       "' cannot be a name in a .safetensors file; it must be "
                       "UTF-8 and not __metadata__"};
  }
}

//! What is stored of an entry. The bytes of a state, and of a device's memory, are asked for once
//! and kept here.
struct Piece {
  [[nodiscard]] ByteView bytes() const {
    return entry->kind == Kind::state || entry->memory != nullptr
               ? ByteView{blob}
               : ByteView{entry->value, entry->bytes()};
  }
  [[nodiscard]] std::vector<std::int64_t> shape() const {
    if (entry->kind != Kind::state) return entry->shape;
    return {static_cast<std::int64_t>(blob.size())};
  }

  const Entry* entry;
  Bytes blob;
};

//! What mend notes in "__metadata__" about a file of its own.
struct Notes {
  std::int64_t step = 0, applied = 0;
  std::int64_t rank = 0, size = 0;    // whose per-rank state it holds; of 0: none is in it
  std::vector<std::string> kinds{};   // per tensor, in the order of the data
  std::vector<std::string> hashes{};  // likewise
  SafetensorsHeader::Strings tied{};
};

//! The text of a header that ends in a checksum of zeros, with the right one in its place.
inline std::string sealed(const SafetensorsHeader& header, const std::string& path) {
  std::string text = header.text();
  if (text.size() > SafetensorsHeader::longest)
    throw StateError{"more names than a .safetensors file can list", {.path = path}};
  return text.replace(text.find(checksum_key) + checksum_key.size(), no_checksum.size(),
                      hash_bytes(std::as_bytes(std::span{text})).to_hex());
}

inline std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> found;
  while (!text.empty()) {
    std::size_t n = std::min(text.find(' '), text.size());
    found.emplace_back(text.substr(0, n));
    text.remove_prefix(std::min(n + 1, text.size()));
  }
  return found;
}

//! Empty for a file from another tool. `text`: the header as it stands in the file.
inline std::optional<Notes> read_notes(const SafetensorsHeader& header, std::string text,
                                       const std::string& path) {
  auto ours = [](const auto& note) {
    return (note.first == "format" && note.second == "mend") ||
           note.first.compare(0, 5, "mend.") == 0;
  };
  if (std::none_of(header.metadata.begin(), header.metadata.end(), ours)) return std::nullopt;
  auto note = [&](std::string_view key) -> const std::string& {
    const std::string* value = header.find(key);
    if (value == nullptr)
      throw FileError{"the header is damaged: it lacks " + std::string{key}, {.path = path}};
    return *value;
  };
  auto number = [&](std::string_view key) {
    const std::string& digits = note(key);
    std::int64_t value = 0;
    const char* last = digits.data() + digits.size();
    auto [end, error] = std::from_chars(digits.data(), last, value);
    if (error != std::errc{} || end != last || value < 0)
      throw FileError{"the header is damaged: " + std::string{key} + " is not a count",
                      {.path = path}};
    return value;
  };
  // The version first: what another one means by its checksum is not known here.
  if (note("mend.version") != format_version)
    throw FileError{"written in version " + note("mend.version") + " of this format; this is " +
                        std::string{format_version} + ". Read it with the mend that wrote it",
                    {.path = path}};
  // The checksum counts the header with zeros in the checksum's own place.
  const std::string& checksum = note("mend.checksum");
  std::size_t at = text.find(checksum_key);
  if (at != text.npos && checksum.size() == no_checksum.size())
    text.replace(at + checksum_key.size(), checksum.size(), no_checksum);
  if (hash_bytes(std::as_bytes(std::span{text})).to_hex() != checksum)
    throw FileError{"the header is damaged: its checksum differs", {.path = path}};
  bool owned = header.find("mend.rank") != nullptr || header.find("mend.size") != nullptr;
  Notes notes{.step = number("mend.step"),
              .applied = number("mend.applied"),
              .rank = owned ? number("mend.rank") : 0,
              .size = owned ? number("mend.size") : 0,
              .kinds = words(note("mend.kinds")),
              .hashes = words(note("mend.hashes")),
              .tied = SafetensorsHeader::parse_strings(note("mend.tied"), path)};
  if (notes.kinds.size() != header.tensors.size() || notes.hashes.size() != header.tensors.size())
    throw FileError{"the header is damaged: kinds or hashes are missing", {.path = path}};
  return notes;
}

//! An entry and the tensor in the file that it is restored from.
struct Match {
  const Entry* entry;
  const Tensor* tensor;
  std::string hash;  //!< as stored, or as first read where the file stores none
};

//! Pairs entries with tensors. Throws StateError that names what is missing, unexpected or other
//! than registered. From another tool's file, tensors and buffers are wanted and scalars taken.
inline std::vector<Match> match(const TrainState& state, const SafetensorsHeader& header,
                                const std::optional<Notes>& notes, const std::string& path) {
  std::unordered_map<std::string_view, std::size_t> in_file;
  for (std::size_t i = 0; i < header.tensors.size(); ++i) in_file[header.tensors[i].name] = i;
  std::vector<Match> matches;
  std::vector<std::string> missing, differing;
  for (const Entry& e : state.entries()) {
    if (!e.tied_to.empty()) continue;
    if (!notes && (e.kind == Kind::state || e.kind == Kind::slot)) continue;
    auto it = in_file.find(e.name);
    if (it == in_file.end()) {
      if (notes || e.kind != Kind::scalar) missing.push_back(e.name);
      continue;
    }
    std::size_t i = it->second;
    in_file.erase(it);
    const Tensor& t = header.tensors[i];
    bool blob = e.kind == Kind::state;
    if (t.dtype != e.dtype || (blob ? t.shape.size() != 1 : t.shape != e.shape))
      differing.push_back(e.name + "' is " + type_of(t.dtype, t.shape) + " in the file and " +
                          (blob ? "U8 [any]" : type_of(e.dtype, e.shape)) + " here, '");
    std::string_view kind = kind_names[static_cast<std::size_t>(e.kind)];
    if (notes && notes->kinds[i] != kind)
      differing.push_back(e.name + "' is a " + notes->kinds[i] + " in the file and a " +
                          std::string{kind} + " here, '");
    matches.push_back({&e, &t, notes ? notes->hashes[i] : ""});
  }
  std::string text;
  auto say = [&](const std::string& what) { text += (text.empty() ? ": " : "; ") + what; };
  if (!missing.empty()) say("it lacks " + list(missing));
  std::vector<std::string> unexpected;
  bool slots = false;
  for (std::size_t i = 0; i < header.tensors.size(); ++i) {
    if (in_file.count(header.tensors[i].name) == 0) continue;
    unexpected.push_back(header.tensors[i].name);
    slots = slots || (notes && notes->kinds[i] == "slot");
  }
  if (!unexpected.empty()) say("it also holds " + list(unexpected));
  if (slots) say("the optimizer's slots are there only while a session is: load it then");
  for (const std::string& d : differing) say("'" + d.substr(0, d.size() - 3));
  if (notes) {
    SafetensorsHeader::Strings here = tied(state), there = notes->tied, either;
    std::sort(here.begin(), here.end());
    std::sort(there.begin(), there.end());
    std::set_symmetric_difference(here.begin(), here.end(), there.begin(), there.end(),
                                  std::back_inserter(either));
    std::vector<std::string> names;
    for (auto& pair : either) names.push_back(std::move(pair.first));
    names.erase(std::unique(names.begin(), names.end()), names.end());
    if (!names.empty()) say("other tensors are tied in it: " + list(names));
  }
  if (!text.empty()) throw StateError{"the file does not fit this state" + text, {.path = path}};
  return matches;
}

inline const Entry* per_rank_entry(const TrainState& state) {
  auto at = std::find_if(state.entries().begin(), state.entries().end(),
                         [](const Entry& e) { return e.placement.per_rank; });
  return at == state.entries().end() ? nullptr : &*at;
}

//! Throws StateError where per-rank state would come from another rank, or from a group of another
//! size.
inline void refuse_other_rank(const TrainState& state, const Notes& notes,
                              const std::string& path) {
  const Entry* e = per_rank_entry(state);
  if (e == nullptr || notes.size == 0 || (notes.rank == state.rank && notes.size == state.size))
    return;
  throw StateError{"'" + e->name + "' is registered per rank and this file holds rank " +
                       std::to_string(notes.rank) + "'s of " + std::to_string(notes.size) +
                       ", here is rank " + std::to_string(state.rank) + " of " +
                       std::to_string(state.size) +
                       "; save one file per rank, and load each on its rank, between the "
                       "session's construction and train",
                   {.path = path}};
}

//! A tensor's hash, read piece by piece; a bool that is neither is refused.
template <FileSystem F>
std::string hash_in_file(typename F::File& file, std::uint64_t at, const Tensor& t, Bytes& buffer,
                         const std::string& path) {
  HashSum sum;
  std::uint64_t size = t.end - t.begin;
  for (std::uint64_t done = 0; done < size;) {
    std::span<std::byte> part{buffer.data(), static_cast<std::size_t>(std::min<std::uint64_t>(
                                                 buffer.size(), size - done))};
    file.read(at + t.begin + done, part);
    auto is_bool = [](std::byte b) { return b <= std::byte{1}; };
    if (t.dtype == DType::boolean && !std::all_of(part.begin(), part.end(), is_bool))
      throw FileError{"'" + t.name + "' is damaged: neither true nor false", {.path = path}};
    sum += hash_range(part, done);
    done += part.size();
  }
  return finish(sum, size).to_hex();
}

}  // namespace store::detail

//! Writes a state to one .safetensors file, which any tool can read: tensors, buffers, scalars
//! (without dimensions), states and optimizer slots; a tied tensor once. When this returns the file
//! is durable; until then, and after an error, what stood at the path before stays.
//! With per-rank entries the file is this rank's own: one per rank. Call between steps. Blocks as
//! the disk does. Throws StateError where an entry cannot be stored, FileError with errno and path.
//! Cost: one pass over memory for hashes, one for writing.
template <FileSystem F>
void save(const TrainState& state, const std::string& path, F& files) {
  using namespace store::detail;
  state.refuse_half_updated();
  state.check();
  refuse_unstorable(state);
  std::vector<Piece> pieces;
  for (const Entry& e : state.entries()) {
    if (!e.tied_to.empty()) continue;
    Piece& piece = pieces.emplace_back(Piece{&e, {}});
    if (e.kind == Kind::state)
      piece.blob = e.save();
    else if (e.memory != nullptr)
      (void)e.view(piece.blob);
  }
  // Wide elements first, so that every tensor lies at a multiple of its element's size.
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return size_of(a.entry->dtype) > size_of(b.entry->dtype);
  });
  store::SafetensorsHeader header;
  std::string kinds, hashes;
  std::uint64_t end = 0;
  for (const Piece& p : pieces) {
    std::string_view separator = kinds.empty() ? "" : " ";
    kinds.append(separator).append(kind_names[static_cast<std::size_t>(p.entry->kind)]);
    hashes.append(separator).append(hash_bytes(p.bytes()).to_hex());
    std::uint64_t begin = std::exchange(end, end + p.bytes().size());
    header.tensors.push_back({p.entry->name, p.entry->dtype, p.shape(), begin, end});
  }
  header.metadata = {{"format", "mend"},
                     {"mend.version", std::string{format_version}},
                     {"mend.step", std::to_string(state.step)},
                     {"mend.applied", std::to_string(state.applied)},
                     {"mend.kinds", kinds},
                     {"mend.hashes", hashes},
                     {"mend.tied", store::SafetensorsHeader::text_of(tied(state))},
                     {"mend.checksum", std::string{no_checksum}}};
  if (per_rank_entry(state) != nullptr)
    header.metadata.insert(header.metadata.end() - 1, {{"mend.rank", std::to_string(state.rank)},
                                                       {"mend.size", std::to_string(state.size)}});
  std::string text = sealed(header, path);
  std::uint64_t length = text.size();
  AtomicFile file{files, path};
  file.write(std::as_bytes(std::span{&length, 1}));
  file.write(text);
  for (const Piece& p : pieces) file.write(p.bytes());
  file.publish_durably();
}
template <FileSystem F = PosixFileSystem>  // compiled only where it is called
void save(const TrainState& state, const std::string& path) {
  F files;
  save(state, path, files);
}

//! Restores a state from a file that save() wrote, or from another tool's .safetensors file that
//! holds exactly its tensors and buffers; then scalars are taken where they are there, and steps,
//! states and slots stay as they are.
//!
//! Names, dtypes, shapes, sizes and checksums are verified before the first byte of the state
//! changes. Only a disk that fails, or a file that changes, while it is read for the second time,
//! or a load function that throws, can leave a state partly restored; the error says so.
//! Call between steps, and before the first one between the session's construction and train.
//! Blocks as the disk does. Throws StateError where state and file do not fit, or where per-rank
//! entries are another rank's or those of a group of another size (TrainState::rank, size);
//! FileError where the file cannot be read or trusted. Cost: two passes over the file, 4 MiB.
template <FileSystem F>
void load(TrainState& state, const std::string& path, F& files) {
  using namespace store::detail;
  state.check();
  refuse_unstorable(state);
  typename F::File file = files.open(path);
  std::uint64_t size = file.size(), length = 0;
  if (size < 8) throw FileError{"too short for a .safetensors file", {.path = path}};
  file.read(0, std::as_writable_bytes(std::span{&length, 1}));
  if (length > size - 8 || length > store::SafetensorsHeader::longest)
    throw FileError{"not a .safetensors file, or cut short: its header would have " +
                        std::to_string(length) + " bytes",
                    {.path = path}};
  std::string text(length, '\0');
  file.read(8, std::as_writable_bytes(std::span{text}));
  std::uint64_t at = 8 + length;
  store::SafetensorsHeader header = store::SafetensorsHeader::parse(text, size - at, path);
  std::optional<Notes> notes = read_notes(header, std::move(text), path);
  std::vector<Match> matches = match(state, header, notes, path);
  if (notes) refuse_other_rank(state, *notes, path);

  Bytes buffer(static_cast<std::size_t>(std::min<std::uint64_t>(size, std::uint64_t{4} << 20)) / 8 *
               8);
  for (Match& m : matches) {
    std::string hash = hash_in_file<F>(file, at, *m.tensor, buffer, path);
    if (notes && hash != m.hash)
      throw FileError{"'" + m.tensor->name + "' is damaged: its checksum differs", {.path = path}};
    m.hash = hash;
  }

  auto read = [&](const Match& m, std::span<std::byte> into) {
    try {
      file.read(at + m.tensor->begin, into);
      if (hash_bytes(into).to_hex() != m.hash) throw FileError{"it changed while it was read"};
    } catch (const FileError& e) {
      throw FileError{"at '" + m.tensor->name + "': " + e.what() +
                          "; the state is only partly restored, load it again",
                      {.code = e.code(), .path = path}};
    }
  };
  for (const Match& m : matches) {
    if (m.entry->kind != Kind::state) continue;
    Bytes blob(m.tensor->end - m.tensor->begin);
    read(m, blob);
    m.entry->load(blob);
  }
  for (const Match& m : matches) {
    if (m.entry->kind == Kind::state) continue;
    if (m.entry->memory == nullptr) {
      read(m, {m.entry->value, m.entry->bytes()});
    } else {
      Bytes copy(m.entry->bytes());
      read(m, copy);
      m.entry->write(copy.data(), m.entry->value, copy.size());
    }
  }
  if (notes) {
    state.step = notes->step;
    state.applied = notes->applied;
  }
}
template <FileSystem F = PosixFileSystem>  // compiled only where it is called
void load(TrainState& state, const std::string& path) {
  F files;
  load(state, path, files);
}

}  // namespace mend
