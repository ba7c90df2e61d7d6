#include "session/support/cluster.hpp"

#include <mend/optim/adam.hpp>
#include <mend/optim/clip_norm.hpp>
#include <mend/optim/own_update.hpp>
#include <mend/optim/undo/approximate.hpp>
#include <mend/optim/undo/exact.hpp>
#include <mend/optim/undo/ping_pong.hpp>
#include <mend/optim/undo/snapshot.hpp>

#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

namespace mend_test {

Result run(const Case& c) {
  Result result;
  std::mutex mutex;
  auto note = [&](Note n) {
    std::lock_guard lock{mutex};
    result.notes.push_back(std::move(n));
  };
  auto worker = [&](mend::comm::ThreadComm& comm) {
    const Incarnation who = comm.membership().incarnation;
    const int rank = comm.rank();
    note({Note::What::born, who, rank});
    Trainer trainer{rank, {c.extra, c.copies, c.flavour == Flavour::own_update}};
    auto train = [&](auto update, auto... policies) {
      mend::Session session{trainer.state, std::move(update), comm, mend::ReplicaRecovery{},
                            policies...};
      auto step = [&](mend::Step s) {
        note({Note::What::lambda, who, rank, s.value(), hash_of(trainer.state)});
        if (c.loop == Loop::asked && rank == 1 && s == mend::Step{2}) session.request_stop();
        return trainer.step(s, [&](std::string_view name) {
          if (c.ready) session.ready(name);
        });
      };
      std::int64_t seen = -1;
      auto committed = [&](const mend::Committed& done) {
        seen = done.step.value();
        note({Note::What::committed, who, rank, seen, {}, done});
      };
      auto after = [&](const mend::Committed& done) {
        committed(done);
        trainer.after(done);
      };
      if (c.loop == Loop::open || c.loop == Loop::open_twice) {
        auto look = [&] {
          if (session.committed() && session.committed()->step.value() > seen)
            committed(*session.committed());
        };
        auto until = [&](std::int64_t last) {
          while (std::optional<mend::Step> s = session.next(last)) {
            look();
            step(*s);
          }
          look();
        };
        if (c.loop == Loop::open_twice) until(c.steps / 2);
        until(c.steps);
      } else {
        if (c.loop == Loop::twice) session.train(c.steps / 2, step, after);
        session.train(c.steps, step, after);
      }
      note({Note::What::finished, who, rank, session.step().value()});
      std::lock_guard lock{mutex};
      result.final[rank] = hash_of(trainer.state);
      for (const auto& e : trainer.state.entries())
        result.entries[rank].emplace_back(e.name, hash_of(e));
    };
    const mend::Adam adam{.lr = 1e-2f};
    try {
      switch (c.flavour) {
        case Flavour::roll_forward: train(adam); break;
        case Flavour::snapshot: train(adam, mend::SnapshotUndo{}); break;
        case Flavour::exact: train(adam, mend::ExactUndo{}); break;
        case Flavour::ping_pong: train(adam, mend::PingPong{}); break;
        case Flavour::approximate: train(adam, mend::ApproximateUndo{}); break;
        case Flavour::clip: train(adam, mend::ClipNorm{0.5f}); break;
        case Flavour::own_update:
          train(mend::OwnUpdate{[&](mend::Step s) { trainer.update(s); }});
          break;
      }
    } catch (const mend::comm::Killed&) {
      note({Note::What::killed, who, rank});
      throw;
    } catch (const std::exception& e) {
      note({Note::What::failed, who, rank, 0, {}, {}, e.what()});
      throw;
    }
  };
  mend::comm::CoordinatorOptions options = c.options;
  options.ranks = c.ranks;
  Ran ran = run_threads(options, c.world, worker, [&](const mend::trace::Event& e) {
    if (e.name == "death") note({Note::What::death, 0, e.rank, e.step.value()});
    if (e.name == "go") note({Note::What::go, 0, -1, e.step.value()});
    if (e.name == "stop") note({Note::What::stop, 0, -1, e.step.value(), {}, {}, e.text});
  });
  result.outcome = std::move(ran.outcome);
  result.hung = ran.hung;
  result.trace = std::move(ran.trace);
  return result;
}

}  // namespace mend_test
