#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <utility>

#include "mend/core/byte_count.hpp"
#include "mend/core/policy.hpp"

namespace mend {

//! One array that an update of a bucket writes: values or a slot of one tensor.
using StateSpan = std::span<std::byte>;

//! What a session keeps, per step, to make a half-done update whole by going back. One object per
//! session, used by one thread.
//!
//!   reserve(buckets, bytes)   once: how many buckets, and the bytes of all their state together
//!   save(bucket, state)       before that bucket's update; state: every array that it writes
//!   restore(bucket)           that bucket holds the bits from before save; false if it was not
//!   saved drop()                    after the commit, or after going back: nothing is saved any
//!   more
//!
//! Law 1: restore after save gives the same bits, after any prefix of the buckets and in any order.
//! Law 2: a second save of a bucket before drop changes nothing: its update has begun.
//! Law 3: the arrays stay where they are from save to drop, and gradients are not written.
//! Law 4: a save that throws leaves what was saved before restorable; restore and drop do not
//! throw. A record that can save while it updates, in one pass over memory, offers `apply` with the
//! arguments of kernel::apply after the bucket, in place of save and kernel::apply; a session
//! prefers it.
template <class R>
concept UndoRecord = std::default_initializable<R> &&
    requires(R& record, std::size_t bucket, ByteCount bytes, std::span<const StateSpan> state) {
  record.reserve(bucket, bytes);
  record.save(bucket, state);
  { record.restore(bucket) } -> std::same_as<bool>;
  record.drop();
  { std::as_const(record).memory() } -> std::same_as<ByteCount>;
};

//! A policy that says how a half-done update is made whole. reverts: back to before the step (by
//! its Record); otherwise the session finishes the update, for which all gradients must be reduced
//! before the first bucket is updated.
template <class P>
concept UndoPolicy = Is<P, kind::undo> && UndoRecord<typename P::Record> && requires {
  { P::reverts } -> std::convertible_to<bool>;
};

}  // namespace mend
