#pragma once

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "mend/checkpoint/shard.hpp"
#include "mend/checkpoint/shard_plan.hpp"
#include "mend/core/byte_count.hpp"
#include "mend/core/bytes.hpp"
#include "mend/core/clock.hpp"
#include "mend/core/error.hpp"
#include "mend/core/hash.hpp"
#include "mend/core/train_state.hpp"
#include "mend/store/manifest.hpp"
#include "mend/store/safetensors.hpp"
#include "mend/store/safetensors_header.hpp"
#include "mend/store/store.hpp"

namespace mend::checkpoint {

//! Writes one rank's part of full checkpoints beside the training, with one thread that begins with
//! the first checkpoint and ends with the object.
//!
//! begin() copies at once what the next lambda may change: buffers, scalars, states, and whatever
//! is in a device's memory. Tensors, slots and buffers without a before-image change in the update
//! only: the thread copies them into a staging buffer of at most `staging` bytes, and writes what
//! does not fit from where it lies, first. before_update() blocks until both is done.
//! One thread at a time calls; the state must outlive the writing and be as it was at begin() until
//! before_update(). Memory at rest: the staging buffer, or less where the part is smaller; what is
//! copied at once lies in it too, and exceeds it where it must. The destructor gives up what is
//! being written, which leaves nothing behind, and waits for no more than a chunk of 1 MiB and the
//! store's sync.
template <Store S>
class FullWriter {
 public:
  //! What became of a part: exactly one of the two.
  struct Report {
    std::int64_t step = 0;
    std::optional<store::Manifest::Shard> shard{};  //!< durable; for a manifest to name
    std::optional<FileError> error{};               //!< nothing is left of it
  };

  FullWriter(S store, ByteCount staging) : store_{std::move(store)}, staging_{staging.value()} {}
  FullWriter(const FullWriter&) = delete;
  FullWriter& operator=(const FullWriter&) = delete;
  ~FullWriter() {
    {
      std::lock_guard lock{mutex_};
      ending_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  //! Begins to write this rank's part of a state. False: the one before is still under way, or
  //! nobody took its report; this one is skipped. Blocks for the copies named above. Throws
  //! StateError where an entry cannot be stored, and what a save function throws; then nothing has
  //! begun. Where memory is missing, the report says so.
  bool begin(const TrainState& state, ShardLabel label) {
    {
      std::lock_guard lock{mutex_};
      if (phase_ != Phase::idle) return false;
    }
    store::detail::refuse_unstorable(state);
    state.check();
    report_ = {.step = label.step};
    try {
      gather(state, label);
      label_ = std::move(label);
      if (!thread_.joinable()) thread_ = std::thread{[this] { work(); }};
    } catch (const std::bad_alloc&) {
      fail(FileError{"no memory to stage the checkpoint", {.code = ENOMEM}});
      return true;
    } catch (const std::system_error& e) {
      fail(FileError{"no thread to write the checkpoint", {.code = e.code().value()}});
      return true;
    }
    {
      std::lock_guard lock{mutex_};
      phase_ = Phase::copying;
    }
    changed_.notify_all();
    return true;
  }

  //! Blocks until the next update, or whatever else changes tensors and slots, may do so. Returns
  //! how long that took.
  Time before_update() {
    std::unique_lock lock{mutex_};
    if (phase_ != Phase::copying) return Time{0};
    Time begin = SystemClock{}.now();
    changed_.wait(lock, [this] { return phase_ != Phase::copying; });
    return SystemClock{}.now() - begin;
  }

  //! The report of the part that was begun last, once; empty while it is under way, and where none
  //! is left to take.
  [[nodiscard]] std::optional<Report> poll() {
    std::lock_guard lock{mutex_};
    return taken();
  }
  //! The same, but blocks while a part is under way.
  [[nodiscard]] std::optional<Report> wait() {
    std::unique_lock lock{mutex_};
    changed_.wait(lock, [this] { return phase_ == Phase::idle || phase_ == Phase::done; });
    return taken();
  }
  //! Whether a part is under way, or its report is still there.
  [[nodiscard]] bool busy() {
    std::lock_guard lock{mutex_};
    return phase_ != Phase::idle;
  }

 private:
  enum class Phase : std::uint8_t { idle, copying, writing, done };
  struct Ended {};  // thrown through the writing when the object ends

  //! A piece of the plan, and where its bytes lie.
  struct Part {
    ByteView bytes;                  // in the state's memory, in room_, or in blob
    std::byte* staged_to = nullptr;  // in room_, where the thread copies it to
    bool live = false;               // only the update changes it
    Bytes blob{};                    // of a state
    std::optional<Hash128> hash{};   // of what was staged
  };

  //! What may be copied later: host memory that only the update changes. Single numbers are not
  //! worth it.
  static bool changes_in_update(const TrainState::Entry& e) {
    bool tensor = e.kind == TrainState::Kind::tensor || e.kind == TrainState::Kind::slot;
    return e.memory == nullptr && !e.shape.empty() && (tensor || !e.before_image);
  }

  void gather(const TrainState& state, const ShardLabel& label) {
    plan_ = ShardPlan{state, label.part, label.parts}.pieces();
    tied_ = store::detail::tied(state);
    parts_ = std::vector<Part>(plan_.size());
    std::size_t at_once = 0;
    for (std::size_t i = 0; i < plan_.size(); ++i) {
      const TrainState::Entry& e = *plan_[i].entry;
      Part& part = parts_[i];
      part.live = changes_in_update(e);
      if (e.kind == TrainState::Kind::state)
        part.bytes = part.blob = e.save();
      else
        part.bytes = {e.value + plan_[i].offset, plan_[i].bytes};
      if (!part.live && e.kind != TrainState::Kind::state) at_once += part.bytes.size();
    }
    // The last ones in the file's order are staged, so that those before can be written first.
    std::size_t staged = at_once;
    first_staged_ = parts_.size();
    for (; first_staged_ > 0; --first_staged_) {
      const Part& part = parts_[first_staged_ - 1];
      if (!part.live) continue;
      if (part.bytes.size() > staging_ || staged > staging_ - part.bytes.size()) break;
      staged += part.bytes.size();
    }
    make_room(staged);
    std::byte* to = room_.get();
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      Part& part = parts_[i];
      bool blob = plan_[i].entry->kind == TrainState::Kind::state;
      if (blob || (part.live && i < first_staged_)) continue;
      if (part.live) {
        part.staged_to = to;
      } else {
        plan_[i].entry->read(part.bytes.data(), to, part.bytes.size());
        part.bytes = {to, part.bytes.size()};
      }
      to += part.bytes.size();
    }
  }
  void make_room(std::size_t size) {
    if (size <= room_size_) return;
    room_size_ = 0;
    room_.reset();  // first, so that there are never two
    room_ = std::make_unique_for_overwrite<std::byte[]>(size);
    room_size_ = size;
  }

  void fail(FileError error) {
    std::lock_guard lock{mutex_};
    report_.error = std::move(error);
    phase_ = Phase::done;
  }
  std::optional<Report> taken() {
    if (phase_ != Phase::done) return std::nullopt;
    phase_ = Phase::idle;
    return std::move(report_);
  }

  void work() {
    std::unique_lock lock{mutex_};
    for (;;) {
      changed_.wait(lock, [this] { return ending_ || phase_ == Phase::copying; });
      if (ending_) return;
      lock.unlock();
      Report report{.step = label_.step};
      try {
        report.shard = write();
      } catch (const Ended&) {
      } catch (const FileError& e) {
        report.error = e;
      } catch (const std::bad_alloc&) {
        report.error = FileError{"no memory to write the checkpoint", {.code = ENOMEM}};
      } catch (const std::exception& e) {
        report.error = FileError{e.what()};
      }
      lock.lock();
      report_ = std::move(report);
      phase_ = Phase::done;
      changed_.notify_all();
    }
  }
  store::Manifest::Shard write() {
    std::size_t live = 0;  // tensors up to the last one that is written from where it lies
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      Part& part = parts_[i];
      if (part.staged_to != nullptr) {
        stage(part);
      } else if (part.live) {
        live = i + 1;
      }
    }
    std::vector<ShardTensor> tensors;
    for (std::size_t i = 0; i < parts_.size(); ++i)
      tensors.push_back({&plan_[i], parts_[i].bytes, parts_[i].hash});
    if (live == 0) copied();
    return write_shard(store_, label_, tied_, std::span<const ShardTensor>{tensors},
                       [&](std::size_t done) {
                         go_on();
                         if (live != 0 && done >= live) {
                           live = 0;
                           copied();
                         }
                       });
  }
  void stage(Part& part) {
    HashSum sum;
    for (std::size_t done = 0; done < part.bytes.size();) {
      go_on();
      ByteView chunk =
          part.bytes.subspan(done, std::min(detail::write_chunk, part.bytes.size() - done));
      sum += hash_range(chunk, done);  // on the way, while it is in the cache
      std::memcpy(part.staged_to + done, chunk.data(), chunk.size());
      done += chunk.size();
    }
    part.bytes = {part.staged_to, part.bytes.size()};
    part.hash = finish(sum, part.bytes.size());
  }
  void copied() {
    {
      std::lock_guard lock{mutex_};
      phase_ = Phase::writing;
    }
    changed_.notify_all();
  }
  void go_on() {
    std::lock_guard lock{mutex_};
    if (ending_) throw Ended{};
  }

  S store_;
  std::size_t staging_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
  Phase phase_ = Phase::idle;
  bool ending_ = false;
  Report report_;

  // Of the part under way; the thread's own between begin() and the report.
  ShardLabel label_;
  std::vector<ShardPlan::Piece> plan_;
  store::SafetensorsHeader::Strings tied_;
  std::vector<Part> parts_;
  std::size_t first_staged_ = 0;
  std::unique_ptr<std::byte[]> room_;
  std::size_t room_size_ = 0;
};

}  // namespace mend::checkpoint
