#pragma once

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "mend/checkpoint/full_writer.hpp"
#include "mend/checkpoint/loader.hpp"
#include "mend/checkpoint/publisher.hpp"
#include "mend/checkpoint/schema.hpp"
#include "mend/checkpoint/shard.hpp"
#include "mend/core/byte_count.hpp"
#include "mend/core/bytes.hpp"
#include "mend/core/error.hpp"
#include "mend/core/train_state.hpp"
#include "mend/store/directory_lock.hpp"
#include "mend/store/manifest.hpp"
#include "mend/store/store.hpp"

namespace mend {

//! When full checkpoints are taken, and which stay.
struct FullOptions {
  std::int64_t every = 100;     //!< steps
  int keep = 2;                 //!< the newest ones; with 1 there is nothing to fall back to
  std::int64_t keep_every = 0;  //!< those of steps that it divides, for good; 0: none
  ByteCount staging{std::uint64_t{1}
                    << 30};  //!< bytes of a rank's snapshot that wait to be written
};

namespace checkpoint {

//! One rank's side of the full checkpoints of a group that runs in step. It sends nothing: the
//! session carries its records of `record_words` numbers along with every step, so that all ranks
//! know the same of each attempt, and begin and end it at the same step.
//!
//! Rank 0 publishes. One thread at a time; what it throws is said at each function.
template <Store S>
class FullCheckpoints {
 public:
  static constexpr std::size_t record_words = 6;
  using Record = std::array<std::uint64_t, record_words>;

  FullCheckpoints(S store, FullOptions options)
      : store_{std::move(store)},
        options_{options},
        writer_{std::make_unique<FullWriter<S>>(store_, options.staging)},
        shared_{std::make_unique<Shared>()} {}
  FullCheckpoints(FullCheckpoints&&) noexcept = default;
  FullCheckpoints& operator=(FullCheckpoints&&) = delete;
  ~FullCheckpoints() {
    if (publishing_.joinable()) publishing_.join();
  }

  // ---- beginning --------------------------------------------------------------------------------

  //! On rank 0, unless it publishes already: takes the store over and finds what is there. What it
  //! returns goes to take_over() on all ranks. Throws StoreInUse, StateError, FileError.
  Bytes open(const TrainState& state, int ranks) {
    if (!publisher_) {
      if constexpr (requires { store_.prepare(); })
        if (!lock_) {
          store_.prepare();
          lock_ = std::make_unique<store::DirectoryLock>(store_.path(),
                                                         store::DirectoryLock::Options{});
        }
      auto publisher = std::make_unique<Publisher<S>>(
          store_, Retention{.keep = options_.keep, .keep_every = options_.keep_every});
      (void)publisher->open(schema_of(state), ranks);
      publisher_ = std::move(publisher);
    }
    wait_for_publication();
    const store::Manifest& manifest = publisher_->manifest();
    const bool empty = manifest.bases.empty();
    set_durable(empty ? 0 : manifest.bases.back().step);
    ByteWriter w;
    w.put(publisher_->generation()).put(durable_step()).put_string(publisher_->run());
    w.put_string(empty ? "" : manifest.text());
    return std::move(w).take();
  }
  //! Instead of open(), on rank 0, where that threw and the run can go on without.
  [[nodiscard]] Bytes nothing(std::string why) {
    set_error(std::move(why));
    return std::move(
               ByteWriter{}.put(std::uint64_t{0}).put(durable_step()).put_string("").put_string(""))
        .take();
  }
  //! On every rank, in every generation of the group: what rank 0 found. An attempt under way is
  //! given up on all of them.
  void take_over(ByteView told) {
    ByteReader r{told};
    generation_ = r.get<std::uint64_t>();
    begun_ = r.get<std::int64_t>();
    run_ = r.get_string();
    found_ = r.get_string();
    set_durable(begun_);
    (void)writer_->wait();
    report_.reset();
    attempt_.reset();
  }
  //! On every rank: restores what was found. False: nothing was. Throws StateError where it does
  //! not fit, FileError where this rank cannot read what rank 0 could.
  bool restore(TrainState& state, int rank, int ranks) {
    if (found_.empty()) return false;
    const store::Manifest manifest = store::Manifest::parse(found_, "the manifest of rank 0");
    Loader<S> loader{store_};
    loader.open(manifest, manifest.bases.back());
    loader.restore(state, rank, ranks);
    return true;
  }

  // ---- every step -------------------------------------------------------------------------------

  //! Where step `state.step` is one to be kept: takes a snapshot and begins to write it. wait: does
  //! not return before it is written (for runs whose order must not depend on a thread).
  void begin_if_due(const TrainState& state, int rank, int ranks, bool wait) {
    if (state.step == 0 || state.step % options_.every != 0 || attempt_) return;
    begin(state, rank, ranks);
    if (wait) report_ = writer_->wait();
  }
  //! Blocks until the next update may write. Not for the step function.
  void before_update() { (void)writer_->before_update(); }

  //! What this rank says in this step. The same again where the step is repeated.
  [[nodiscard]] Record record() {
    if (!report_) report_ = writer_->poll();
    Record words{};
    if (!report_ || !attempt_ || report_->step != attempt_->step) return words;
    words[0] = static_cast<std::uint64_t>(report_->step) + 1;
    if (!report_->shard) return words;  // failed
    words[1] = 1;
    const std::string& name = report_->shard->name;
    std::string_view nonce = std::string_view{name}.substr(name.size() - after_nonce.size() - 16);
    (void)std::from_chars(nonce.data(), nonce.data() + 16, words[2], 16);
    words[3] = report_->shard->length;
    words[4] = report_->shard->hash.lo;
    words[5] = report_->shard->hash.hi;
    return words;
  }
  //! What all ranks said in a step that is committed. Rank 0 publishes where all parts are there;
  //! wait: before it returns.
  void committed(std::span<const Record> all, int rank, bool wait) {
    if (!attempt_) return;
    for (std::size_t r = 0; r < all.size() && r < attempt_->shards.size(); ++r)
      if (all[r][0] == static_cast<std::uint64_t>(attempt_->step) + 1)
        note(static_cast<int>(r), all[r]);
    if (attempt_->missing > 0) return;
    Attempt done = *std::exchange(attempt_, std::nullopt);
    if (report_ && report_->error) set_error(report_->error->what());
    report_.reset();
    if (rank == 0 && publisher_) publish(std::move(done), wait);
  }

  // ---- the end ----------------------------------------------------------------------------------

  //! The last step's state is made durable too, if the store can; all ranks call it after the same
  //! step. gather(record) is every rank's record, in rank order. Throws what gather throws.
  void flush(const TrainState& state, int rank, int ranks, auto&& gather) {
    auto end_attempt = [&] {
      if (!attempt_) return;
      if (!report_) report_ = writer_->wait();
      committed(gather(record()), rank, true);
    };
    end_attempt();
    if (state.step > 0 && begun_ != state.step) begin(state, rank, ranks);
    end_attempt();
    wait_for_publication();
    // Nobody leaves before it is known what is durable.
    std::vector<Record> all = gather(Record{static_cast<std::uint64_t>(durable_step())});
    set_durable(static_cast<std::int64_t>(all.at(0)[0]));
  }

  //! The newest checkpoint that is committed, as far as this rank knows: exactly on rank 0.
  [[nodiscard]] std::int64_t durable_step() const {
    std::lock_guard lock{shared_->mutex};
    return shared_->durable;
  }
  //! Why the last attempt that failed did, on this rank; empty where none has.
  [[nodiscard]] std::string error() const {
    std::lock_guard lock{shared_->mutex};
    return shared_->error;
  }

 private:
  static constexpr std::string_view after_nonce = ".safetensors";

  struct Attempt {
    std::int64_t step;
    std::vector<store::Manifest::Shard> shards{};
    std::vector<char> said{};
    std::size_t missing = 0;
    bool failed = false;
  };
  struct Shared {
    std::mutex mutex;
    std::int64_t durable = 0;
    std::string error;
  };

  void begin(const TrainState& state, int rank, int ranks) {
    begun_ = state.step;
    if (generation_ == 0) return;  // nobody publishes
    attempt_ = Attempt{.step = state.step};
    attempt_->shards.resize(static_cast<std::size_t>(ranks));
    attempt_->said.assign(static_cast<std::size_t>(ranks), 0);
    attempt_->missing = static_cast<std::size_t>(ranks);
    (void)writer_->begin(state, {.step = state.step,
                                 .applied = state.applied,
                                 .run = run_,
                                 .generation = generation_,
                                 .part = rank,
                                 .parts = ranks});
  }
  void note(int rank, const Record& words) {
    const auto r = static_cast<std::size_t>(rank);
    if (std::exchange(attempt_->said[r], char{1}) != 0) return;
    --attempt_->missing;
    if (words[1] == 0) {
      attempt_->failed = true;
      return;
    }
    std::string name = store::shard_name(attempt_->step, generation_, r);
    std::string nonce(16, '0');
    for (std::size_t i = 0; i < 16; ++i)
      nonce[i] = "0123456789abcdef"[words[2] >> (60 - 4 * i) & 15];
    name.replace(name.size() - after_nonce.size() - 16, 16, nonce);
    attempt_->shards[r] = {
        .name = std::move(name), .length = words[3], .hash = {.lo = words[4], .hi = words[5]}};
  }
  void publish(Attempt done, bool wait) {
    wait_for_publication();
    publishing_ = std::thread{
        [this_publisher = publisher_.get(), shared = shared_.get(), done = std::move(done)] {
          try {
            if (done.failed) {
              std::vector<store::Manifest::Shard> written;
              for (const auto& shard : done.shards)
                if (!shard.name.empty()) written.push_back(shard);
              this_publisher->discard(written);
              return;
            }
            this_publisher->commit(done.step, done.shards);
            std::lock_guard lock{shared->mutex};
            shared->durable = done.step;
          } catch (const std::exception& e) {
            std::lock_guard lock{shared->mutex};
            shared->error = e.what();
          }
        }};
    if (wait) wait_for_publication();
  }
  void wait_for_publication() {
    if (publishing_.joinable()) publishing_.join();
  }
  void set_durable(std::int64_t step) {
    std::lock_guard lock{shared_->mutex};
    shared_->durable = step;
  }
  void set_error(std::string text) {
    std::lock_guard lock{shared_->mutex};
    shared_->error = std::move(text);
  }

  S store_;
  FullOptions options_;
  std::unique_ptr<FullWriter<S>> writer_;
  std::unique_ptr<Shared> shared_;  // with the thread that publishes
  std::unique_ptr<store::DirectoryLock> lock_;
  std::unique_ptr<Publisher<S>> publisher_;  // on rank 0
  std::thread publishing_;

  std::uint64_t generation_ = 0;
  std::string run_, found_;
  std::int64_t begun_ = -1;  // the step of the last attempt
  std::optional<Attempt> attempt_;
  std::optional<typename FullWriter<S>::Report> report_;
};

}  // namespace checkpoint

}  // namespace mend
