#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <istream>
#include <locale>
#include <map>
#include <memory>
#include <ostream>
#include <ranges>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mend/core/arena.hpp"
#include "mend/core/bytes.hpp"
#include "mend/core/dtype.hpp"
#include "mend/core/error.hpp"
#include "mend/core/hash.hpp"
#include "mend/core/placement.hpp"

namespace mend {

//! Extents of a tensor in elements, outermost first; {} takes the buffer as one dimension.
using Shape = std::vector<std::int64_t>;

//! "[784, 128]"; "[]" is a scalar's.
[[nodiscard]] inline std::string to_text(const Shape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i != 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

//! Optional last argument of TrainState::add and add_buffer.
struct Traits {
  Shape shape{};
  std::string_view group = "default";  //!< parameter group, for PerGroup
  bool before_image = true;  //!< false: only the update changes this buffer, never the lambda
};

//! How the host reads and writes memory that is not its own; both wait until it is done. One object
//! per kind of memory, which lasts for ever.
struct DeviceMemory {
  void (*read)(const std::byte* from, std::byte* to, std::size_t n);
  void (*write)(const std::byte* from, std::byte* to, std::size_t n);
};

//! Elements in memory of a device, such as a mend::cuda::span; a range of the standard is in host
//! memory.
template <class V>
concept DeviceRange = requires(const V& v) {
  typename V::element_type;
  { v.data() } -> std::convertible_to<const void*>;
  { v.size() } -> std::convertible_to<std::size_t>;
  { V::memory() } -> std::same_as<const DeviceMemory&>;
};

//! The trainer's own buffers, by name: what a run must not lose.
//!
//! Owns nothing but the arenas given out by make(); the trainer's buffers must outlive the session.
//! Serves one session at a time, which freezes it. Neither copied nor moved.
class TrainState {
 public:
  enum class Kind : std::uint8_t { tensor, buffer, scalar, state, slot };

  //! A low-precision copy of a tensor, rounded anew from it after update, undo and restore.
  struct Copy {
    std::byte* data = nullptr;
    DType dtype = DType::bf16;
    std::function<bool()> moved{};
  };

  //! One registered piece. For Kind::state value is null and save/load stand in for it.
  struct Entry {
    std::string name;
    Kind kind = Kind::tensor;
    DType dtype = DType::f32;
    Shape shape{};
    std::size_t count = 0;  //!< elements
    std::byte* value = nullptr;
    std::byte* gradient = nullptr;
    DType gradient_dtype = DType::f32;
    const DeviceMemory* memory = nullptr;  //!< of value, gradient and copies; null: the host's
    std::string group = "default";
    Placement placement{};
    bool before_image = true;
    std::string
        tied_to{};  //!< the entry that owns these bytes, when the same buffers were added twice
    std::vector<Copy> copies{};
    std::function<Bytes()> save{};
    std::function<void(ByteView)> load{};
    std::function<bool()> moved{};           //!< the value; empty where it cannot be watched
    std::function<bool()> gradient_moved{};  //!< likewise

    [[nodiscard]] std::size_t bytes() const { return count * size_of(dtype); }
    [[nodiscard]] std::size_t gradient_bytes() const { return count * size_of(gradient_dtype); }

    //! Copies between this entry's memory and the host's.
    void read(const std::byte* from, std::byte* to, std::size_t n) const {
      if (n == 0) return;
      if (memory != nullptr)
        memory->read(from, to, n);
      else
        std::memcpy(to, from, n);
    }
    void write(const std::byte* from, std::byte* to, std::size_t n) const {
      if (n == 0) return;
      if (memory != nullptr)
        memory->write(from, to, n);
      else
        std::memcpy(to, from, n);
    }
    //! n bytes of this entry's memory as the host sees them: themselves, or a copy in `room`.
    [[nodiscard]] ByteView view(const std::byte* from, std::size_t n, Bytes& room) const {
      if (memory == nullptr) return {from, n};
      room.resize(n);
      read(from, room.data(), n);
      return room;
    }
    [[nodiscard]] ByteView view(Bytes& room) const { return view(value, bytes(), room); }
  };

  TrainState() = default;
  TrainState(const TrainState&) = delete;
  TrainState& operator=(const TrainState&) = delete;

  //! A parameter tensor and its gradient, both contiguous and of one length; no copy is made.
  //! A gradient may be narrower (bf16, f16) than a float value. The same two buffers under a second
  //! name are a tied tensor: updated, sent and stored once. A container given as an lvalue is
  //! remembered, and a reallocation is found at the next step.
  //! Throws StateError: sizes differ, a name taken, buffers that overlap others, a frozen state.
  template <std::ranges::contiguous_range V, std::ranges::contiguous_range G>
  TrainState& add(std::string_view name, V&& value, G&& gradient, Traits traits = {}) & {
    using T = element<V>;
    using U = element<G>;
    static_assert(!std::is_const_v<T> && !std::is_const_v<U>,
                  "TrainState::add needs buffers that can be written: value and gradient are "
                  "restored in place");
    static_assert(Element<T> && Element<U>,
                  "TrainState::add: an element type that mend does not know; specialise "
                  "mend::dtype_of for it");
    if constexpr (Element<T> && Element<U> && !std::is_const_v<T> && !std::is_const_v<U>) {
      static_assert(lasting<V> && lasting<G>,
                    "TrainState::add does not copy: a temporary container would be gone before "
                    "the first step");
      static_assert(dtype_of<T> == dtype_of<U> ||
                        (dtype_of<T> == DType::f32 && is_floating(dtype_of<U>) && sizeof(U) == 2),
                    "TrainState::add: gradient and value differ in type; only a float master may "
                    "take a narrower gradient");
      static_assert(is_floating(dtype_of<T>),
                    "TrainState::add: only floating-point tensors are trained; use add_buffer");
      std::size_t n = std::ranges::size(value);
      if (n != std::ranges::size(gradient))
        throw StateError{"tensor '" + std::string{name} + "' has " + std::to_string(n) +
                         " elements and its gradient " +
                         std::to_string(std::ranges::size(gradient)) + "; they must be equal"};
      Entry e = entry<T>(name, Kind::tensor, n, std::move(traits));
      e.value = bytes_of(value);
      e.gradient = bytes_of(gradient);
      e.gradient_dtype = dtype_of<U>;
      e.moved = watch(value);
      e.gradient_moved = watch(gradient);
      insert(std::move(e));
    }
    return *this;
  }
  //! The same in memory of a device, for a session with mend::OnStream.
  template <DeviceRange V, DeviceRange G>
  TrainState& add(std::string_view name, V value, G gradient, Traits traits = {}) & {
    add(name, std::span{value.data(), value.size()}, std::span{gradient.data(), gradient.size()},
        std::move(traits));
    entries_.back().memory = &V::memory();
    return *this;
  }
  template <class V, class G>
    requires(DeviceRange<std::remove_cvref_t<V>> != DeviceRange<std::remove_cvref_t<G>>)
  TrainState& add(std::string_view, V&&, G&&, Traits = {}) & {
    static_assert(DeviceRange<std::remove_cvref_t<V>> == DeviceRange<std::remove_cvref_t<G>>,
                  "TrainState::add: value and gradient must both be in host memory or both on the "
                  "device");
    return *this;
  }

  //! State without a gradient that the lambda or the trainer's own update changes: running
  //! statistics, fields of a simulation. Throws StateError as add does.
  template <std::ranges::contiguous_range V>
  TrainState& add_buffer(std::string_view name, V&& value, Placement placement = {},
                         Traits traits = {}) & {
    using T = element<V>;
    static_assert(!std::is_const_v<T>, "TrainState::add_buffer needs a buffer that can be written");
    static_assert(Element<T>,
                  "TrainState::add_buffer: an element type that mend does not know; specialise "
                  "mend::dtype_of for it");
    static_assert(lasting<V>,
                  "TrainState::add_buffer does not copy: a temporary container would be gone "
                  "before the first step");
    if constexpr (Element<T> && !std::is_const_v<T>) {
      Entry e = entry<T>(name, Kind::buffer, std::ranges::size(value), std::move(traits));
      e.value = bytes_of(value);
      e.placement = std::move(placement);
      e.moved = watch(value);
      insert(std::move(e));
    }
    return *this;
  }

  template <DeviceRange V>
  TrainState& add_buffer(std::string_view name, V value, Placement placement = {},
                         Traits traits = {}) & {
    add_buffer(name, std::span{value.data(), value.size()}, std::move(placement),
               std::move(traits));
    entries_.back().memory = &V::memory();
    return *this;
  }

  //! One number of the trainer's, restored too: a loss scale, a position.
  template <class T>
  TrainState& add_scalar(std::string_view name, T& value, Placement placement = {}) & {
    static_assert(!std::is_const_v<T>, "TrainState::add_scalar needs a number that can be written");
    static_assert(Element<T>,
                  "TrainState::add_scalar takes one number (or a type of mend::dtype_of); a random "
                  "generator goes to add_generator, any other object to add_state");
    if constexpr (Element<T> && !std::is_const_v<T>) {
      Entry e = entry<T>(name, Kind::scalar, 1, {});
      e.shape.clear();
      e.value = reinterpret_cast<std::byte*>(&value);
      e.placement = std::move(placement);
      insert(std::move(e));
    }
    return *this;
  }

  //! A random engine or distribution of <random>, or one like them: all that the next number
  //! depends on. It must outlive the session. Where equal values have equal bytes (std::mt19937_64)
  //! it is kept as a buffer of bytes, whose layout is the standard library's; else as text, through
  //! << and
  //! >>. Throws StateError as add does; the restore does where >> fails.
  template <class G>
  TrainState& add_generator(std::string_view name, G& generator,
                            Placement placement = PerRank{}) & {
    constexpr bool streams = requires(std::ostream & out, std::istream & in) {
      out << generator;
      in >> generator;
    };
    static_assert(
        streams && !Element<G>,
        "TrainState::add_generator takes what << and >> write and read whole, as the "
        "engines of <random>; a number goes to add_scalar, any other object to add_state");
    if constexpr (!streams) {
    } else if constexpr (std::is_trivially_copyable_v<G> &&
                         std::has_unique_object_representations_v<G>) {
      add_buffer(name, std::as_writable_bytes(std::span<G, 1>{&generator, 1}),
                 std::move(placement));
    } else {
      auto save = [&generator] {
        std::ostringstream out;
        out.imbue(std::locale::classic());
        out << generator;
        std::string text = std::move(out).str();
        auto bytes = std::as_bytes(std::span{text});
        return Bytes(bytes.begin(), bytes.end());
      };
      auto load = [&generator, name = std::string{name}](ByteView bytes) {
        std::istringstream in{
            std::string{reinterpret_cast<const char*>(bytes.data()), bytes.size()}};
        in.imbue(std::locale::classic());
        if (!(in >> generator))
          throw StateError{"what was kept of generator '" + name + "' is not one of its states"};
      };
      add_state(name, std::move(save), std::move(load), std::move(placement));
    }
    return *this;
  }

  //! A pointer does not say how many elements there are.
  template <class V, class G>
    requires(std::is_pointer_v<std::remove_cvref_t<V>> || std::is_pointer_v<std::remove_cvref_t<G>>)
  TrainState& add(std::string_view, V&&, G&&, Traits = {}) & {
    static_assert(
        !std::is_pointer_v<std::remove_cvref_t<V>> && !std::is_pointer_v<std::remove_cvref_t<G>>,
        "TrainState::add: a pointer does not say how many elements there are; wrap it: "
        "std::span{pointer, count}");
    return *this;
  }
  template <class V>
  requires std::is_pointer_v<std::remove_cvref_t<V>> TrainState& add_buffer(std::string_view, V&&,
                                                                            Placement = {},
                                                                            Traits = {}) & {
    static_assert(!std::is_pointer_v<std::remove_cvref_t<V>>,
                  "TrainState::add_buffer: a pointer does not say how many elements there are; "
                  "wrap it: std::span{pointer, count}");
    return *this;
  }

  //! A low-precision copy (bf16, f16) of the float tensor `of`, rounded to nearest even from it
  //! after every update, undo and restore; never sent or stored.
  template <std::ranges::contiguous_range V>
  TrainState& add_copy(std::string_view of, V&& low) & {
    return add_copy(of, low, nullptr);
  }
  template <DeviceRange V>
  TrainState& add_copy(std::string_view of, V low) & {
    return add_copy(of, std::span{low.data(), low.size()}, &V::memory());
  }

  //! What is not a buffer: a loader, another library's optimizer. `save()` returns all of it as
  //! bytes; it is called at the start of each step and must not change anything. `load(bytes)`
  //! takes what save returned, maybe on another rank's machine; it is called between steps.
  TrainState& add_state(std::string_view name, std::function<Bytes()> save,
                        std::function<void(ByteView)> load, Placement placement = PerRank{}) & {
    Entry e;
    e.name = name;
    e.kind = Kind::state;
    e.dtype = DType::u8;
    e.placement = std::move(placement);
    e.save = std::move(save);
    e.load = std::move(load);
    if (!e.save || !e.load)
      throw StateError{"state '" + std::string{name} + "' needs both a save and a load function"};
    insert(std::move(e));
    return *this;
  }

  //! Aligned memory for a tensor and its gradient, zeroed, owned by the state and already added.
  //! Returns {value, gradient}, valid as long as the state.
  template <Element T>
  std::pair<std::span<T>, std::span<T>> make(std::string_view name, Shape shape,
                                             Traits traits = {}) & {
    std::size_t n = 1;
    for (std::int64_t extent : shape) n *= static_cast<std::size_t>(extent);
    if (n > std::size_t{1} << 56)  // the bytes of it would no longer fit a number
      throw StateError{"'" + std::string{name} +
                       "' has a shape that no memory holds: " + to_text(shape)};
    std::size_t stride =
        (n * sizeof(T) + Arena::alignment - 1) / Arena::alignment * Arena::alignment;
    Arena arena{ByteCount{2 * stride}};
    std::span<T> value{reinterpret_cast<T*>(arena.data()), n};
    std::span<T> gradient{reinterpret_cast<T*>(arena.data() + stride), n};
    traits.shape = std::move(shape);
    add(name, value, gradient, std::move(traits));
    arenas_.push_back(std::move(arena));
    return {value, gradient};
  }

  //! In the order of registration, which is the order of updates, reductions and files.
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  [[nodiscard]] const Entry* find(std::string_view name) const {
    auto it = index_.find(std::string{name});
    return it == index_.end() ? nullptr : &entries_[it->second];
  }

  //! Committed steps and applied updates so far; kept by the session, stored by save.
  std::int64_t step = 0;
  std::int64_t applied = 0;
  //! Set by the session while some tensors are updated for a step that is not committed.
  bool half_updated = false;
  //! Whose state this is: the place in the session's group. Kept by the session; a file with
  //! per-rank state says it, and is loaded on that rank of a group of that size only.
  int rank = 0, size = 1;

  //! Throws StateError naming the first buffer that was moved or resized after registration.
  void check() const {
    for (const Entry& e : entries_) check(e);
  }
  static void check(const Entry& e) {
    refuse_moved(e, e.moved, e.kind == Kind::tensor ? "the value of " : "");
    refuse_moved(e, e.gradient_moved, "the gradient of ");
    for (const Copy& c : e.copies) refuse_moved(e, c.moved, "a copy of ");
  }

  //! Throws StateError while an undo policy has updated tensors of a step that is not committed:
  //! what is there now is no step's state.
  void refuse_half_updated() const {
    if (half_updated)
      throw StateError{"step " + std::to_string(step) +
                       " is not committed and some tensors are updated for it already; save in "
                       "what is called after a commit, or call session.discard() first"};
  }

  //! Of all that is registered, within a session with optimizer slots, and of both counters above:
  //! the same state, the same hash. Per-rank entries and copies count, so that ranks may differ.
  //! Cost: a pass over memory, and what the save functions do.
  [[nodiscard]] Hash128 hash() const {
    refuse_half_updated();
    StateHash all;
    Bytes room;
    for (const Entry& e : entries_) {
      if (e.kind == Kind::state)
        all.add(e.name, e.dtype, e.save());
      else
        all.add(e.name, e.dtype, e.view(room));
      for (const Copy& c : e.copies)
        all.add(e.name, c.dtype, e.view(c.data, e.count * size_of(c.dtype), room));
    }
    const std::int64_t counters[]{step, applied};
    all.add(hash_bytes(std::as_bytes(std::span{counters})));
    return all.value();
  }

  //! For sessions: takes the state, so that a second session is refused. Throws StateError.
  void freeze() {
    if (frozen_)
      throw StateError{"two sessions on one TrainState; a state serves one session at a time"};
    frozen_ = true;
  }
  void release() {
    std::erase_if(entries_, [](const Entry& e) { return e.kind == Kind::slot; });
    reindex();
    frozen_ = false;
  }
  //! For sessions: an optimizer slot of tensor `of`, owned by the caller. Of a bf16 or f16 tensor
  //! it is in floats.
  void add_slot(const Entry& of, std::string_view slot, std::byte* value) {
    Entry e;
    e.name = of.name + "." + std::string{slot};
    e.kind = Kind::slot;
    e.dtype = of.dtype == DType::f64 ? DType::f64 : DType::f32;
    e.shape = of.shape;
    e.count = of.count;
    e.value = value;
    e.memory = of.memory;
    e.group = of.group;
    insert_slot(std::move(e));
  }
  //! One number of the session's own, owned by it.
  void add_slot(std::string_view name, std::int64_t& value) {
    Entry e;
    e.name = name;
    e.kind = Kind::slot;
    e.dtype = DType::i64;
    e.count = 1;
    e.value = reinterpret_cast<std::byte*>(&value);
    insert_slot(std::move(e));
  }
  //! The slot at that index lies somewhere else from now on.
  void move_slot(std::size_t index, std::byte* value) { entries_[index].value = value; }

 private:
  static void refuse_moved(const Entry& e, const std::function<bool()>& moved,
                           std::string_view what) {
    if (moved && moved())
      throw StateError{std::string{what} + (e.kind == Kind::tensor ? "tensor '" : "buffer '") +
                       e.name +
                       "' was moved or resized after registration; register buffers of final size"};
  }

  template <class V>
  TrainState& add_copy(std::string_view of, V&& low, const DeviceMemory* memory) {
    using T = element<V>;
    static_assert(Element<T>, "TrainState::add_copy: an element type that mend does not know");
    static_assert(lasting<V>, "TrainState::add_copy does not copy: pass a buffer that lasts");
    if constexpr (Element<T>) {
      static_assert(dtype_of<T> == DType::bf16 || dtype_of<T> == DType::f16,
                    "TrainState::add_copy rounds to bf16 or f16");
      refuse_frozen(of);
      Entry* master = writable(of);
      if (master == nullptr || master->kind != Kind::tensor || master->dtype != DType::f32)
        throw StateError{"add_copy: there is no float tensor '" + std::string{of} +
                         "'; add it first"};
      if (master->count != std::ranges::size(low))
        throw StateError{"add_copy: tensor '" + std::string{of} + "' has " +
                         std::to_string(master->count) + " elements and its copy " +
                         std::to_string(std::ranges::size(low))};
      if (master->memory != memory)
        throw StateError{"add_copy: tensor '" + std::string{of} +
                         "' and its copy must both be in host memory or both on the device"};
      refuse_overlap(of, bytes_of(low), std::ranges::size(low) * sizeof(T));
      claim(of, bytes_of(low), std::ranges::size(low) * sizeof(T));
      master->copies.push_back({bytes_of(low), dtype_of<T>, watch(low)});
    }
    return *this;
  }

  template <class R>
  using element = std::remove_reference_t<std::ranges::range_reference_t<R>>;
  template <class R>
  static constexpr bool lasting =
      std::is_lvalue_reference_v<R> || std::ranges::borrowed_range<std::remove_cvref_t<R>>;

  template <class R>
  static std::byte* bytes_of(R& range) {
    return reinterpret_cast<std::byte*>(std::ranges::data(range));
  }

  //! Finds a reallocation later; views cannot be watched, since what they view may last elsewhere.
  template <class R>
  static std::function<bool()> watch(R& range) {
    if constexpr (std::ranges::view<std::remove_cv_t<R>>) {
      return {};
    } else {
      return [&range, data = std::ranges::data(range), size = std::ranges::size(range)] {
        return std::ranges::data(range) != data || std::ranges::size(range) != size;
      };
    }
  }

  template <class T>
  static Entry entry(std::string_view name, Kind kind, std::size_t count, Traits traits) {
    Entry e;
    e.name = name;
    e.kind = kind;
    e.dtype = dtype_of<std::remove_cv_t<T>>;
    e.count = count;
    e.shape =
        traits.shape.empty() ? Shape{static_cast<std::int64_t>(count)} : std::move(traits.shape);
    e.group = traits.group;
    e.before_image = traits.before_image;
    std::int64_t product = 1;
    for (std::int64_t extent : e.shape) {
      if (extent < 0)
        throw StateError{"'" + e.name + "' has a negative extent: " + to_text(e.shape)};
      if (__builtin_mul_overflow(product, extent, &product))
        throw StateError{"'" + e.name + "' has a shape that no memory holds: " + to_text(e.shape)};
    }
    if (product != static_cast<std::int64_t>(count))
      throw StateError{"'" + e.name + "' has " + std::to_string(count) +
                       " elements and the shape " + to_text(e.shape) + " has " +
                       std::to_string(product)};
    return e;
  }

  Entry* writable(std::string_view name) { return const_cast<Entry*>(find(name)); }

  static void check_placement(const Entry& e) {
    if (e.placement.copies < 0)
      throw OptionError{"'" + e.name + "': PerRank{.copies = " +
                        std::to_string(e.placement.copies) + "} cannot be negative"};
    const Slice& s = e.placement.slice;
    bool whole = s.of.size() == s.at.size() && s.of.size() == s.extent.size();
    std::int64_t count = 1;
    for (std::size_t i = 0; whole && i < s.of.size(); ++i) {
      whole = s.at[i] >= 0 && s.extent[i] >= 0 && s.at[i] <= s.of[i] - s.extent[i];
      count *= s.extent[i];
    }
    if (!whole ||
        (!s.of.empty() && e.kind != Kind::state && static_cast<std::uint64_t>(count) != e.count))
      throw OptionError{"'" + e.name + "' of " + std::to_string(e.count) +
                        " elements is no slice " + to_text(s.extent) + " at " + to_text(s.at) +
                        " of an array " + to_text(s.of)};
  }
  void insert(Entry e) {
    refuse_frozen(e.name);
    refuse_name(e.name);
    check_placement(e);
    if (const Entry* same = twin(e)) {
      e.tied_to = same->name;
    } else {
      refuse_overlap(e.name, e.value, e.bytes());
      refuse_overlap(e.name, e.gradient, e.gradient == nullptr ? 0 : e.gradient_bytes());
      if (e.gradient != nullptr && e.value < e.gradient + e.gradient_bytes() &&
          e.gradient < e.value + e.bytes())
        throw StateError{"tensor '" + e.name + "' overlaps its own gradient"};
      claim(e.name, e.value, e.bytes());
      claim(e.name, e.gradient, e.gradient == nullptr ? 0 : e.gradient_bytes());
    }
    index_.emplace(e.name, entries_.size());
    entries_.push_back(std::move(e));
  }

  //! An entry with exactly the same buffers: a tied tensor, shared on purpose.
  [[nodiscard]] const Entry* twin(const Entry& e) const {
    if (e.kind != Kind::tensor || e.count == 0) return nullptr;
    auto same = ranges_.find(e.value);
    const Entry* o = same == ranges_.end() ? nullptr : find(same->second.owner);
    return o != nullptr && o->kind == Kind::tensor && o->count == e.count && o->dtype == e.dtype &&
                   o->gradient == e.gradient && o->gradient_dtype == e.gradient_dtype
               ? o
               : nullptr;
  }

  void refuse_frozen(std::string_view name) const {
    if (frozen_)
      throw StateError{"'" + std::string{name} +
                       "' was added after a session took the state; register everything before"};
  }
  void refuse_name(std::string_view name) const {
    if (name.empty()) throw StateError{"a piece of state needs a name"};
    if (index_.contains(std::string{name}))
      throw StateError{"the name '" + std::string{name} + "' is taken; names must differ"};
  }
  // Ranges are kept sorted, so that thousands of tensors register in n log n comparisons.
  struct Range {
    const std::byte* end;
    std::string owner;
  };
  void refuse_overlap(std::string_view name, const std::byte* begin, std::size_t n) const {
    if (begin == nullptr || n == 0) return;
    auto next = ranges_.upper_bound(begin);
    const Range* hit = nullptr;
    if (next != ranges_.end() && next->first < begin + n) hit = &next->second;
    if (next != ranges_.begin() && std::prev(next)->second.end > begin)
      hit = &std::prev(next)->second;
    if (hit != nullptr)
      throw StateError{"the buffers of '" + std::string{name} + "' overlap those of '" +
                       hit->owner +
                       "'; only a whole tensor with its gradient may be added twice (tied)"};
  }
  void claim(std::string_view name, const std::byte* begin, std::size_t n) {
    if (begin == nullptr || n == 0) return;
    ranges_.emplace(begin, Range{begin + n, std::string{name}});
  }
  void insert_slot(Entry&& e) {
    refuse_name(e.name);
    index_.emplace(e.name, entries_.size());
    entries_.push_back(std::move(e));
  }
  void reindex() {
    index_.clear();
    for (std::size_t i = 0; i < entries_.size(); ++i) index_.emplace(entries_[i].name, i);
  }

  std::vector<Entry> entries_;
  std::unordered_map<std::string, std::size_t> index_;
  std::map<const std::byte*, Range, std::less<>> ranges_;  // by where they begin
  std::vector<Arena> arenas_;
  bool frozen_ = false;
};

}  // namespace mend
