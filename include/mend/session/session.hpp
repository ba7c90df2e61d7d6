#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "mend/comm/communicator.hpp"
#include "mend/comm/group.hpp"
#include "mend/config.hpp"
#include "mend/core/hash.hpp"
#include "mend/core/policy.hpp"
#include "mend/core/text.hpp"
#include "mend/core/train_state.hpp"
#include "mend/kernel/host/reduce.hpp"
#include "mend/kernel/host/rounding.hpp"
#include "mend/optim/bounded_rule.hpp"
#include "mend/optim/check_options.hpp"
#include "mend/optim/clip_norm.hpp"
#include "mend/optim/loss_scale.hpp"
#include "mend/optim/norm_rule.hpp"
#include "mend/optim/own_update.hpp"
#include "mend/optim/rule.hpp"
#include "mend/optim/skip_non_finite.hpp"
#include "mend/optim/undo/record.hpp"
#include "mend/optim/undo/roll_forward.hpp"
#include "mend/session/before_image.hpp"
#include "mend/session/bucket_plan.hpp"
#include "mend/session/committed.hpp"
#include "mend/session/device_bucket.hpp"
#include "mend/session/helper_thread.hpp"
#include "mend/session/host_threads.hpp"
#include "mend/session/own_reduction.hpp"
#include "mend/session/partner_copies.hpp"
#include "mend/session/purity_check.hpp"
#include "mend/session/replica_recovery.hpp"
#include "mend/session/state_transfer.hpp"
#include "mend/session/traced.hpp"
#include "mend/session/updater.hpp"

namespace mend {

namespace detail {

template <class P, class... Ps>
inline constexpr int count_of = (0 + ... + std::same_as<P, Ps>);
template <class K, class... Ps>
inline constexpr int count_of_kind = (0 + ... + Is<Ps, K>);
template <class U>
concept Update = Rule<U> || std::same_as<U, OwnUpdate>;

//! The policy of kind undo, RollForward when none is given.
template <class... Ps>
struct UndoOf {
  using type = RollForward;
};
template <class P, class... Ps>
struct UndoOf<P, Ps...> : UndoOf<Ps...> {};
template <class P, class... Ps>
  requires Is<P, kind::undo>
struct UndoOf<P, Ps...> {
  using type = P;
};

//! The policy that knows a device's memory: mend::OnStream; HostMemory when none is given.
template <class... Ps>
struct DeviceOf {
  using type = HostMemory;
};
template <class P, class... Ps>
struct DeviceOf<P, Ps...> : DeviceOf<Ps...> {};
template <class P, class... Ps>
  requires requires(const P& p) { p.wait(); } && Is<P, kind::device>
struct DeviceOf<P, Ps...> {
  using type = P;
};

//! The policy's checkpoints: FullCheckpoints for mend::FullCheckpointer; none when none is given.
struct NoCheckpoints {
  static constexpr std::size_t record_words = 0;
};
template <class... Ps>
struct CheckpointsOf {
  using type = NoCheckpoints;
};
template <class P, class... Ps>
struct CheckpointsOf<P, Ps...> : CheckpointsOf<Ps...> {};
template <class P, class... Ps>
  requires requires { typename P::Checkpoints; }
struct CheckpointsOf<P, Ps...> {
  using type = typename P::Checkpoints;
};

struct NoUpdater {
  void drop() {}
};
template <class U, class Undo, class Device>
struct UpdaterOf {
  using type = NoUpdater;
};
template <Rule U, class Undo, class Device>
struct UpdaterOf<U, Undo, Device> {
  using type = Updater<U, Undo, Device>;
};

template <class U>
concept NeedsNorms = requires {
  U::norms;
};
template <class U>
concept KeepsBits = requires {
  U::kept_bits;
};

}  // namespace detail

//! Joins a trainer's state, its update, its communicator and the chosen policies around its loop:
//! a step is committed on all ranks or on none, and a run in which workers died ends with the same
//! bits as one in which none did. docs/protocol.md says how.
//!
//!   mend::Session session{state, mend::Adam{.lr = 1e-3f}, comm, mend::ReplicaRecovery{}};
//!   session.train(10'000, [&](mend::Step step) { return forward_backward(batch(step)); });
//!
//! Refers to the state and the communicator, owns update and policies; neither copied nor moved.
//! One thread calls it. Blocks as long as other ranks take, at most the communicator's timeout.
//! Throws StateError and OptionError for what cannot work, RunStopped when the run as a whole
//! cannot go on, CommError when this worker is cut off; what the lambda throws reaches its caller.
//! Memory: slots, the before-image, one pack of small gradients (a kilobyte per small tensor or
//! so).
template <class U, class Comm, class... Policies>
class Session {
  static_assert(detail::Update<U>,
                "Session's second argument is an update: a rule (mend::Adam, or your own: see "
                "check_rule) or mend::OwnUpdate");
  static_assert(
      comm::Communicator<Comm>,
      "Session's third argument is a Communicator: rank(), size(), agree(); policies come "
      "after it");
  static_assert((Policy<Policies> && ...),
                "Session: one of the policies is none of mend's kinds (recovery, reduction, undo, "
                "schedule, device, clip, sharding, check, trace)");
  static_assert(((detail::count_of<Policies, Policies...> == 1) && ...),
                "Session: the same policy is given twice");
  static_assert(detail::count_of_kind<kind::undo, Policies...> <= 1 &&
                    detail::count_of_kind<kind::reduction, Policies...> <= 1 &&
                    detail::count_of_kind<kind::clip, Policies...> <= 1,
                "Session: two policies of one kind; undo, reduction and clip take one each");
  static_assert(
      detail::count_of<ReplicaRecovery, Policies...> == 0 || comm::Elastic<Comm>,
      "ReplicaRecovery needs a Communicator whose members can be replaced; the one given to "
      "Session has no coordinator");

  static constexpr bool replicas = detail::count_of<ReplicaRecovery, Policies...> > 0;
  static constexpr bool own_reduction = detail::count_of<OwnReduction, Policies...> > 0;
  static constexpr bool traced = detail::count_of<Traced, Policies...> > 0;
  static constexpr bool own_update = std::same_as<U, OwnUpdate>;
  static constexpr bool clips = detail::count_of<ClipNorm, Policies...> > 0;
  static constexpr bool scales_loss = detail::count_of<DynamicLossScale, Policies...> > 0;
  static constexpr bool skips =
      clips || scales_loss || detail::count_of<SkipNonFinite, Policies...> > 0;
  using Checkpoints = typename detail::CheckpointsOf<Policies...>::type;
  static constexpr bool checkpointed = !std::same_as<Checkpoints, detail::NoCheckpoints>;
  static constexpr std::size_t closing_words = 2 + Checkpoints::record_words;  // of a rank
  static_assert(!checkpointed || comm::Elastic<Comm>,
                "FullCheckpointer needs one of mend's communicators, whose ranks tell each other "
                "what they have written");
  using Undo = typename detail::UndoOf<Policies...>::type;
  static_assert(UndoPolicy<Undo>, "Session: the undo policy does not model mend::UndoPolicy");
  using Device = typename detail::DeviceOf<Policies...>::type;
  static constexpr bool has_device = !std::same_as<Device, HostMemory>;
  //! What can be taken back may begin early: a bucket is updated as soon as it is reduced.
  static constexpr bool overlapped = Undo::reverts;

  static_assert(
      !(overlapped && skips),
      "overlapped updates begin before the last gradient is known: ClipNorm, SkipNonFinite and "
      "DynamicLossScale need all of them first; leave the undo policy out");
  static_assert(!detail::NeedsNorms<U> || NormRule<U>,
                "Session: the rule has `norms` and does not model mend::NormRule: see prepare and "
                "with_norms there");
  static_assert(!detail::KeepsBits<U> || BoundedOptimizer<U>,
                "Session: the rule has `kept_bits` and does not model mend::BoundedOptimizer");
  static_assert(!(overlapped && detail::NeedsNorms<U>),
                "overlapped updates are not for a rule that needs norms of whole tensors (Lamb, "
                "Lars); leave the undo policy out");
  static_assert(
      !((clips || scales_loss) && own_update),
      "ClipNorm and DynamicLossScale scale the gradients inside a rule; an OwnUpdate does "
      "that itself");
  static_assert(!(overlapped && own_update),
                "an undo policy needs a rule: mend cannot undo what OwnUpdate does");
  static_assert(
      own_reduction || comm::CanAllReduce<Comm>,
      "Session reduces gradients: the Communicator needs all_reduce(), or give OwnReduction");

 public:
  Session(TrainState& state, U update, Comm& comm, Policies... policies)
      : state_{state},
        update_{std::move(update)},
        comm_{comm},
        policies_{std::move(policies)...},
        frozen_{state},
        updater_{telling([this] { return make_updater(); })},
        plan_{state},
        image_{state},
        copies_{state},
        transfer_{state, plan_, copies_},
        checkpoints_{make_checkpoints()},
        step_{state.step},
        applied_{state.applied} {
    telling([this] { refuse_what_cannot_be_restored(); });
    note_place();
    reduced_.assign(plan_.size() + 1, false);
    updated_.assign(plan_.size(), false);
    ready_.assign(plan_.size(), 0);
    released_.assign(state_.entries().size(), false);
    if constexpr (has_device && !own_update) updater_.prepare(plan_);
    refresh_copies();
  }
  //! The session refers to the state and the communicator, so temporaries are refused.
  Session(TrainState&&, U, Comm&, Policies...) = delete;
  Session(TrainState&, U, Comm&&, Policies...) = delete;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() {
    if (std::uncaught_exceptions() > exceptions_)
      leave("");  // what it was is not known here
    else if (!helper_.idle())
      leave("the training loop was left with gradients on their way");
    abandon();
  }

  [[nodiscard]] int rank() const { return comm_.rank(); }
  [[nodiscard]] int size() const { return comm_.size(); }
  //! The step to come: so many are committed.
  [[nodiscard]] Step step() const { return step_; }

  //! Runs steps up to `last` (absolute; a restored run begins where it stood). step_fn(Step) fills
  //! the gradients and returns nothing or this rank's loss; it is called again for a step that a
  //! failure cut short. after(const Committed&) runs once per committed step, with the new
  //! parameters, sometimes in the middle of a recovery: what it changes must be Replicated, and it
  //! takes part in no collective. Neither may last longer than the communicator's timeout. A worker
  //! whose train() threw is replaced: it is expected to end, and is ended after a lease.
  template <class F, class A = void (*)(const Committed&)>
  void train(
      Step last, F&& step_fn, A&& after = [](const Committed&) {}) {
    static_assert(std::invocable<F&, Step>, "the step function takes a mend::Step");
    static_assert(std::invocable<A&, const Committed&>,
                  "what is called after a commit takes a const mend::Committed&");
    using Result = std::invoke_result_t<F&, Step>;
    static_assert(std::is_void_v<Result> || std::floating_point<Result>,
                  "the step function returns nothing or this rank's loss (float or double)");
    struct Listener {
      ~Listener() { call = {}; }
      std::function<void(const Committed&)>& call;
    } listener{after_};
    after_ = [&after](const Committed& done) { after(done); };
    if (finished_) stopping_ = stop_requested_ = false;  // a stop ends one train(), not the next
    ++trains_;
    try {
      begin(last);
      while (std::optional<Step> step = open(last)) {
        double loss = call(step_fn, *step);
        purity(step_fn, *step);
        settle(loss);
      }
    } catch (const RunStopped&) {
      throw;
    } catch (const std::exception& e) {
      leave(e.what());
      abandon();
      throw;
    } catch (...) {  // the destructor tells the group
      abandon();
      throw;
    }
  }

  //! For a trainer that keeps its loop: `while (auto step = session.next(500)) { ... }`. Commits
  //! the step before, or returns it again when a failure cut it short; empty once `last` is reached
  //! or the run was asked to stop. Leaving the loop early (break) leaves the step at hand
  //! uncommitted; leave it on all ranks or on none, and see discard().
  std::optional<Step> next(Step last) {
    begin(last);
    if (pending_ && returned_) settle(0);
    std::optional<Step> step = open(last);
    returned_ = step.has_value();
    return step;
  }

  //! After leaving a loop of next() early: buffers, scalars and tensors that were updated early
  //! become again what they were at the beginning of the step, which is the last commit; so they
  //! can be saved. On all ranks that left. Does nothing between steps. Throws StateError where a
  //! container was moved or resized.
  void discard() {
    if (!pending_) return;
    helper_.wait();
    state_.check();
    take_back();
    pending_ = returned_ = false;
  }

  //! The gradient of this tensor is final: its bucket may travel while the lambda goes on, reduced
  //! in place. From this call to the end of the step neither read nor write that gradient (so take
  //! the loss and statistics before it). Call it once per step, in the same order on all ranks.
  //! With an undo policy the tensor is updated as soon as its bucket is reduced: do not read that
  //! either.
  void ready(std::string_view name) {
    static_assert(!own_reduction,
                  "ready() is for gradients that mend reduces; OwnReduction does it itself");
    if (!pending_) throw StateError{"ready() belongs into the step function"};
    std::size_t entry = plan_.entry(name), b = plan_.find(entry);
    if (released_[entry])
      throw StateError{"ready(\"" + std::string{name} +
                           "\") was called twice in one step; call it "
                           "once, when the gradient is final",
                       {.rank = Rank{comm_.rank()}, .step = step_}};
    released_[entry] = true;
    if (b == plan_.size() || interrupted_ || checking_purity()) return;
    TrainState::check(state_.entries()[entry]);
    if (++ready_[b] < plan_[b].entries.size()) return;
    if (concurrent()) {
      helper_.run([this, b] { reduce_early(b); });
    } else {
      reduce_early(b);
    }
  }

  //! Any rank, at any time between steps or in them: all ranks stop after the same step, at the
  //! latest the one after this.
  void request_stop() { stop_requested_ = true; }

  //! The last committed step, for trainers that call next().
  [[nodiscard]] const std::optional<Committed>& committed() const { return committed_; }

  //! The step of the newest checkpoint that this rank knows to be durable; 0: none. After train()
  //! has returned it is the same on all ranks: the last step, unless checkpoint_error() says why
  //! not.
  [[nodiscard]] Step durable_step() const requires checkpointed {
    return Step{checkpoints_.durable_step()};
  }
  //! Why the last checkpoint that failed did, as far as this rank took part in it; empty: none has.
  [[nodiscard]] std::string checkpoint_error() const requires checkpointed {
    return checkpoints_.error();
  }

  //! Bytes that mend holds beyond slots: the before-image, and partners' copies of per-rank state.
  [[nodiscard]] ByteCount before_image_bytes() const { return image_.bytes(); }
  [[nodiscard]] ByteCount partner_copy_bytes() const { return copies_.bytes(); }
  //! Bytes that the undo policy holds now. Not for step functions.
  [[nodiscard]] ByteCount undo_bytes() const {
    if constexpr (own_update)
      return {};
    else
      return updater_.undo_memory();
  }

 private:
  static constexpr bool elastic = comm::Elastic<Comm>;
  using Kind = comm::Kind;

  struct Freeze {
    explicit Freeze(TrainState& s) : state{s} { state.freeze(); }
    ~Freeze() { state.release(); }
    Freeze(const Freeze&) = delete;
    Freeze& operator=(const Freeze&) = delete;
    TrainState& state;
  };

  template <class P>
  const P& policy() const {
    return std::get<P>(policies_);
  }
  [[nodiscard]] bool managed() const {
    if constexpr (elastic)
      return comm_.managed();
    else
      return false;
  }
  [[nodiscard]] bool concurrent() const {
    if constexpr (elastic)
      return comm_.concurrent();
    else
      return false;
  }
  [[nodiscard]] Time now() const {
    if constexpr (elastic)
      return comm_.now();
    else
      return SystemClock{}.now();
  }
  //! Times what runs until it is destroyed, for the recorder.
  class Timed {
   public:
    Timed(const Session& session, trace::EventKind kind) : session_{session}, kind_{kind} {
      if constexpr (traced) begin_ = session.now();
    }
    Timed(const Timed&) = delete;
    Timed& operator=(const Timed&) = delete;
    ~Timed() {
      if constexpr (traced) {
        try {
          session_.record(kind_, begin_, session_.now() - begin_, bytes);
        } catch (...) {  // an event less is no reason to end
        }
      }
    }
    ByteCount bytes{};

   private:
    const Session& session_;
    trace::EventKind kind_;
    Time begin_{};
  };
  void record(trace::EventKind kind, Time begin, Time duration, ByteCount bytes = {}) const {
    if constexpr (traced) {
      trace::Event e;
      e.time = begin;
      e.rank = Rank{comm_.rank()};
      e.generation = view_.generation;
      e.step = step_;
      e.kind = kind;
      e.duration = duration;
      e.bytes = bytes;
      policy<Traced>().recorder().record(std::move(e));
    }
  }
  void reached(std::string_view point, int index = 0) {
    if constexpr (elastic) comm_.reached(point, index);
  }

  typename detail::UpdaterOf<U, Undo, Device>::type make_updater() {
    for (const TrainState::Entry& e : state_.entries()) {
      if (e.memory == nullptr) continue;
      if constexpr (!has_device)
        throw StateError{"'" + e.name +
                         "' is in a device's memory: give the session mend::OnStream{stream}"};
      if (own_update && !e.copies.empty())
        throw StateError{"OwnUpdate rounds the copies of '" + e.name +
                         "' on its device itself: leave add_copy out"};
    }
    if constexpr (scales_loss) register_loss_scale();
    if constexpr (own_update) {
      return {};
    } else {
      int threads = 1;
      if constexpr (detail::count_of < HostThreads, Policies... >> 0)
        threads = policy<HostThreads>().count;
      if constexpr (has_device)
        return {state_, update_, threads, policy<Device>()};
      else
        return {state_, update_, threads};
    }
  }

  Checkpoints make_checkpoints() const {
    if constexpr (checkpointed) {
      std::optional<Checkpoints> made;
      (
          [&](const auto& policy) {
            if constexpr (requires { policy.checkpoints(); }) made.emplace(policy.checkpoints());
          }(std::get<Policies>(policies_)),
          ...);
      return *std::move(made);
    } else {
      return {};
    }
  }

  void register_loss_scale() {
    if constexpr (scales_loss) {
      const auto& scaling = policy<DynamicLossScale>();
      check_options(scaling);
      const TrainState::Entry* e = state_.find(scaling.scalar);
      if (e == nullptr || e->kind != TrainState::Kind::scalar || e->dtype != DType::f32 ||
          e->placement.per_rank)
        throw StateError{"DynamicLossScale needs a replicated float '" + scaling.scalar +
                         "': state.add_scalar(\"" + scaling.scalar + "\", a float of yours); " +
                         (e == nullptr ? "nothing of that name is registered"
                          : e->kind != TrainState::Kind::scalar ? "what has that name is no scalar"
                          : e->dtype != DType::f32 ? "it is " + std::string{name_of(e->dtype)}
                                                   : "it differs from rank to rank")};
      loss_scale_ = reinterpret_cast<float*>(e->value);
      state_.add_slot(scaling.scalar + ".good_steps", good_steps_);
    }
  }
  //! Gradients are so many times too large.
  [[nodiscard]] double loss_scale() const {
    if constexpr (scales_loss) {
      if (!(*loss_scale_ > 0 && std::isfinite(*loss_scale_)))
        throw StateError{"the loss scale '" + policy<DynamicLossScale>().scalar + "' is " +
                             shortest(*loss_scale_) + "; it must be finite and positive",
                         {.rank = Rank{comm_.rank()}, .step = step_}};
      return static_cast<double>(*loss_scale_);
    } else {
      return 1;
    }
  }

  //! For save and load: whose per-rank state it is.
  void note_place() {
    state_.rank = comm_.rank();
    state_.size = comm_.size();
  }

  void refuse_what_cannot_be_restored() const {
    if (state_.entries().empty())
      throw StateError{"the state is empty: add() tensors to it before the session is made"};
    if constexpr (clips) check_options(policy<ClipNorm>());
    for (const TrainState::Entry& e : state_.entries()) {
      if (!e.placement.per_rank) continue;
      if constexpr (replicas && detail::count_of_kind<kind::recovery, Policies...> == 1)
        if (e.placement.copies == 0)
          throw StateError{
              "ReplicaRecovery cannot restore '" + e.name +
              "': it lives on one rank only. Give it PerRank{.copies = 1}, or add a checkpointer"};
      if (e.placement.copies > 0 && !e.before_image)
        throw StateError{"'" + e.name +
                         "' has partner copies, which are taken before the update, and no "
                         "before-image, because the update changes it; use PerRank{.copies = 0}"};
    }
  }

  // ---- the life of a step -----------------------------------------------------------------------

  void begin(Step last) {
    if (last < Step{0})
      throw OptionError{"the last step is " + std::to_string(last.value()) +
                        " and cannot be negative"};
    if (in_step_function_)
      throw StateError{"train() and next() do not belong into a step function"};
    (void)loss_scale();  // throws for one that is no number
    if (!begun_) {       // a load may have come between the constructor and now
      step_ = Step{state_.step};
      applied_ = state_.applied;
      refresh_copies();
    }
    if (finished_ && !managed() && step_ < last) finished_ = false;
    if (!managed()) {
      if constexpr (checkpointed)
        if (!begun_) open_checkpoints(true);
      if constexpr (own_reduction)
        if (!begun_) policy<OwnReduction>().rebuild(comm_.rank(), comm_.size());
      begun_ = true;
      return;
    }
    if constexpr (elastic) {
      if (!begun_) {
        comm_.claim();
        has_state_ = !comm_.membership().replacement && !checkpointed;  // the store's may be newer
        recover();
        begun_ = true;
      } else if (finished_ && step_ < last && !stopping_) {
        comm_.tell(Kind::again, step_);
        finished_ = false;
      }
    }
  }

  //! The step to compute: a new one, or the one that was cut short.
  std::optional<Step> open(Step last) {
    last_ = last;
    if (!pending_) {
      if (trains_ > 0 && trains_ <= trains_passed_)
        return {};  // what came after it is already under way
      if (step_ > last && touched_) return {};
      if (step_ >= last || stopping_) {
        finish();
        if (step_ >= last || stopping_) return {};
      }
      state_.check();
      wait_for_device();  // for what the trainer did after the last commit
      if constexpr (checkpointed)
        checkpoints_.begin_if_due(state_, comm_.rank(), comm_.size(), simulated());
      image_.take();
      repeated_ = false;
      pending_ = true;
    } else if (!managed()) {  // an exception ended it early, and the trainer goes on
      if (updating_)
        throw StateError{"an exception left step " + std::to_string(step_.value()) +
                         " half updated; load a saved state and begin a new session"};
      state_.check();
      take_back();
    }
    std::fill(reduced_.begin(), reduced_.end(), false);
    std::fill(updated_.begin(), updated_.end(), false);
    std::fill(ready_.begin(), ready_.end(), 0);
    std::fill(released_.begin(), released_.end(), false);
    coefficients_fixed_ = decided_ = interrupted_ = updating_ = own_updated_ = false;
    early_failure_ = nullptr;
    scale_ = 1;
    skip_ = false;
    norm_ = 0;
    step_size_ = comm_.size();
    if constexpr (elastic) comm_.at(step_);
    if constexpr (MEND_DEBUG) poison_gradients();
    reached("lambda");
    watch_membership();
    return step_;
  }

  template <class F>
  double call(F& step_fn, Step step) {
    Timed timed{*this, trace::EventKind::step};
    if constexpr (std::is_void_v<std::invoke_result_t<F&, Step>>) {
      guarded([&] { step_fn(step); });
      return 0;
    } else {
      double loss = 0;
      guarded([&] { loss = static_cast<double>(step_fn(step)); });
      return loss;
    }
  }
  //! What the lambda throws may be the first sign of a lost member: from a collective of the user's
  //! own, or, with OwnReduction, from the trainer's reduction. settle() then recovers and the step
  //! is repeated; a reduction that keeps failing reaches the caller.
  template <class F>
  void guarded(F&& f) {
    constexpr int tries = 3;
    struct Inside {
      explicit Inside(bool& flag) : in{flag} { in = true; }
      ~Inside() { in = false; }
      bool& in;
    };
    try {
      Inside inside{in_step_function_};
      f();
      own_failures_ = 0;
    } catch (const comm::Interrupted&) {
      put_off();
    } catch (const comm::PeerLost&) {
      put_off();
    } catch (const std::exception&) {
      if (!own_reduction || !managed() || ++own_failures_ > tries) throw;
      interrupted_ = true;
    }
  }
  void put_off() {
    if (!managed()) throw;
    early_failure_ = std::current_exception();
    interrupted_ = true;
  }

  [[nodiscard]] bool checking_purity() const {
    if constexpr (detail::count_of < PurityCheck, Policies... >> 0)
      return purity_checked_ < policy<PurityCheck>().steps;
    else
      return false;
  }
  template <class F>
  void purity(F& step_fn, Step step) {
    if constexpr (detail::count_of < PurityCheck, Policies... >> 0) {
      if (!checking_purity() || interrupted_) return;
      std::vector<Hash128> first = impressions();
      std::fill(ready_.begin(), ready_.end(), 0);
      std::fill(released_.begin(), released_.end(), false);
      image_.restore();
      call(step_fn, step);
      std::vector<Hash128> second = impressions();
      for (std::size_t i = 0; i < first.size(); ++i)
        if (first[i] != second[i])
          throw StateError{
              "the step function is impure: '" + state_.entries()[i].name +
                  "' differs between two calls for one step; register what it depends on "
                  "(add_buffer, add_scalar, add_generator, add_state)",
              {.rank = Rank{comm_.rank()}, .step = step}};
      ++purity_checked_;
    }
  }
  std::vector<Hash128> impressions() const {
    std::vector<Hash128> all;
    Bytes room;
    wait_for_device();
    for (const TrainState::Entry& e : state_.entries()) {
      if (e.gradient != nullptr)
        all.push_back(hash_bytes(e.view(e.gradient, e.gradient_bytes(), room)));
      else if (e.kind == TrainState::Kind::state)
        all.push_back(hash_bytes(e.save()));
      else
        all.push_back(hash_bytes(e.view(room)));
    }
    return all;
  }

  //! The lambda has returned: reduces, updates and commits the step, or recovers and leaves it
  //! pending.
  void settle(double loss) {
    if (!managed()) {
      complete(loss);
      return;
    }
    try {
      complete(loss);
    } catch (const comm::Interrupted&) {
      recover();
    } catch (const comm::PeerLost& e) {
      report_broken(e);
      recover();
    }
  }

  void complete(double loss) {
    stop_watching();
    helper_.wait();
    state_.check();  // before anything writes: the step may be repeated
    wait_for_device();
    if (early_failure_) std::rethrow_exception(std::exchange(early_failure_, nullptr));
    if constexpr (elastic) {
      if (interrupted_) {
        comm_.tell(Kind::broken_link, step_, {}, static_cast<std::uint32_t>(-1));
        throw comm::Interrupted{"the trainer's own reduction failed"};
      }
    }
    reached("reduce");
    if constexpr (elastic) post_copies(step_.next());
    write_closing_record(loss);
    reduce_rest();
    reached("reduced");
    begin_done();
    update_rest();
    reached("updated");
    finish_done();
    commit();
  }

  void reduce_rest() {
    Timed timed{*this, trace::EventKind::reduce};
    std::vector<comm::Buffer> buffers;
    std::vector<std::size_t> which;
    if constexpr (own_reduction) {
      for (std::size_t b = 0; b < plan_.size(); ++b) plan_.pack(b);  // for those who miss it
      std::fill(reduced_.begin(), reduced_.end() - 1, true);
    } else {
      for (std::size_t b = 0; b < plan_.size(); ++b) {
        if (reduced_[b]) continue;
        plan_.pack(b);
        buffers.push_back(plan_.buffer(b));
        which.push_back(b);
      }
    }
    comm::Buffer closing{reinterpret_cast<std::byte*>(closing_.data()), closing_.size(), DType::u64,
                         comm::Reduction::sum, static_cast<std::uint32_t>(plan_.size())};
    if constexpr (elastic) {
      if (partners() > 0) {  // gradients first: whoever waits for a copy must not hold up others
        all_reduce(buffers, [&](std::size_t i) { bucket_reduced(which[i]); });
        buffers.clear();
        which.clear();
        take_copies(step_.next());
      }
    }
    reached("closing");
    buffers.push_back(closing);
    which.push_back(plan_.size());
    all_reduce(buffers, [&](std::size_t i) { bucket_reduced(which[i]); });
  }
  template <class Done>
  void all_reduce(std::span<const comm::Buffer> buffers, Done&& done) {
    if constexpr (elastic) {
      comm_.all_reduce(buffers, done);
    } else {
      for (std::size_t i = 0; i < buffers.size(); ++i) {
        if constexpr (comm::CanAllReduce<Comm>) comm_.all_reduce(buffers[i]);
        done(i);
      }
    }
  }
  void reduce_early(std::size_t b) {
    if (interrupted_) return;
    try {
      wait_for_device();
      plan_.pack(b);
      comm::Buffer buffer = plan_.buffer(b);
      all_reduce({&buffer, 1}, [&](std::size_t) { bucket_reduced(b); });
    } catch (...) {  // the lambda goes on to its end; settle() finds it
      early_failure_ = std::current_exception();
      interrupted_ = true;
    }
  }
  void bucket_reduced(std::size_t b) {
    reduced_[b] = true;
    if (b < plan_.size()) {
      plan_.unpack(b);
      if constexpr (overlapped) update(b);
    }
    reached("bucket", static_cast<int>(b));
  }
  [[nodiscard]] bool all_reduced() const {
    return pending_ && std::ranges::all_of(reduced_, [](char r) { return r != 0; });
  }

  //! Carries what every rank must know to commit: in rank order loss and wish to stop.
  void write_closing_record(double loss) {
    auto n = static_cast<std::size_t>(comm_.size()), r = static_cast<std::size_t>(comm_.rank());
    closing_.assign(closing_words * n, 0);
    std::uint64_t* mine = &closing_[closing_words * r];
    mine[0] = std::bit_cast<std::uint64_t>(loss);
    mine[1] = stop_requested_;
    if constexpr (checkpointed) std::ranges::copy(checkpoints_.record(), mine + 2);
    transfer_.closing = std::as_bytes(std::span{closing_});
  }

  // Done: sent before the update, awaited after it, so that the round trip hides behind the work.
  void begin_done() {
    if constexpr (overlapped) wait_for_device();  // for the updates that it sees
    if constexpr (elastic) {
      const Vote vote{slice_hash(), last_.value()};
      comm_.gather_begin(std::as_bytes(std::span{&vote, 1}));
    }
    reached("done");
  }
  void finish_done() {
    if constexpr (elastic) {
      std::vector<Payload> votes = comm_.gather_finish();
      for (std::size_t r = 1; r < votes.size(); ++r) compare(votes[0], votes[r], r);
    } else {
      if (!comm_.agree(true)) throw CommError{"another rank refused the step", {.step = step_}};
    }
  }
  struct Vote {
    Hash128 slice;
    std::int64_t last;
  };
  void compare(const Payload& first, const Payload& other, std::size_t rank) {
    Vote a{}, b{};
    if (first.size() == sizeof a) std::memcpy(&a, first.data(), sizeof a);
    if (other.size() == sizeof b) std::memcpy(&b, other.data(), sizeof b);
    if (a.last != b.last)
      refuse("rank " + std::to_string(rank) + " is to train until step " + std::to_string(b.last) +
             " and rank 0 until step " + std::to_string(a.last) +
             "; give train() or next() the same last step on all ranks");
    if (first.size() != sizeof a || other.size() != sizeof b || a.slice != b.slice)
      refuse("replicas diverged silently: rank " + std::to_string(rank) +
             " holds other bits than rank 0 at step " + std::to_string(step_.value()) +
             "; options that differ from rank to rank, a step function that writes parameters, a "
             "race or memory is to blame");
  }
  //! For the constructor, whose function-try-block nvcc would crash on: errors of f are told.
  decltype(auto) telling(auto f) {
    try {
      return f();
    } catch (const StateError& e) {
      tell_refused(comm_, e.what());
      throw;
    } catch (const OptionError& e) {
      tell_refused(comm_, e.what());
      throw;
    }
  }
  //! What cannot work here works nowhere: the run ends and says so, where a replacement would only
  //! fail again. The error goes on to the caller.
  static void tell_refused(Comm& comm, const std::string& text) noexcept {
    if constexpr (elastic) {
      try {
        if (comm.managed()) comm.tell(Kind::refused, Step{}, std::as_bytes(std::span{text}));
      } catch (...) {  // the launcher is gone too
      }
    }
  }
  [[noreturn]] void refuse(const std::string& text) {
    if constexpr (elastic) comm_.tell(Kind::refused, step_, std::as_bytes(std::span{text}));
    throw RunStopped{text, {.rank = Rank{comm_.rank()}}};
  }

  //! A slice of parameters and slots that moves on with every step: silent divergence surfaces
  //! within at most `slices` steps at no visible cost, in a small state at once.
  [[nodiscard]] Hash128 slice_hash() const {
    constexpr std::uint64_t slices = 1024;
    std::uint64_t total = 0;
    for (const TrainState::Entry& e : state_.entries())
      if (sliced(e)) total += e.bytes();
    std::uint64_t length = std::max<std::uint64_t>((total / slices + 8) & ~std::uint64_t{7}, 4096);
    std::uint64_t from = static_cast<std::uint64_t>(step_.value()) % (total / length + 1) * length;
    StateHash hash;
    Bytes room;
    std::uint64_t at = 0;
    for (const TrainState::Entry& e : state_.entries()) {
      if (!sliced(e)) continue;
      std::uint64_t first = std::max(from, at) - at, end = std::min(from + length, at + e.bytes());
      if (at + first < end) hash.add(hash_bytes(e.view(e.value + first, end - at - first, room)));
      at += e.bytes();
    }
    return hash.value();
  }
  static bool sliced(const TrainState::Entry& e) {
    return (e.kind == TrainState::Kind::tensor || e.kind == TrainState::Kind::slot) &&
           e.tied_to.empty();
  }

  //! Norm and finiteness, from reduced gradients alone, so that every rank decides alike.
  void decide() {
    if (decided_) return;
    decided_ = true;
    kernel::StandardRounding rounding;  // whatever the trainer has set
    if constexpr (clips) {
      double squares = 0;
      for (std::size_t b = 0; b < plan_.size(); ++b)
        plan_.each_gradient(b, [&](const TrainState::Entry& e, const std::byte* g) {
          squares += kernel::sum_of_squares(e.gradient_dtype, g, e.count);
        });
      norm_ = std::sqrt(squares) / loss_scale();
      skip_ = !std::isfinite(norm_);
      if (!skip_) scale_ = static_cast<double>(policy<ClipNorm>().clip_factor(norm_));
    } else if constexpr (skips) {
      for (std::size_t b = 0; b < plan_.size(); ++b)
        plan_.each_gradient(b, [&](const TrainState::Entry& e, const std::byte* g) {
          skip_ = skip_ || !kernel::all_finite(e.gradient_dtype, g, e.count);
        });
    }
    scale_ /= loss_scale();
  }
  //! A snapshot that is under way must have what the update changes.
  void before_update() {
    if constexpr (checkpointed) checkpoints_.before_update();
  }
  void update(std::size_t b) {
    before_update();
    if constexpr (!own_update) {
      if (!coefficients_fixed_) updater_.begin(Step{applied_});
      coefficients_fixed_ = true;
      updated_[b] = true;  // also if it throws: what was done is taken back
      state_.half_updated = overlapped;
      updater_.apply(plan_[b], scale_);
    }
    reached("update", static_cast<int>(b));
  }
  //! Also the roll-forward: whatever is not updated yet.
  void update_rest() {
    Timed timed{*this, trace::EventKind::update};
    decide();
    if (skip_) return;
    updating_ = !overlapped;
    if constexpr (own_update) {
      if (std::exchange(own_updated_, true)) return;
      before_update();
      update_(step_);
      refresh_copies();
    } else {
      for (std::size_t b = 0; b < plan_.size(); ++b)
        if (!updated_[b]) update(b);
      wait_for_device();  // its errors come before the commit
    }
  }

  //! What the committed step was like, and the loss scale after it.
  Committed conclude() {
    kernel::StandardRounding rounding;  // whatever the trainer has set
    Committed done;
    done.step = step_;
    double loss = 0;
    const std::size_t ranks = closing_.size() / closing_words;
    for (std::size_t r = 0; r < ranks; ++r) {
      loss += std::bit_cast<double>(closing_[closing_words * r]);
      stopping_ = stopping_ || closing_[closing_words * r + 1] != 0;
    }
    done.loss = static_cast<float>(loss / static_cast<double>(ranks));
    done.gradient_norm = static_cast<float>(norm_);
    if constexpr (!own_update)
      done.learning_rate = static_cast<float>(updater_.learning_rate(Step{applied_}));
    done.repeated = repeated_;
    done.skipped = skip_;
    if constexpr (scales_loss)
      *loss_scale_ = policy<DynamicLossScale>().next(*loss_scale_, skip_, good_steps_);
    return done;
  }
  void commit() {
    reached("commit");
    const Committed done = conclude();
    record(trace::EventKind::commit, now(), {});
    state_.half_updated = false;
    if (!skip_) ++applied_;
    step_ = step_.next();
    state_.step = step_.value();
    state_.applied = applied_;
    updater_.drop();
    copies_.committed(step_.value());
    pending_ = false;
    committed_ = done;
    tell_progress();
    if constexpr (elastic)
      comm_.check_lease();  // who was given up must not act as if it had committed
    if constexpr (checkpointed) {
      std::vector<typename Checkpoints::Record> records(closing_.size() / closing_words);
      for (std::size_t r = 0; r < records.size(); ++r)
        std::copy_n(&closing_[closing_words * r + 2], records[r].size(), records[r].begin());
      checkpoints_.committed(records, comm_.rank(), simulated());
    }
    if (after_) after_(done);
    reached("committed");
  }

  //! A sign that work goes on, a few times a second.
  void tell_progress() {
    if constexpr (elastic) {
      if (!managed() || comm_.now() - told_ < std::chrono::milliseconds{200}) return;
      told_ = comm_.now();
      comm_.tell(Kind::progress, step_);
    }
  }

  //! All steps are done: nobody leaves before everybody is.
  void finish() {
    if (finished_) return;
    if (!managed()) {
      flush_checkpoints();
      finished_ = true;
      return;
    }
    if constexpr (elastic) {
      for (bool told = false;;) {
        try {
          if (!told) {
            flush_checkpoints();
            comm_.tell(Kind::finished, step_);
          }
          told = true;
          reached("finished");
          Frame f = wait_frame();
          if (f.from != Frame::coordinator) {
            comm_.keep(std::move(f));
          } else if (comm_.is(f, Kind::bye)) {
            finished_ = true;
            trains_finished_ = std::max(trains_finished_, trains_);
            return;
          } else {
            interrupt(std::move(f));
          }
        } catch (const comm::Interrupted&) {
          recover();
          told = false;
        }
      }
    }
  }

  // ---- checkpoints ------------------------------------------------------------------------------

  //! Threads beside the trainer's would make the order of a simulation depend on chance.
  [[nodiscard]] bool simulated() const { return managed() && !concurrent(); }

  //! In every new generation: rank 0 publishes, and tells all what there is; restore: all go on
  //! from it.
  void open_checkpoints([[maybe_unused]] bool restore) {
    if constexpr (checkpointed) {
      comm_.at(restore ? Step{} : step_);
      Bytes told;
      if (comm_.rank() == 0) {
        try {
          told = checkpoints_.open(state_, comm_.size());
        } catch (const Error& e) {
          if (restore) {
            tell_refused(comm_, e.what());
            throw;
          }
          told = checkpoints_.nothing(e.what());
        }
      }
      const std::vector<Payload> all = comm_.gather(told);
      checkpoints_.take_over(all.at(0).view());
      if (!restore) return;
      reached("restoring");
      try {
        if (!checkpoints_.restore(state_, comm_.rank(), comm_.size())) {
          if (touched_)
            throw CommError{
                "this worker's state is not whole any more and there is no checkpoint to begin "
                "from; it ends and another one takes its place",
                {.rank = Rank{comm_.rank()}}};
          return;
        }
      } catch (const StateError& e) {
        tell_refused(comm_, e.what());
        throw;
      } catch (const FileError& e) {
        tell_refused(comm_, e.what());
        throw;
      }
      step_ = Step{state_.step};
      applied_ = state_.applied;
      touched_ = false;
      comm_.at(step_);
      copies_.taken_back(-1);
      refresh_copies();
      reached("restored");
    }
  }
  //! The state after the last step, too, before anybody leaves.
  void flush_checkpoints() {
    if constexpr (checkpointed) {
      comm_.at(step_);
      checkpoints_.flush(state_, comm_.rank(), comm_.size(),
                         [this](const typename Checkpoints::Record& record) {
                           std::vector<typename Checkpoints::Record> all;
                           for (const Payload& p : comm_.gather(std::as_bytes(std::span{record}))) {
                             if (p.size() != sizeof record)
                               throw CommError{"a record of a checkpoint has another size"};
                             std::memcpy(&all.emplace_back(), p.data(), sizeof record);
                           }
                           return all;
                         });
      reached("flushed");
    }
  }
  //! What this rank holds does not count any more: the group goes back to a checkpoint.
  void give_up_state() {
    helper_.wait();
    before_update();
    updater_.drop();
    pending_ = returned_ = has_state_ = false;
    touched_ = true;
    state_.half_updated = false;
  }

  // ---- recovery ---------------------------------------------------------------------------------

  //! One generation after the other, until one says Go.
  void recover() {
    if constexpr (elastic) {
      Timed timed{*this, trace::EventKind::recovery};
      for (;;) {
        try {
          join_generation();
          return;
        } catch (const comm::Interrupted&) {
        } catch (const comm::PeerLost& e) {
          report_broken(e);
        }
      }
    }
  }
  void report_broken(const comm::PeerLost& e) {
    if constexpr (elastic) {
      const bool in_step = pending_;
      comm_.tell(Kind::broken_link, step_, std::as_bytes(std::span{&in_step, 1}),
                 static_cast<std::uint32_t>(e.rank() ? int{*e.rank()} : -1));
    }
  }

  void join_generation() {
    view_ = comm_.await_view();
    if (checkpointed && has_state_ && begun_ && !replicas) give_up_state();
    if (has_state_ && begun_ && !replicas) {
      std::string text =
          "a member was lost and this session has no recovery policy; add mend::ReplicaRecovery";
      comm_.tell(Kind::refused, step_, std::as_bytes(std::span{text}));
      throw RunStopped{text, {.rank = Rank{comm_.rank()}, .step = step_}};
    }
    transfer_.forget_requests();
    whole_ = false;
    copies_in_.assign(view_.peers.size(), {-1, {}});
    comm_.enter(view_);
    note_place();
    comm_.at(step_);
    reached("view");
    comm::Report report;
    report.has_state = has_state_;
    report.all_reduced = all_reduced();
    report.copies = copies_.list();
    report.copies_wanted = copies_.wanted();
    report.restores = checkpointed;
    report.alone = checkpointed && has_state_without_copies();
    if (!schema_told_) report.schema = schema();
    comm_.tell(Kind::report, step_, comm::encode(report));
    reached("report");

    Frame plan_frame = wait_control(Kind::plan);
    schema_told_ = true;
    comm::Plan plan = comm::decode_plan(plan_frame.payload.view());
    Step target{plan_frame.header.step};
    reached("plan");
    if (plan.restore && checkpointed && has_state_) give_up_state();
    if (plan.restore && touched_ && !checkpointed)
      throw CommError{
          "this worker received half of a state whose holders died, and has no checkpoint to "
          "begin from; it ends and another one takes its place",
          {.rank = Rank{comm_.rank()}}};
    if (!has_state_ && !plan.restore) {
      wait_control(Kind::feed);
      reached("feed");
      fetch_all(plan, target);
      has_state_ = true;  // verified: whatever comes before Go, it is whole
      hash_state();
    } else {
      if (has_state_ && !plan.restore) become(target, plan);
      if constexpr (!Undo::exact)
        if (!plan.restore) take_over(plan, target);
      if (plan.restore) open_checkpoints(true);
      hash_state();
      announce();
      wait_control(Kind::feed);
    }
    post_copies(step_);  // to the new partners, before Go: a rank has a copy whenever it may die
    while (missing_copy(step_) >= 0) serve(wait_frame());
    reached("copies");
    announce();
    wait_control(Kind::go);
    has_state_ = true;
    whole_ = false;
    transfer_.done();
    reached("go");
    comm_.at(step_);
    if (!plan.restore) open_checkpoints(false);
    if constexpr (own_reduction) policy<OwnReduction>().rebuild(comm_.rank(), comm_.size());
    std::vector<Incarnation> members;
    for (const Peer& p : view_.peers) members.push_back(p.heir_of);
    copies_.keep_only(members);
  }

  [[nodiscard]] bool has_state_without_copies() const {
    return std::ranges::any_of(state_.entries(), [](const TrainState::Entry& e) {
      return e.placement.per_rank && e.placement.copies == 0;
    });
  }

  //! Back to the start of the step.
  void take_back() {
    if constexpr (overlapped) {
      for (std::size_t b = 0; b < plan_.size(); ++b)
        if (std::exchange(updated_[b], false)) updater_.revert(plan_[b]);
      updater_.drop();
      wait_for_device();
      state_.half_updated = false;
    }
    reached("undo");
    image_.restore();
    copies_.taken_back(step_.value());
    repeated_ = true;
  }
  //! A survivor: back to the start of the step, or on to its end.
  void become(Step target, const comm::Plan& plan) {
    if (target == step_) {
      if (!pending_) return;
      take_back();
      return;
    }
    if (!pending_ || target != step_.next())
      throw CommError{"the plan asks for step " + std::to_string(target.value()) +
                          " of a member at step " + std::to_string(step_.value()),
                      {.rank = Rank{comm_.rank()}}};
    fetch_missing_buckets(target, plan);
    reached("roll_forward");
    update_rest();
    serve_buckets(plan);
    commit();
    comm_.at(step_);
  }

  //! After an inexact undo: all survivors go on from the state of one. Who has half of it when that
  //! one dies has none.
  void take_over(const comm::Plan& plan, Step target) {
    const int source = plan.sources.front();
    const bool in_a_run = begun_ || touched_;  // or fed in one whose Go never came
    if (!in_a_run || !plan.bucket_holders.empty() || comm_.rank() == source) return;
    before_update();
    has_state_ = false;
    const bool touched = std::exchange(touched_, true);
    transfer_.fetch_state(comm_, target.value(), {source},
                          [this](Frame f) { serve(std::move(f)); });
    has_state_ = true;
    touched_ = touched;
    refresh_copies();
    reached("taken_over");
  }

  void fetch_missing_buckets(Step target, const comm::Plan& plan) {
    std::vector<StateTransfer::Piece> pieces;
    std::vector<std::size_t> missing;
    if (!reduced_[plan_.size()]) {
      closing_.assign(closing_words * static_cast<std::size_t>(step_size_), 0);
      transfer_.closing = std::as_bytes(std::span{closing_});
    }
    for (std::size_t b = 0; b <= plan_.size(); ++b) {
      if (reduced_[b]) continue;
      missing.push_back(b);
      bool closing = b == plan_.size();
      pieces.push_back({StateTransfer::What::bucket, static_cast<std::uint32_t>(b),
                        closing ? reinterpret_cast<std::byte*>(closing_.data()) : plan_[b].data,
                        closing ? closing_.size() * sizeof(std::uint64_t) : plan_[b].bytes(),
                        plan.bucket_holders});
    }
    if (missing.empty()) return;
    reached("fetch");
    std::vector<bool> have;
    transfer_.fetch(comm_, target.value(), pieces, have, [this](Frame f) { serve(std::move(f)); });
    for (std::size_t b : missing) bucket_reduced(b);
    for (int holder : plan.bucket_holders) {
      Header h = comm_.header(Kind::request);
      h.step = target.value();
      h.flags = static_cast<std::uint16_t>(StateTransfer::What::thanks);
      comm_.post_copy(holder, h, {});
    }
  }
  //! A holder of reduced buckets stays until all who miss some have them: commit calls `after`,
  //! which may write gradients.
  void serve_buckets(const comm::Plan& plan) {
    if (std::ranges::find(plan.bucket_holders, comm_.rank()) == plan.bucket_holders.end()) return;
    transfer_.serve_buckets(comm_);
    while (transfer_.thanked() < plan.bucket_fetchers) serve(wait_frame());
  }

  //! A replacement: everything, from whole members; its per-rank state from its partner.
  void fetch_all(const comm::Plan& plan, Step target) {
    auto other = [this](Frame f) { serve(std::move(f)); };
    Timed timed{*this, trace::EventKind::transfer};
    touched_ = true;
    transfer_.on_chunk = [this] { tell_progress(); };
    Bytes meta = transfer_.fetch_state(comm_, target.value(), plan.sources, other);
    for (const auto& [rank, holders] : plan.copy_holders) {
      if (rank != comm_.rank()) continue;
      Incarnation heir_of = view_.peers[static_cast<std::size_t>(rank)].heir_of;
      auto table = transfer_.fetch_table(comm_, holders.front(), heir_of, target.value(), other);
      if (!table.copy) throw CommError{"a partner does not hold the copy that it reported"};
      Bytes copy(table.copy->first);
      std::vector<bool> have;
      transfer_.fetch(comm_, target.value(),
                      {{StateTransfer::What::copy, 0, copy.data(), copy.size(), holders, heir_of}},
                      have, other);
      if (hash_bytes(copy) != table.copy->second)
        throw CommError{"a partner's copy does not have the hash that it states"};
      copies_.decode(copy);
    }
    ByteReader r{meta};
    step_ = Step{r.get<std::int64_t>()};
    applied_ = r.get<std::int64_t>();
    stopping_ = r.get<bool>();
    trains_passed_ = r.get<std::int64_t>();  // the others have left these behind
    trains_finished_ = trains_passed_;
    state_.step = step_.value();
    state_.applied = applied_;
    pending_ = false;
    refresh_copies();
    timed.bytes = ByteCount{transfer_.received()};
    reached("restored");
  }

  void hash_state() {
    ByteWriter meta;
    meta.put(step_.value()).put(applied_).put(stopping_).put(trains_finished_).put(view_.lineage);
    hashes_ = transfer_.hash(std::move(meta).take());
    whole_ = true;  // from now on it serves
    transfer_.serve_waiting(comm_);
  }
  //! Ready: this member is whole.
  void announce() {
    comm_.tell(Kind::ready, step_, std::as_bytes(std::span{hashes_}));
    reached("ready");
  }

  Frame wait_frame() {
    Time long_enough = 4 * comm_.membership().timeout;  // slower members may end their lambda first
    std::optional<Frame> f = comm_.next_frame(mend::after(comm_.now(), long_enough));
    if (!f)
      throw CommError{"the launcher said nothing in time",
                      {.rank = Rank{comm_.rank()}, .step = step_}};
    return *std::move(f);
  }
  //! Serves peers until the coordinator says `kind` of this generation.
  Frame wait_control(Kind kind) {
    for (;;) {
      Frame f = wait_frame();
      if (f.from != Frame::coordinator) {
        serve(std::move(f));
      } else if (comm_.is(f, kind) && f.header.generation == view_.generation.value()) {
        return f;
      } else {
        interrupt(std::move(f));
      }
    }
  }
  //! A View or Stop ends what is under way; anything else from the coordinator is out of date.
  void interrupt(Frame f) {
    if (!comm_.is(f, Kind::view) && !comm_.is(f, Kind::stop)) return;
    comm_.push_control(std::move(f));
    throw comm::Interrupted{"the membership changed"};
  }
  void serve(Frame f) {
    if (f.from == Frame::coordinator) return interrupt(std::move(f));
    if (f.header.kind == Header::broken)
      throw comm::PeerLost{"the connection with a peer broke", {.rank = Rank{f.from}}};
    if (comm_.is(f, Kind::copy)) return take_copy(f);
    if (comm_.is(f, Kind::request)) return transfer_.take_request(comm_, std::move(f), whole_);
    if (comm_.is(f, Kind::chunk)) return;  // of a fetch that was interrupted
    comm_.keep(std::move(f));
  }

  //! Partners' per-rank state of `version`. In a step: before the closing bucket, so that a step
  //! which is reduced anywhere has all its copies.
  void take_copies(Step version) {
    for (int from = -1; (from = missing_copy(version)) >= 0;)
      take_copy(comm_.expect(
          [&](const Frame& f) { return comm_.is(f, Kind::copy) && f.from == from; }, from));
    comm_.drain();
    reached("copies");
  }
  [[nodiscard]] int partners() const { return std::min(copies_.wanted(), comm_.size() - 1); }
  //! This rank's to its partners.
  void post_copies(Step version) {
    if (partners() == 0) return;
    constexpr std::size_t piece = std::size_t{1} << 20;
    Bytes mine = copies_.encode();
    for (int k = 1; k <= partners(); ++k) {
      Header h = comm_.header(Kind::copy);
      h.step = version.value();
      h.offset = mine.size();
      for (std::size_t at = 0; at < mine.size() || at == 0; at += piece, ++h.part)
        comm_.post_copy((comm_.rank() + k) % comm_.size(), h,
                        ByteView{mine}.subspan(at, std::min(piece, mine.size() - at)));
    }
  }
  //! A rank whose copy of `version` has not come in this generation; -1: all have.
  [[nodiscard]] int missing_copy(Step version) const {
    for (int k = 1; k <= partners(); ++k) {
      int from = (comm_.rank() + comm_.size() - k) % comm_.size();
      if (copies_in_[static_cast<std::size_t>(from)].first != version.value()) return from;
    }
    return -1;
  }
  void take_copy(const Frame& f) {
    auto from = static_cast<std::size_t>(f.from);
    ByteView part = f.payload.view();
    auto& [version, bytes] = copies_in_[from];
    bytes.insert(bytes.end(), part.begin(), part.end());
    if (bytes.size() < f.header.offset) return;
    version = f.header.step;
    copies_.hold(view_.peers[from].heir_of, version, std::exchange(bytes, {}));
  }

  //! One line per entry: what all ranks must have registered alike.
  [[nodiscard]] std::string schema() const {
    std::string text;
    for (const TrainState::Entry& e : state_.entries()) {
      static constexpr std::string_view kinds[] = {"tensor", "buffer", "scalar", "state", "slot"};
      text += std::string{kinds[static_cast<std::size_t>(e.kind)]} + " '" + e.name + "' " +
              std::string{name_of(e.dtype)} + " " + to_text(e.shape);
      if (e.gradient != nullptr) text += " gradient " + std::string{name_of(e.gradient_dtype)};
      if (e.placement.per_rank)
        text += " per rank, " + std::to_string(e.placement.copies) + " copies";
      if (!e.tied_to.empty()) text += " tied to '" + e.tied_to + "'";
      text += " group " + e.group + "\n";
    }
    return text;
  }

  // ---- around the lambda ------------------------------------------------------------------------

  //! With OwnReduction somebody must notice a lost member while the lambda blocks in it.
  void watch_membership() {
    if constexpr (own_reduction && elastic) {
      if (!concurrent()) return;
      watching_ = true;
      helper_.run([this] {
        try {
          while (watching_)
            if (comm_.watch(mend::after(comm_.now(), std::chrono::milliseconds{200})))
              return policy<OwnReduction>().abort();
        } catch (...) {
          early_failure_ = std::current_exception();
        }
      });
    }
  }
  void stop_watching() {
    if constexpr (own_reduction && elastic) {
      if (!watching_.exchange(false)) return;
      comm_.link().wake();
      helper_.wait();
    }
  }

  void refresh_copies() {
    if constexpr (own_update) {
      for (const TrainState::Entry& e : state_.entries())
        for (const TrainState::Copy& c : e.copies)
          kernel::from_float(c.dtype, reinterpret_cast<const float*>(e.value), c.data, e.count);
    } else {
      for (std::size_t b = 0; b < plan_.size(); ++b) updater_.refresh(plan_[b]);
    }
    wait_for_device();
  }
  void poison_gradients() {
    Bytes poison;
    for (const TrainState::Entry& e : state_.entries()) {
      if (e.gradient == nullptr) continue;
      poison.assign(e.gradient_bytes(), std::byte{0xff});  // a NaN in every format
      e.write(poison.data(), e.gradient, poison.size());
    }
  }
  //! What the trainer and mend have put on the stream is done. Throws the device's errors.
  void wait_for_device() const {
    if constexpr (has_device) policy<Device>().wait();
  }

  //! Early updates of a step that was left are taken back: who catches the exception, or breaks the
  //! loop, finds the last commit.
  void abandon() noexcept {
    if constexpr (overlapped) {
      if (!pending_ || managed()) return;
      try {
        helper_.wait();
        state_.check();  // what was moved or resized cannot be written to
        take_back();
      } catch (...) {  // nor a device that is lost: there is nothing left to save
      }
    }
  }
  //! Tells the group that this worker goes, so that it does not wait for the connection to break.
  void leave(std::string_view why) noexcept {
    if (!managed() || std::exchange(left_, true)) return;  // alone, it may go on
    try {
      if constexpr (elastic) comm_.cancel();
      watching_ = false;
      helper_.wait();
      if constexpr (elastic)
        if (begun_ && !finished_) comm_.tell(Kind::failed, step_, std::as_bytes(std::span{why}));
    } catch (...) {  // it goes anyway
    }
  }

  TrainState& state_;
  U update_;
  Comm& comm_;
  std::tuple<Policies...> policies_;
  Freeze frozen_;
  float* loss_scale_ = nullptr;  // the trainer's
  std::int64_t good_steps_ = 0;  // updates since it changed
  typename detail::UpdaterOf<U, Undo, Device>::type updater_;
  BucketPlan plan_;
  BeforeImage image_;
  PartnerCopies copies_;
  StateTransfer transfer_;
  Checkpoints checkpoints_;

  Step step_, last_{};
  std::int64_t applied_;
  comm::View view_{};
  std::vector<char> reduced_, updated_;  // per bucket; reduced_ has the closing one too
  std::vector<std::size_t> ready_;       // tensors released, per bucket
  std::vector<bool> released_;           // per entry
  std::vector<std::uint64_t> closing_;
  std::vector<std::pair<std::int64_t, Bytes>>
      copies_in_;  // per rank: the last whole version, and parts
  std::vector<Hash128> hashes_;
  std::int64_t trains_ = 0, trains_finished_ = 0, trains_passed_ = 0;  // calls of train()
  Time told_{};
  std::function<void(const Committed&)> after_;
  std::optional<Committed> committed_;
  std::exception_ptr early_failure_;
  std::atomic<bool> watching_ = false, interrupted_ = false, stop_requested_ = false;
  double norm_ = 0, scale_ = 1;
  int exceptions_ = std::uncaught_exceptions(), own_failures_ = 0, purity_checked_ = 0;
  bool begun_ = false, pending_ = false, returned_ = false, repeated_ = false, finished_ = false;
  bool in_step_function_ = false;
  bool has_state_ = true, whole_ = false, stopping_ = false, schema_told_ = false;
  bool coefficients_fixed_ = false, decided_ = false, skip_ = false, left_ = false,
       touched_ = false, updating_ = false, own_updated_ = false;
  int step_size_ = 1;    // ranks of the generation in which the step's lambda ran
  HelperThread helper_;  // last, so that its jobs end first
};

}  // namespace mend
