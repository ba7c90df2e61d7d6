#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "mend/core/byte_count.hpp"
#include "mend/core/dtype.hpp"
#include "mend/core/policy.hpp"
#include "mend/optim/rule.hpp"

namespace mend {

//! One tensor whose updates a record may have to take back.
struct UndoTensor {
  std::size_t count = 0;     //!< elements
  DType dtype = DType::f32;  //!< of values and slots as a rule sees them: f32 or f64
  bool rounded = false;      //!< the value is stored in bf16 or f16: not what the rule gave
};

//! The update of n neighbouring elements of one tensor: the arguments of kernel::apply.
template <Rule R, class T>
struct UpdateRange {
  typename R::Coefficients coefficients;
  T* p;
  std::array<T*, R::slots.size()> slots;
  const T* g;
  std::size_t n;
  T gradient_scale;

  //! Elements [at, at + size).
  [[nodiscard]] UpdateRange part(std::size_t at, std::size_t size) const {
    UpdateRange r = *this;
    r.p += at;
    for (T*& slot : r.slots) slot += at;
    r.g += at;
    r.n = size;
    return r;
  }
};

//! Ranges of a tensor begin at multiples of this many elements, and end there or with the tensor.
inline constexpr std::size_t undo_chunk = 4096;

//! How an undo policy updates, and what it keeps to make a half-done update whole by going back.
//! One object per session.
//!
//!   reserve(tensors)         once: what there is to update
//!   apply(i, first, range)   updates a range of tensor i, from element `first` on
//!   revert(i, first, range)  takes that back: the same range, coefficients and gradients
//!   drop()                   after the commit, or after going back: nothing is kept any more
//!   memory()                 the bytes held now
//!
//! Law 1: revert after apply gives the same bits, after any prefix of the ranges and in any order.
//!        (A policy that does not says so: exact = false.)
//! Law 2: revert of a range that was not applied since drop changes nothing.
//! Law 3: apply and revert may run in several threads for different ranges.
//! Law 4: an apply that throws leaves its range as it was, and what was kept before restorable;
//!        revert and drop do not throw.
//! A record that keeps old slots by having every slot twice offers `exchange(i, slots)` too, which
//! is called after a tensor's apply and after its revert and swaps the pointers to current ones.
template <class Record, class R>
concept UndoRecord = std::default_initializable<Record> &&
    requires(Record& record, std::size_t i, std::span<const UndoTensor> tensors,
             const UpdateRange<R, float>& range) {
  record.reserve(tensors);
  record.apply(i, i, range);
  record.revert(i, i, range);
  record.drop();
  { std::as_const(record).memory() } -> std::same_as<ByteCount>;
};

//! A policy that says how a half-done update is made whole. reverts: back to before the step (by
//! its Record<Rule>); otherwise the session finishes the update, for which all gradients must be
//! reduced before the first bucket is updated. exact: a revert restores the very bits.
template <class P>
concept UndoPolicy = Is<P, kind::undo> && requires {
  { P::reverts } -> std::convertible_to<bool>;
  { P::exact } -> std::convertible_to<bool>;
};

namespace detail {

//! Which chunks of which tensors were updated.
class UndoChunks {
 public:
  void reserve(std::span<const UndoTensor> tensors) {
    first_.clear();
    std::size_t chunks = 0;
    for (const UndoTensor& t : tensors) {
      first_.push_back(chunks);
      chunks += (t.count + undo_chunk - 1) / undo_chunk;
    }
    updated_.assign(chunks, false);
  }
  [[nodiscard]] std::size_t size() const { return updated_.size(); }
  //! The chunk of element `at` of tensor i.
  [[nodiscard]] std::size_t index(std::size_t i, std::size_t at) const {
    return first_[i] + at / undo_chunk;
  }
  void note(std::size_t chunk) { updated_[chunk] = true; }
  //! Whether it was updated; not any more.
  [[nodiscard]] bool take(std::size_t chunk) { return std::exchange(updated_[chunk], false) != 0; }
  void drop() { updated_.assign(updated_.size(), false); }

 private:
  std::vector<std::size_t> first_;
  std::vector<char> updated_;
};

//! Calls body(at, size) for the chunks of a range of n elements.
template <class Body>
void for_each_chunk(std::size_t n, const Body& body) {
  for (std::size_t at = 0; at < n; at += undo_chunk) body(at, std::min(undo_chunk, n - at));
}

}  // namespace detail

}  // namespace mend
