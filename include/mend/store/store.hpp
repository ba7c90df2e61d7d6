#pragma once

#include <unistd.h>

#include <cerrno>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mend/core/bytes.hpp"
#include "mend/core/error.hpp"

namespace mend {

//! Seam: a place where named pieces of bytes rest. What a directory, an object store and plain
//! memory can all do, so there is no rename in it, and nothing that changes a piece.
//!
//! Copies mean the same place, and may be used by several threads at once. Names are paths without
//! a leading slash: "shards/a.safetensors" (see is_store_name()). Everything blocks as the place
//! does. Throws FileError with path and, where the system gives one, errno.
//!
//! Laws. 1: put_new() begins a piece under a name that nobody used before; write() appends to it.
//! Once publish() returns it is whole and durable; before, readers may see any part of it, so
//! nobody trusts a name that no manifest names. A writer destroyed without publish() takes its
//! piece away. 2: put_if_absent() is true when the name now holds exactly these bytes, durably and
//! whole; false when it holds others. Readers see all of them or nothing; of several callers with
//! different bytes one gets true. After an error nobody knows whether it is there.
//! 3: size() is empty where there is no such piece. read_range() fills its span or throws; ENOENT
//! or ESTALE for a piece that was listed means that it was removed since: list again. 4: list()
//! gives the names that begin with a folder's name and slash, sorted, without what is not yet put.
//! 5: remove() of what is not there is no error; after a power loss a removed piece may be back.
//! 6: sync_existing() makes durable what can be read, whoever wrote it and however that one ended.
//! 7: remove_leftovers() takes away what killed callers of put_if_absent() left behind for names of
//! a folder that sort before a given one, and nothing else.
template <class S>
concept Store = std::copyable<S> &&
    requires(S& store, typename S::Writer& writer, const std::string& name, ByteView bytes,
             std::uint64_t offset, std::span<std::byte> into) {
  { store.put_new(name) } -> std::same_as<typename S::Writer>;
  writer.write(bytes);
  writer.publish();
  { store.put_if_absent(name, bytes) } -> std::same_as<bool>;
  { store.size(name) } -> std::same_as<std::optional<std::uint64_t>>;
  store.read_range(name, offset, into);
  { store.list(name) } -> std::same_as<std::vector<std::string>>;
  store.remove(name);
  store.sync_existing(name);
  store.remove_leftovers(name, name);
};

//! Capability: pieces that grow. append_new() begins one under a name that nobody used before; it
//! is never opened again for writing. append() adds bytes; those appended before sync() returned
//! are durable. After an error of either, what was not synced is lost, the piece takes nothing
//! more, and stays as it is: a failed sync is never repeated.
template <class S>
concept AppendStore = Store<S> &&
    requires(S& store, typename S::Appender& appender, const std::string& name, ByteView bytes) {
  { store.append_new(name) } -> std::same_as<typename S::Appender>;
  appender.append(bytes);
  appender.sync();
};

//! Whether a name leads nowhere else, whoever chose it: parts of printable ASCII letters, digits
//! and "-_.", none of which begins with a dot, between single slashes.
[[nodiscard]] constexpr bool is_store_name(std::string_view name) {
  bool fresh = true;  // at the start of a part
  for (char c : name) {
    bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                 c == '-' || c == '_';
    if (!plain && (fresh || (c != '.' && c != '/'))) return false;
    fresh = c == '/';
  }
  return !fresh;
}

namespace store {

//! The whole piece. Throws FileError; ENOENT where there is none.
template <Store S>
[[nodiscard]] Bytes read_all(S& store, const std::string& name) {
  std::optional<std::uint64_t> size = store.size(name);
  if (!size) throw FileError{"no such piece", {.code = ENOENT, .path = name}};
  Bytes bytes(*size);
  store.read_range(name, 0, bytes);
  return bytes;
}

//! 16 hexadecimal digits that nobody else has, whichever host or process it is.
[[nodiscard]] inline std::string unique_text() {
  std::uint64_t random = 0;
  if (::getentropy(&random, sizeof random) != 0)
    throw FileError{"no random number from the system", {.code = errno}};
  std::string text;
  for (int i = 0; i < 16; ++i, random >>= 4) text += "0123456789abcdef"[random & 15];
  return text;
}

}  // namespace store

}  // namespace mend
