#include <mend/session/session.hpp>

#include <mend/comm/threads.hpp>
#include <mend/kernel/host/half.hpp>
#include <mend/kernel/host/reduce.hpp>
#include <mend/optim/adam.hpp>
#include <mend/optim/momentum.hpp>
#include <mend/optim/per_group.hpp>
#include <mend/optim/sgd.hpp>
#include <mend/optim/undo/snapshot.hpp>
#include <mend/store/safetensors.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <barrier>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/scratch.hpp"

namespace {

using namespace mend;
using namespace std::chrono_literals;
using comm::ThreadComm;

struct Half {
  std::uint16_t bits;
};

}  // namespace

template <>
inline constexpr mend::DType mend::dtype_of<Half> = mend::DType::bf16;

namespace {

constexpr std::size_t large = 5000;  // floats: a bucket of its own

// Two small tensors that share a bucket, one large one, a counter that the lambda moves on.
struct Model {
  std::vector<float> w = std::vector<float>(large), gw = w;
  std::vector<float> a{1, 2, 3}, ga{0, 0, 0};
  std::vector<double> b{4, 5}, gb{0, 0};
  std::int64_t calls = 0;
  TrainState state;

  Model() {
    for (std::size_t i = 0; i < large; ++i) w[i] = static_cast<float>(i % 97) / 31;
    state.add("a", a, ga).add("w", w, gw).add("b", b, gb).add_scalar("calls", calls);
  }
  // Gradients and a loss that depend on the step, the rank and all parameters.
  float forward_backward(Step step, int rank) {
    ++calls;
    float scale = 0.01f * static_cast<float>(step.value() + 1) + 0.1f * static_cast<float>(rank);
    for (std::size_t i = 0; i < large; ++i) gw[i] = w[i] * scale + 0.001f * a[0];
    for (std::size_t i = 0; i < 3; ++i) ga[i] = a[i] * scale;
    for (std::size_t i = 0; i < 2; ++i) gb[i] = b[i] * static_cast<double>(scale);
    return w[7] + scale;
  }
  [[nodiscard]] Hash128 hash() const {
    StateHash h;
    for (const TrainState::Entry& e : state.entries())
      if (e.tied_to.empty() && e.value != nullptr)
        h.add(e.name, e.dtype, ByteView{e.value, e.bytes()});
    return h.value();
  }
};

template <class E, class F>
std::string thrown(F&& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  }
  return "nothing was thrown";
}
bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

// A communicator as a user may write one: threads of one program that meet at a barrier.
struct Meeting {
  explicit Meeting(int n)
      : size{n}, all{n}, pointers(static_cast<std::size_t>(n)), votes(pointers.size()) {}
  int size;
  std::barrier<> all;
  std::vector<float*> pointers;
  std::vector<char> votes;
};
class Own {
 public:
  Own(Meeting& meeting, int rank) : meeting_{meeting}, rank_{rank} {}
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return meeting_.size; }
  bool agree(bool yes) {
    ++agreements;
    meeting_.votes[static_cast<std::size_t>(rank_)] = yes && !refuse;
    meeting_.all.arrive_and_wait();
    bool all = true;
    for (char v : meeting_.votes) all = all && v;
    meeting_.all.arrive_and_wait();
    return all;
  }
  void all_reduce(comm::Buffer b) {
    std::vector<std::byte> mine{b.data, b.data + b.bytes()};
    meeting_.pointers[static_cast<std::size_t>(rank_)] = reinterpret_cast<float*>(b.data);
    meeting_.all.arrive_and_wait();
    std::memcpy(mine.data(), meeting_.pointers[0], b.bytes());
    for (std::size_t r = 1; r < meeting_.pointers.size(); ++r) {
      std::vector<std::byte> next(b.bytes());
      std::memcpy(next.data(), meeting_.pointers[r], b.bytes());
      kernel::accumulate(b.dtype, next.data(), mine.data(), b.count);
      mine = next;
    }
    if (b.reduction == comm::Reduction::mean)
      kernel::scale_to_mean(b.dtype, mine.data(), b.count, meeting_.size);
    meeting_.all.arrive_and_wait();
    std::memcpy(b.data, mine.data(), mine.size());
  }
  int agreements = 0;
  bool refuse = false;

 private:
  Meeting& meeting_;
  int rank_;
};
static_assert(comm::CanAllReduce<Own> && !comm::Elastic<Own>);
template <class F>
void meet(int n, F&& f) {
  Meeting meeting{n};
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r)
    threads.emplace_back([&, r] {
      Own comm{meeting, r};
      f(comm);
    });
  for (std::thread& t : threads) t.join();
}

// Runs f(comm) on n ranks of a thread cluster, both free running and simulated.
template <class F, class After>
void on_ranks(int n, F&& f, After&& after_each, comm::CoordinatorOptions options = {}) {
  options.ranks = n;
  for (bool simulated : {false, true}) {
    CAPTURE(simulated);
    comm::Threads cluster{options, {.simulated = simulated, .chunk_bytes = 4096}};
    comm::Outcome outcome = cluster.run([&](ThreadComm& comm) { f(comm); });
    CHECK(!cluster.world().hung());
    after_each(outcome);
  }
}
// The same, where every rank must come to its end.
template <class F>
void on_ranks(int n, F&& f) {
  on_ranks(n, f, [](const comm::Outcome& o) {
    CHECK(o.finished);
    CHECK(o.reason == "");
  });
}

// ---- the step -----------------------------------------------------------------------------------

TEST_CASE("alone: every step once, in order, with what is known of it") {
  Model m;
  ThreadComm comm;
  Session session{m.state, Sgd{.lr = 0.5}, comm};
  CHECK(session.rank() == 0);
  CHECK(session.size() == 1);
  CHECK(session.step() == Step{0});
  std::vector<std::int64_t> steps;
  std::vector<Committed> done;
  float last_w = 0;
  session.train(
      5,
      [&](Step step) {
        steps.push_back(step.value());
        CHECK(session.step() == step);
        last_w = m.w[7];
        return m.forward_backward(step, 0);
      },
      [&](const Committed& c) {
        CHECK(session.step() == c.step.next());  // committed already
        CHECK(m.state.step == c.step.value() + 1);
        CHECK(m.w[7] != last_w);  // with the new parameters
        CHECK(same(c.loss, last_w + 0.01f * static_cast<float>(c.step.value() + 1)));
        done.push_back(c);
      });
  CHECK(steps == std::vector<std::int64_t>{0, 1, 2, 3, 4});
  REQUIRE(done.size() == 5);
  for (std::int64_t i = 0; i < 5; ++i) {
    const Committed& c = done[static_cast<std::size_t>(i)];
    CHECK(c.step == Step{i});
    CHECK(c.learning_rate == 0.5f);
    CHECK(c.gradient_norm == 0);
    CHECK(!c.repeated);
    CHECK(!c.skipped);
  }
  REQUIRE(session.committed());
  CHECK(session.committed()->step == Step{4});
  CHECK(m.state.applied == 5);
}

TEST_CASE("a step function may return nothing, a float or a double; after may be left out") {
  Model m;
  ThreadComm comm;
  Session session{m.state, Sgd{}, comm};
  session.train(1, [&](Step s) { (void)m.forward_backward(s, 0); });
  CHECK(session.committed()->loss == 0);
  session.train(2, [&](Step s) {
    (void)m.forward_backward(s, 0);
    return 0.125;
  });
  CHECK(session.committed()->loss == 0.125f);
}

TEST_CASE("last is absolute: what is done already is not done again") {
  Model m, reference;
  ThreadComm comm;
  Session session{m.state, Momentum{}, comm}, whole{reference.state, Momentum{}, comm};
  auto step = [&](Model& model) { return [&](Step s) { return model.forward_backward(s, 0); }; };
  session.train(3, step(m));
  session.train(3, step(m));
  session.train(0, step(m));
  CHECK(m.calls == 3);
  session.train(7, step(m));
  whole.train(7, step(reference));
  CHECK(m.calls == 7);
  CHECK(m.hash() == reference.hash());
}

TEST_CASE("a state without tensors is a state: buffers and states are trained along") {
  std::vector<float> field{1, 2};
  TrainState state;
  state.add_buffer("field", field);
  ThreadComm comm;
  Session session{state, Adam{}, comm};
  session.train(3, [&](Step) { field[0] += 1; });
  CHECK(field[0] == 4);
  CHECK(state.step == 3);
}

TEST_CASE("the update is the rule applied to the mean gradient") {
  for (int n : {1, 2, 3}) {
    on_ranks(n, [&](ThreadComm& comm) {
      Model m, by_hand;
      Session session{m.state, Sgd{.lr = 0.1}, comm, ReplicaRecovery{}};
      for (int t = 0; t < 3; ++t) {
        std::vector<float> sum(large);
        for (int r = 0; r < n; ++r) {  // rank by rank
          (void)by_hand.forward_backward(Step{t}, r);
          for (std::size_t i = 0; i < large; ++i)
            sum[i] = r == 0 ? by_hand.gw[i] : sum[i] + by_hand.gw[i];
        }
        std::vector<double> sum_b(2);
        std::vector<float> sum_a(3);
        for (int r = 0; r < n; ++r) {
          (void)by_hand.forward_backward(Step{t}, r);
          for (std::size_t i = 0; i < 2; ++i)
            sum_b[i] = r == 0 ? by_hand.gb[i] : sum_b[i] + by_hand.gb[i];
          for (std::size_t i = 0; i < 3; ++i)
            sum_a[i] = r == 0 ? by_hand.ga[i] : sum_a[i] + by_hand.ga[i];
        }
        auto update = [&](auto& p, auto& total) {
          using T = typename std::remove_reference_t<decltype(p)>::value_type;
          for (std::size_t i = 0; i < p.size(); ++i) {
            volatile T mean = n == 1 ? total[i] : total[i] / static_cast<T>(n);
            volatile T step = mean * static_cast<T>(0.1);
            p[i] = p[i] - step;
          }
        };
        update(by_hand.w, sum);
        update(by_hand.a, sum_a);
        update(by_hand.b, sum_b);
        session.train(t + 1, [&](Step s) { return m.forward_backward(s, comm.rank()); });
        CHECK(m.w == by_hand.w);
        CHECK(m.a == by_hand.a);
        CHECK(m.b == by_hand.b);
      }
    });
  }
}

TEST_CASE("the loss is the mean over the ranks, summed in rank order, the same on all") {
  const float losses[] = {1e-8f, 3.0f, 1.0f / 3};
  double sum = 0;
  for (float x : losses) sum += static_cast<double>(x);
  const float expected = static_cast<float>(sum / 3);
  on_ranks(3, [&](ThreadComm& comm) {
    Model m;
    Session session{m.state, Sgd{.lr = 0}, comm, ReplicaRecovery{}};
    session.train(
        3,
        [&](Step s) {
          (void)m.forward_backward(s, comm.rank());
          return losses[comm.rank()];
        },
        [&](const Committed& c) { CHECK(same(c.loss, expected)); });
  });
}

TEST_CASE("ranks that registered other things are told the first difference before any step") {
  std::atomic<int> calls{0};
  on_ranks(
      2,
      [&](ThreadComm& comm) {
        Model m;
        std::vector<float> more(2);
        if (comm.rank() == 1) m.state.add_buffer("more", more);
        Session session{m.state, Sgd{}, comm, ReplicaRecovery{}};
        session.train(3, [&](Step) { ++calls; });
      },
      [&](const comm::Outcome& o) {
        CHECK(!o.finished);
        CHECK(o.reason ==
              "ranks registered different state: rank 0 has nothing more where rank 1 "
              "has buffer 'more' F32 [2] group default");
      });
  CHECK(calls == 0);
}

TEST_CASE("ranks that begin with other values are told so before any step") {
  std::atomic<int> calls{0};
  on_ranks(
      2,
      [&](ThreadComm& comm) {
        Model m;
        m.b[1] += comm.rank();
        Session session{m.state, Sgd{}, comm, ReplicaRecovery{}};
        session.train(3, [&](Step) { ++calls; });
      },
      [&](const comm::Outcome& o) {
        CHECK(!o.finished);
        CHECK(
            o.reason.find("initial values differ: rank 1 and rank 0 hold different bits at step 0, "
                          "first in tensor 'b' F64 [2]") == 0);
      });
  CHECK(calls == 0);
}

// ---- the open form ------------------------------------------------------------------------------

TEST_CASE("the open form gives the same bits as train") {
  for (int n : {1, 3}) {
    std::mutex mutex;
    std::vector<Hash128> hashes;
    on_ranks(n, [&](ThreadComm& comm) {
      Model m;
      Session session{m.state, Adam{.lr = 1e-2}, comm, ReplicaRecovery{}};
      std::int64_t expected = 0;
      while (auto step = session.next(6)) {
        CHECK(step->value() == expected++);
        if (expected > 1) CHECK(session.committed()->step == Step{expected - 2});
        (void)m.forward_backward(*step, comm.rank());
      }
      CHECK(session.step() == Step{6});
      CHECK(!session.next(6));
      std::lock_guard lock{mutex};
      hashes.push_back(m.hash());
    });
    on_ranks(n, [&](ThreadComm& comm) {
      Model m;
      Session session{m.state, Adam{.lr = 1e-2}, comm, ReplicaRecovery{}};
      session.train(6, [&](Step s) { return m.forward_backward(s, comm.rank()); });
      std::lock_guard lock{mutex};
      hashes.push_back(m.hash());
    });
    REQUIRE(hashes.size() == static_cast<std::size_t>(4 * n));
    for (const Hash128& h : hashes) CHECK(h == hashes[0]);
  }
}

TEST_CASE("break leaves the step at hand uncommitted, and nobody else waits") {
  on_ranks(3, [&](ThreadComm& comm) {
    Model m;
    Session session{m.state, Sgd{}, comm, ReplicaRecovery{}};
    std::vector<float> before;
    while (auto step = session.next(100)) {
      (void)m.forward_backward(*step, comm.rank());
      before = m.w;
      if (*step == Step{4}) break;
    }
    CHECK(session.step() == Step{4});
    CHECK(m.state.step == 4);
    CHECK(m.w == before);
  });
}

// ---- ready --------------------------------------------------------------------------------------

TEST_CASE("gradients released one by one give the same bits") {
  for (int n : {1, 3}) {
    std::mutex mutex;
    std::vector<Hash128> hashes;
    for (bool early : {false, true})
      on_ranks(n, [&](ThreadComm& comm) {
        Model m;
        Session session{m.state, Adam{.lr = 1e-2}, comm, ReplicaRecovery{}};
        session.train(5, [&](Step s) {
          float loss = m.forward_backward(s, comm.rank());
          if (early) {
            session.ready("b");
            session.ready("w");
            if (s.every(2)) session.ready("a");
          }
          return loss;
        });
        std::lock_guard lock{mutex};
        hashes.push_back(m.hash());
      });
    for (const Hash128& h : hashes) CHECK(h == hashes[0]);
  }
}

TEST_CASE("a bucket of several tensors travels when all of them are released") {
  on_ranks(2, [&](ThreadComm& comm) {
    std::vector<float> a{1}, ga{0}, b{1}, gb{0};
    TrainState state;
    state.add("a", a, ga).add("b", b, gb);
    Session session{state, Sgd{.lr = 1}, comm, ReplicaRecovery{}};
    session.train(2, [&](Step) {
      ga[0] = static_cast<float>(comm.rank());
      session.ready("a");
      gb[0] = static_cast<float>(comm.rank()) * 3;  // still this rank's own to write
      session.ready("b");
    });
    CHECK(a[0] == 0);
    CHECK(b[0] == -2);
  });
}

TEST_CASE("ready outside a step, for what is no tensor, or twice, is a StateError") {
  Model m;
  ThreadComm comm;
  Session session{m.state, Sgd{}, comm};
  CHECK(thrown<StateError>([&] { session.ready("w"); }) ==
        "ready() belongs into the step function");
  auto in_step = [&](auto&& f) {
    return thrown<StateError>([&] { session.train(session.step().next(), [&](Step) { f(); }); });
  };
  CHECK(in_step([&] { session.ready("calls"); }) ==
        "ready(\"calls\"): no tensor of that name was added");
  CHECK(in_step([&] { session.ready("nothing"); }) ==
        "ready(\"nothing\"): no tensor of that name was added");
  CHECK(in_step([&] {
          session.ready("a");
          session.ready("a");
        })
            .find("ready(\"a\") was called twice in one step; call it once, when the gradient is "
                  "final") == 0);
}

TEST_CASE("ranks that release in different orders are told so") {
  on_ranks(
      2,
      [&](ThreadComm& comm) {
        Model m;
        Session session{m.state, Sgd{}, comm, ReplicaRecovery{}};
        session.train(3, [&](Step s) {
          (void)m.forward_backward(s, comm.rank());
          session.ready(comm.rank() == 0 ? "w" : "b");
          session.ready(comm.rank() == 0 ? "b" : "w");
        });
      },
      [](const comm::Outcome& o) {
        CHECK(!o.finished);
        CHECK(o.reason.find("every rank must reduce, and call ready(), in the same order") !=
              std::string::npos);
        CHECK(o.step == Step{0});
      },
      {.max_restarts = 2});
}

// ---- clipping and skipping ----------------------------------------------------------------------

TEST_CASE("ClipNorm: the update sees the gradients scaled to the norm, bit for bit") {
  for (float limit : {0.5f, 1e6f}) {
    Model m, by_hand;
    ThreadComm comm;
    Session session{m.state, Sgd{.lr = 0.1}, comm, ClipNorm{limit}};
    session.train(
        3,
        [&](Step s) {
          (void)by_hand.forward_backward(s, 0);
          double squares = kernel::sum_of_squares(DType::f32, by_hand.ga.data(), 3);
          squares += kernel::sum_of_squares(DType::f32, by_hand.gw.data(), large);
          squares += kernel::sum_of_squares(DType::f64, by_hand.gb.data(), 2);
          float factor = std::sqrt(squares) > limit
                             ? static_cast<float>(static_cast<double>(limit) / std::sqrt(squares))
                             : 1.0f;
          auto update = [&](auto& p, auto& g) {
            using T = typename std::remove_reference_t<decltype(p)>::value_type;
            for (std::size_t i = 0; i < p.size(); ++i) {
              volatile T clipped = g[i] * static_cast<T>(factor);
              volatile T step = clipped * static_cast<T>(0.1);
              p[i] = p[i] - step;
            }
          };
          update(by_hand.w, by_hand.gw);
          update(by_hand.a, by_hand.ga);
          update(by_hand.b, by_hand.gb);
          return m.forward_backward(s, 0);
        },
        [&](const Committed& c) {
          CHECK(m.w == by_hand.w);
          CHECK(m.a == by_hand.a);
          CHECK(m.b == by_hand.b);
          CHECK(m.gw == by_hand.gw);  // not clipped in place
          CHECK(c.gradient_norm > 1);
        });
  }
}

TEST_CASE("the norm is that of the reduced gradients, the same on all ranks") {
  on_ranks(3, [&](ThreadComm& comm) {
    std::vector<float> w{0, 0}, g{0, 0};
    TrainState state;
    state.add("w", w, g);
    Session session{state, Sgd{.lr = 1}, comm, ReplicaRecovery{}, ClipNorm{1}};
    session.train(
        1,
        [&](Step) {
          g = {static_cast<float>(9 * comm.rank()), 12};  // mean (9, 12): norm 15
        },
        [&](const Committed& c) {
          CHECK(c.gradient_norm == 15);
          CHECK(w[0] == -(9 * static_cast<float>(1.0 / 15)));
          CHECK(w[1] == -(12 * static_cast<float>(1.0 / 15)));
        });
  });
}

TEST_CASE("a limit that cannot work is refused at once") {
  Model m;
  ThreadComm comm;
  CHECK_THROWS_AS((Session{m.state, Sgd{}, comm, ClipNorm{0}}), OptionError);
  Session session{m.state, Sgd{}, comm, ClipNorm{1}};  // and the state is free for another one
}

TEST_CASE("a step with a non-finite gradient on any rank is skipped on all, and not applied") {
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity()};
  auto run = [&](ThreadComm& comm, auto policy) {
    Model m;
    std::vector<std::int64_t> asked;
    // The rate is a function of the updates applied: a skipped step does not move it on.
    Sgd rule{.lr = [&](Step applied) {
      asked.push_back(applied.value());
      return 0.1 / static_cast<double>(applied.value() + 1);
    }};
    Session session{m.state, rule, comm, ReplicaRecovery{}, policy};
    std::vector<float> before;
    std::vector<bool> skipped;
    session.train(
        6,
        [&](Step s) {
          float loss = m.forward_backward(s, comm.rank());
          before = m.w;
          if (s == Step{2} && comm.rank() == 1) m.gw[4321] = bad[0];
          if (s == Step{4} && comm.rank() == 0) m.gb[1] = static_cast<double>(bad[1]);
          return loss;
        },
        [&](const Committed& c) {
          skipped.push_back(c.skipped);
          if (c.skipped) CHECK(std::memcmp(before.data(), m.w.data(), 4 * large) == 0);
          if (!c.skipped) CHECK(m.w != before);
        });
    CHECK(skipped == std::vector<bool>{false, false, true, false, true, false});
    CHECK(m.state.step == 6);
    CHECK(m.state.applied == 4);
    CHECK(asked.back() == 3);
    for (float x : m.w) CHECK(std::isfinite(x));
  };
  on_ranks(2, [&](ThreadComm& comm) { run(comm, SkipNonFinite{}); });
  on_ranks(2, [&](ThreadComm& comm) { run(comm, ClipNorm{1}); });
}

TEST_CASE("without either policy a NaN goes into the parameters, as it does without mend") {
  Model m;
  ThreadComm comm;
  Session session{m.state, Sgd{}, comm};
  session.train(
      1,
      [&](Step s) {
        (void)m.forward_backward(s, 0);
        m.gw[3] = std::numeric_limits<float>::quiet_NaN();
      },
      [&](const Committed& c) { CHECK(!c.skipped); });
  CHECK(std::isnan(m.w[3]));
}

// ---- updates of other kinds ---------------------------------------------------------------------

TEST_CASE("OwnUpdate is called once per step after the reduction, and its copies are rounded") {
  on_ranks(2, [&](ThreadComm& comm) {
    std::vector<float> w{1, 2}, g{0, 0};
    std::vector<Half> low(2);
    TrainState state;
    state.add("w", w, g).add_copy("w", low);
    std::vector<std::int64_t> called;
    Session session{state, OwnUpdate{[&](Step s) {
                      called.push_back(s.value());
                      for (std::size_t i = 0; i < 2; ++i) w[i] -= g[i];
                    }},
                    comm, ReplicaRecovery{}, SkipNonFinite{}};
    session.train(
        3,
        [&](Step s) {
          g = {static_cast<float>(comm.rank()), 0.001f};
          if (s == Step{1} && comm.rank() == 1) g[0] = std::numeric_limits<float>::infinity();
        },
        [&](const Committed& c) { CHECK(c.learning_rate == 0); });
    CHECK(called == std::vector<std::int64_t>{0, 2});
    CHECK(w[0] == 0);
    CHECK(low[1].bits == kernel::float_to_bf16(w[1]));
    CHECK(state.applied == 2);
  });
}

TEST_CASE("parameter groups reach the update, and their default's rate is reported") {
  std::vector<float> a(2, 1), ga(2), b(2, 1), gb(2);
  TrainState state;
  state.add("a", a, ga).add("b", b, gb, {.group = "slow"});
  ThreadComm comm;
  Session session{state, PerGroup{Sgd{.lr = 0.5}, {{"slow", Sgd{.lr = 0.25}}}}, comm};
  session.train(
      1,
      [&](Step) {
        ga = gb = {1, 1};
      },
      [&](const Committed& c) { CHECK(c.learning_rate == 0.5f); });
  CHECK(a == std::vector<float>{0.5f, 0.5f});
  CHECK(b == std::vector<float>{0.75f, 0.75f});
}

TEST_CASE("a float master with a narrow gradient and a narrow copy") {
  for (int n : {1, 2}) {
    on_ranks(n, [&](ThreadComm& comm) {
      std::vector<float> master(large, 1);
      std::vector<Half> gradient(large), low(large);
      TrainState state;
      state.add("w", master, gradient).add_copy("w", low);
      Session session{state, Sgd{.lr = 1}, comm, ReplicaRecovery{}};
      session.train(2, [&](Step) {
        for (Half& g : gradient)
          g.bits = kernel::float_to_bf16(0.25f + static_cast<float>(comm.rank()));
      });
      float expected = 1 - 2 * (n == 1 ? 0.25f : 0.75f);
      for (std::size_t i = 0; i < large; ++i) {
        CHECK(master[i] == expected);
        CHECK(low[i].bits == kernel::float_to_bf16(expected));
      }
    });
  }
}

TEST_CASE("tied tensors are reduced and updated once") {
  std::vector<float> w{1}, g{0};
  TrainState state;
  state.add("embedding", w, g).add("head", w, g);
  ThreadComm comm;
  Session session{state, Sgd{.lr = 1}, comm};
  session.train(1, [&](Step) {
    g[0] = 0.25f;
    session.ready("head");
  });
  CHECK(w[0] == 0.75f);
}

TEST_CASE("an undo policy changes no bits where nothing fails") {
  for (int n : {1, 3}) {
    std::mutex mutex;
    std::vector<Hash128> hashes;
    auto run = [&](ThreadComm& comm, auto... policies) {
      Model m;
      Session session{m.state, Momentum{.nesterov = true}, comm, ReplicaRecovery{}, policies...};
      session.train(5, [&](Step s) {
        float loss = m.forward_backward(s, comm.rank());
        session.ready("w");
        return loss;
      });
      std::lock_guard lock{mutex};
      hashes.push_back(m.hash());
    };
    on_ranks(n, [&](ThreadComm& comm) { run(comm); });
    on_ranks(n, [&](ThreadComm& comm) { run(comm, SnapshotUndo{}); });
    on_ranks(n, [&](ThreadComm& comm) { run(comm, RollForward{}); });
    for (const Hash128& h : hashes) CHECK(h == hashes[0]);
  }
}

// ---- stopping -----------------------------------------------------------------------------------

TEST_CASE("alone, a wish to stop in the step ends after it, one in after ends after the next") {
  for (bool in_step : {true, false}) {
    Model m;
    ThreadComm comm;
    Session session{m.state, Sgd{}, comm};
    session.train(
        100,
        [&](Step s) {
          if (in_step && s == Step{4}) session.request_stop();
        },
        [&](const Committed& c) {
          if (!in_step && c.step == Step{3}) session.request_stop();
        });
    CHECK(session.step() == Step{5});
    session.train(8, [&](Step) {});  // a stop ends one train(), not the next
    CHECK(session.step() == Step{8});
  }
}

TEST_CASE("any rank may ask; all stop after the same step, in both forms, and may go on") {
  for (bool open : {false, true})
    for (int who : {0, 2})
      on_ranks(3, [&](ThreadComm& comm) {
        Model m;
        Session session{m.state, Sgd{}, comm, ReplicaRecovery{}};
        auto step = [&](Step s) {
          (void)m.forward_backward(s, comm.rank());
          if (s == Step{4} && comm.rank() == who) session.request_stop();
        };
        if (open)
          while (auto s = session.next(100)) step(*s);
        else
          session.train(100, step);
        CHECK(session.step() == Step{5});
        if (open) return;
        session.train(9, step);
        CHECK(session.step() == Step{9});
      });
}

// ---- what cannot work ---------------------------------------------------------------------------

TEST_CASE("two sessions on one state, one after the other and at once") {
  Model m;
  ThreadComm comm;
  {
    Session first{m.state, Momentum{}, comm};
    CHECK(thrown<StateError>([&] {
            Session second{m.state, Sgd{}, comm};
          }) == "two sessions on one TrainState; a state serves one session at a time");
    first.train(3, [&](Step s) { return m.forward_backward(s, 0); });
    CHECK(m.state.find("w.m") != nullptr);
    std::vector<float> late(2);
    CHECK(thrown<StateError>([&] { m.state.add_buffer("late", late); }) ==
          "'late' was added after a session took the state; register everything before");
  }
  CHECK(m.state.find("w.m") == nullptr);
  std::vector<float> late(2);
  m.state.add_buffer("late", late);
  Session second{m.state, Adam{}, comm};  // another rule, from where the first one ended
  CHECK(second.step() == Step{3});
  CHECK(m.state.applied == 3);
  std::int64_t first_step = -1;
  second.train(5, [&](Step s) {
    if (first_step < 0) first_step = s.value();
    return m.forward_backward(s, 0);
  });
  CHECK(first_step == 3);
  CHECK(m.state.step == 5);
  CHECK(m.state.applied == 5);
}

TEST_CASE("a session that could not be made leaves the state free") {
  Model m;
  ThreadComm comm;
  CHECK_THROWS_AS((Session{m.state, Adam{.eps = 0}, comm}), OptionError);
  Session session{m.state, Adam{}, comm};
  session.train(1, [&](Step s) { return m.forward_backward(s, 0); });
}

TEST_CASE("what cannot work on one rank ends the run, in its words, and replaces nobody") {
  on_ranks(
      3,
      [](ThreadComm& comm) {
        Model m;
        Session session{m.state, Sgd{.lr = comm.rank() == 1 ? -1.0 : 0.1}, comm, ReplicaRecovery{}};
        session.train(3, [&](Step s) { return m.forward_backward(s, comm.rank()); });
      },
      [](const comm::Outcome& o) {
        CHECK(!o.finished);
        CHECK(o.reason.find("rank 1: Sgd: lr = -1 must") == 0);
      });
}

TEST_CASE("a copy is rounded when the session is made, and again after a load") {
  std::vector<float> master(4, 1), gradient(4);
  std::vector<Half> low(4, {0});
  TrainState state;
  state.add("w", master, gradient).add_copy("w", low);
  ThreadComm comm;
  Session session{state, Sgd{}, comm};
  CHECK(low[0].bits == kernel::float_to_bf16(1));
  master.assign(4, 2);  // as a load does
  session.train(1, [&](Step) { CHECK(low[3].bits == kernel::float_to_bf16(2)); });
}

TEST_CASE("a container that was resized after registration is found at the next step") {
  for (bool in_step : {false, true}) {
    Model m;
    ThreadComm comm;
    Session session{m.state, Sgd{}, comm};
    session.train(2, [&](Step s) { return m.forward_backward(s, 0); });
    int calls = 0;
    std::string text = thrown<StateError>([&] {
      if (!in_step) m.a.resize(4);
      session.train(4, [&](Step) {
        ++calls;
        if (in_step) m.a.resize(4);
      });
    });
    CHECK(text ==
          "the value of tensor 'a' was moved or resized after registration; register buffers of "
          "final size");
    CHECK(calls == (in_step ? 1 : 0));
    CHECK(session.step() == Step{2});
  }
}

TEST_CASE("per-rank state that no chosen policy could restore is refused before the first step") {
  std::vector<float> w(3), g(3), h(3);
  TrainState state;
  state.add("w", w, g).add_buffer("h", h, PerRank{.copies = 0});
  ThreadComm comm;
  CHECK(thrown<StateError>([&] {
          Session session{state, Sgd{}, comm, ReplicaRecovery{}};
        }) ==
        "ReplicaRecovery cannot restore 'h': it lives on one rank only. Give it PerRank{.copies = "
        "1}, or add a checkpointer");
  Session without{state, Sgd{}, comm};  // without a recovery policy nothing is promised
}

TEST_CASE("copies are taken before the update, so what only the update changes cannot have any") {
  std::vector<float> w(3), g(3), h(3);
  TrainState state;
  state.add("w", w, g).add_buffer("h", h, PerRank{}, {.before_image = false});
  ThreadComm comm;
  CHECK(thrown<StateError>([&] {
          Session session{state, Sgd{}, comm, ReplicaRecovery{}};
        }).find("'h' has partner copies, which are taken before the update, and no before-image") ==
        0);
}

TEST_CASE("collectives may come before the session") {
  on_ranks(3, [&](ThreadComm& comm) {
    Model m;
    std::vector<std::byte> seed(8, static_cast<std::byte>(comm.rank() + 1));
    comm.broadcast(seed, 2);
    m.b[0] = static_cast<double>(seed[0]);
    comm.barrier();
    Session session{m.state, Sgd{}, comm, ReplicaRecovery{}};
    session.train(3, [&](Step s) { return m.forward_backward(s, comm.rank()); });
    CHECK(session.step() == Step{3});
    CHECK(m.b[0] != 3);
  });
}

TEST_CASE("two sessions in one managed run are refused, not waited for") {
  on_ranks(
      2,
      [&](ThreadComm& comm) {
        Model m;
        {
          Session first{m.state, Sgd{}, comm, ReplicaRecovery{}};
          first.train(2, [&](Step s) { return m.forward_backward(s, comm.rank()); });
        }
        Session second{m.state, Sgd{}, comm, ReplicaRecovery{}};
        CHECK(thrown<StateError>([&] {
                second.train(4, [](Step) {});
              }).find("this communicator has served another session") == 0);
      },
      [](const comm::Outcome& o) { CHECK(o.finished); });
}

TEST_CASE("a member that is lost to a session without a recovery policy stops the run") {
  on_ranks(
      2,
      [&](ThreadComm& comm) {
        Model m;
        Session session{m.state, Sgd{}, comm};
        session.train(5, [&](Step s) {
          if (s == Step{2} && comm.rank() == 1) throw comm::Killed{};
          return m.forward_backward(s, comm.rank());
        });
      },
      [](const comm::Outcome& o) {
        CHECK(!o.finished);
        CHECK(o.reason ==
              "rank 0: a member was lost and this session has no recovery policy; add "
              "mend::ReplicaRecovery");
      });
}

// ---- exceptions ---------------------------------------------------------------------------------

TEST_CASE("alone, an exception reaches the caller, and the step can be done again") {
  Model m, reference;
  ThreadComm comm;
  std::vector<bool> repeated;
  auto train = [&](Model& model, bool fails, auto... policies) {
    Session session{model.state, Momentum{}, comm, policies...};
    bool failed = !fails;
    auto step = [&](Step s) {
      float loss = model.forward_backward(s, 0);
      session.ready("w");  // with an undo policy this is updated already
      if (s == Step{2} && !std::exchange(failed, true))
        throw std::runtime_error{"the disk is full"};
      return loss;
    };
    auto after = [&](const Committed& c) { repeated.push_back(c.repeated); };
    if (fails) {
      CHECK(thrown<std::runtime_error>([&] { session.train(5, step, after); }) ==
            "the disk is full");
      CHECK(session.step() == Step{2});
      CHECK(model.state.step == 2);
    }
    session.train(5, step, after);
    return model.hash();
  };
  Hash128 expected = train(reference, false);
  repeated.clear();
  CHECK(train(m, true) == expected);  // the scalar that the lambda moves on is taken back, too
  CHECK(repeated == std::vector<bool>{false, false, true, false, false});
  Model with_undo;
  CHECK(train(with_undo, true, SnapshotUndo{}) == expected);
}

TEST_CASE("an update that fails half-way is not done twice") {
  std::vector<float> w{1}, g{0};
  TrainState state;
  state.add("w", w, g);
  ThreadComm comm;
  Session session{state, OwnUpdate{[&](Step) {
                    w[0] -= 0.5f;
                    throw std::runtime_error{"half-way"};
                  }},
                  comm};
  CHECK(thrown<std::runtime_error>([&] { session.train(2, [](Step) {}); }) == "half-way");
  CHECK(thrown<StateError>([&] { session.train(2, [](Step) {}); }) ==
        "an exception left step 0 half updated; load a saved state and begin a new session");
}

TEST_CASE("an exception in after leaves the step committed") {
  Model m;
  ThreadComm comm;
  Session session{m.state, Sgd{}, comm};
  CHECK(thrown<std::runtime_error>([&] {
          session.train(
              5, [&](Step s) { return m.forward_backward(s, 0); },
              [](const Committed& c) {
                if (c.step == Step{1}) throw std::runtime_error{"no more paper"};
              });
        }) == "no more paper");
  CHECK(session.step() == Step{2});
  session.train(5, [&](Step s) { return m.forward_backward(s, 0); });
  CHECK(m.calls == 5);
  while (session.next(6)) {  // the old listener is gone
  }
}

TEST_CASE("in a group, the exception reaches that rank's caller, and the others recover") {
  std::mutex mutex;
  std::map<int, Hash128> hashes;
  std::atomic<int> caught{0};
  Hash128 expected{};
  on_ranks(3, [&](ThreadComm& comm) {
    Model m;
    Session session{m.state, Adam{}, comm, ReplicaRecovery{}};
    session.train(6, [&](Step s) { return m.forward_backward(s, comm.rank()); });
    if (comm.rank() == 0) expected = m.hash();
  });
  on_ranks(
      3,
      [&](ThreadComm& comm) {
        Model m;
        Session session{m.state, Adam{}, comm, ReplicaRecovery{}};
        try {
          session.train(6, [&](Step s) {
            if (s == Step{3} && comm.rank() == 1 && !comm.membership().replacement)
              throw std::runtime_error{"no data"};
            return m.forward_backward(s, comm.rank());
          });
        } catch (const std::runtime_error& e) {
          if (std::string{e.what()} == "no data") ++caught;
          throw;
        }
        std::lock_guard lock{mutex};
        hashes[comm.rank()] = m.hash();
      },
      [&](const comm::Outcome& o) {
        CHECK(o.finished);
        CHECK(o.deaths == 1);
        CHECK(o.restarts == 1);
        CHECK(caught == 1);
        CHECK(hashes.size() == 3);
        for (const auto& [rank, hash] : hashes) CHECK(hash == expected);
        hashes.clear();
        caught = 0;
      });
}

TEST_CASE("its words are the reason when it throws for everybody who takes its place") {
  on_ranks(
      2,
      [&](ThreadComm& comm) {
        Model m;
        Session session{m.state, Sgd{}, comm, ReplicaRecovery{}};
        session.train(6, [&](Step s) {
          if (s == Step{3} && comm.rank() == 1) throw std::runtime_error{"bad sample 17"};
          return m.forward_backward(s, comm.rank());
        });
      },
      [](const comm::Outcome& o) {
        CHECK(!o.finished);
        CHECK(o.reason.find("a poison step: 4 failures at step 3, which was not committed") == 0);
        CHECK(o.reason.find("rank 1 threw at step 3: bad sample 17") != std::string::npos);
        CHECK(o.step == Step{3});
      });
}

TEST_CASE("a step that fails on every rank is a poison step, however often the run begins anew") {
  for (int n : {1, 3}) {
    std::atomic<int> calls{0};
    on_ranks(
        n,
        [&](ThreadComm& comm) {
          Model m;
          Session session{m.state, Sgd{}, comm, ReplicaRecovery{}};
          session.train(9, [&](Step s) {
            if (s == Step{7}) {
              ++calls;
              throw std::runtime_error{"cannot read shard 17"};
            }
            return m.forward_backward(s, comm.rank());
          });
        },
        [n](const comm::Outcome& o) {
          CHECK(!o.finished);
          if (n == 1)
            CHECK(o.reason ==
                  "a poison step: 4 failures at step 7, which was not committed. rank 0 threw at "
                  "step 7: cannot read shard 17");
          else
            CHECK(o.reason.find("threw at step 7: cannot read shard 17") != std::string::npos);
        });
    if (n == 1) CHECK(calls == 8);  // simulated and not
    CHECK(calls <= 24);
  }
}

TEST_CASE("another last step on another rank is refused before the first commit") {
  for (bool open : {false, true}) {
    std::atomic<int> committed{0};
    on_ranks(
        3,
        [&](ThreadComm& comm) {
          Model m;
          Session session{m.state, Sgd{}, comm, ReplicaRecovery{}};
          const Step last{comm.rank() == 1 ? 5 : 4};
          if (open) {
            while (auto s = session.next(last)) m.forward_backward(*s, comm.rank());
          } else {
            session.train(
                last, [&](Step s) { return m.forward_backward(s, comm.rank()); },
                [&](const Committed&) { ++committed; });
          }
        },
        [](const comm::Outcome& o) {
          CHECK(!o.finished);
          CHECK(o.deaths == 0);
          CHECK(o.reason.find("rank 1 is to train until step 5 and rank 0 until step 4; give "
                              "train() or next() the same last step") != std::string::npos);
        });
    CHECK(committed == 0);
  }
  // One that has nothing to do at all never votes: those who miss it say so.
  comm::CoordinatorOptions options{.lease = 200ms, .timeout = 500ms};
  on_ranks(
      2,
      [&](ThreadComm& comm) {
        Model m;
        Session session{m.state, Sgd{}, comm, ReplicaRecovery{}};
        session.train(4 * comm.rank(), [&](Step s) { return m.forward_backward(s, comm.rank()); });
      },
      [](const comm::Outcome& o) {
        CHECK(!o.finished);
        CHECK(o.deaths == 0);
        CHECK(o.reason ==
              "rank 0 had its last step at step 0 and rank 1 goes on; give train() or next() the "
              "same last step on all ranks");
      },
      options);
}

TEST_CASE("a loop inside of a step function, a negative last step, nothing to train") {
  ThreadComm comm;
  Model m;
  Session session{m.state, Sgd{}, comm};
  auto step = [&](Step s) { return m.forward_backward(s, 0); };
  CHECK_THROWS_WITH_AS(session.train(3,
                                     [&](Step s) {
                                       session.train(3, step);
                                       return step(s);
                                     }),
                       doctest::Contains("train() and next() do not belong into a step function"),
                       StateError);
  CHECK_THROWS_AS(session.train(-5, step), OptionError);
  session.train(3, step);
  CHECK(session.step() == Step{3});
  TrainState nothing;
  CHECK_THROWS_WITH_AS((Session{nothing, Sgd{}, comm}), doctest::Contains("the state is empty"),
                       StateError);
}

// ---- a second train() ---------------------------------------------------------------------------

TEST_CASE("a worker that dies in a second train() is replaced, with the same bits") {
  // The first train() ends at its last step, or where it was asked to stop; 5 is the first step of
  // the second one.
  for (int last : {5, 100})
    for (int dies_at : {-1, 4, 5, 7}) {
      std::mutex mutex;
      std::vector<Hash128> hashes;
      on_ranks(
          3,
          [&](ThreadComm& comm) {
            Model m;
            Session session{m.state, Adam{}, comm, ReplicaRecovery{}};
            auto step = [&](Step s) {
              if (s == Step{dies_at} && comm.rank() == 1 && !comm.membership().replacement)
                throw comm::Killed{};
              if (s == Step{4} && last == 100) session.request_stop();
              return m.forward_backward(s, comm.rank());
            };
            session.train(last, step);
            session.train(9, step);
            CHECK(session.step() == Step{9});
            std::lock_guard lock{mutex};
            hashes.push_back(m.hash());
          },
          [&](const comm::Outcome& o) {
            CAPTURE(last);
            CAPTURE(dies_at);
            CHECK(o.finished);
            CHECK(o.reason == "");
            CHECK(o.restarts == (dies_at < 0 ? 0 : 1));
          });
      CHECK(hashes.size() == 6);
      for (const Hash128& h : hashes) CHECK(h == hashes[0]);
    }
}

// ---- state --------------------------------------------------------------------------------------

TEST_CASE("in debug builds gradients are poisoned before each call") {
  Model m;
  ThreadComm comm;
  Session session{m.state, Sgd{}, comm};
  session.train(2, [&](Step s) {
    for (float g : m.gw) {
      if (MEND_DEBUG)
        CHECK(std::bit_cast<std::uint32_t>(g) == 0xffffffff);
      else
        CHECK(!std::isnan(g));
    }
    return m.forward_backward(s, 0);
  });
}

TEST_CASE("save inside after writes the committed state, load brings it back") {
  mend_test::Scratch scratch;
  const std::string path = scratch / "best.safetensors";
  ThreadComm comm;
  Hash128 at_three{}, at_end{};
  {
    Model m;
    Session session{m.state, Momentum{}, comm};
    session.train(
        6, [&](Step s) { return m.forward_backward(s, 0); },
        [&](const Committed& c) {
          if (c.step != Step{2}) return;
          save(m.state, path);
          at_three = m.hash();
        });
    at_end = m.hash();
  }
  Model m;
  Session session{m.state, Momentum{}, comm};
  load(m.state, path);
  CHECK(m.state.step == 3);
  CHECK(m.state.applied == 3);
  CHECK(m.hash() == at_three);
}

TEST_CASE("loaded before a session is made, the run goes on from there with the same bits") {
  mend_test::Scratch scratch;
  const std::string path = scratch / "half.safetensors";
  ThreadComm comm;
  auto step = [](Model& m) { return [&m](Step s) { return m.forward_backward(s, 0); }; };
  Model whole;
  {
    Session session{whole.state, Sgd{.lr = [](Step s) { return 0.1 / double(s.value() + 1); }},
                    comm};
    session.train(3, step(whole));
    save(whole.state, path);
    session.train(6, step(whole));
  }
  Model half;
  load(half.state, path);
  Session session{half.state, Sgd{.lr = [](Step s) { return 0.1 / double(s.value() + 1); }}, comm};
  CHECK(session.step() == Step{3});
  session.train(6, step(half));
  CHECK(half.hash() == whole.hash());
  CHECK(half.state.applied == 6);
}

TEST_CASE("a run with per-rank state goes on from one file per rank, and from no other rank's") {
  mend_test::Scratch scratch;
  auto path = [&](int rank) { return scratch / std::to_string(rank); };
  std::vector<std::uint64_t> whole(3), half(3);
  auto run = [&](ThreadComm& comm, Step last, bool resume) {
    std::vector<float> w(10, 1), g(10);
    std::uint64_t noise = 1 + static_cast<std::uint64_t>(comm.rank());
    TrainState state;
    state.add("w", w, g).add_scalar("noise", noise, PerRank{});
    Session session{state, Sgd{}, comm, ReplicaRecovery{}};
    CHECK(state.rank == comm.rank());
    CHECK(state.size == 3);
    if (resume) {
      std::string text =
          thrown<StateError>([&] { load(state, path((session.rank() + 1) % session.size())); });
      CHECK(text.find("'noise' is registered per rank") != text.npos);
      CHECK(state.step == 0);
      load(state, path(session.rank()));
    }
    session.train(
        last,
        [&](Step) {
          noise = noise * 6364136223846793005u + 1442695040888963407u;
          g.assign(10, float(noise >> 40));
        },
        [&](const Committed& done) {
          if (done.step == Step{2}) save(state, path(session.rank()));
        });
    return noise;
  };
  on_ranks(3, [&](ThreadComm& comm) {
    whole[static_cast<std::size_t>(comm.rank())] = run(comm, 6, false);
  });
  on_ranks(3, [&](ThreadComm& comm) {
    half[static_cast<std::size_t>(comm.rank())] = run(comm, 6, true);
  });
  CHECK(half == whole);
}

TEST_CASE("the bytes that mend holds beside the trainer's are told") {
  on_ranks(3, [&](ThreadComm& comm) {
    std::vector<float> w(1000), g(1000), mean(100), field(50);
    std::uint64_t rng = 1;
    TrainState state;
    state.add("w", w, g)
        .add_buffer("mean", mean, PerRank{})
        .add_buffer("field", field, {}, {.before_image = false})
        .add_scalar("rng", rng, PerRank{});
    Session session{state, Sgd{}, comm, ReplicaRecovery{}};
    session.train(2, [&](Step) { g.assign(1000, 1); });
    CHECK(session.before_image_bytes().value() == 400 + 8);
    CHECK(session.partner_copy_bytes().value() == 400 + 8 + 16);  // one partner's, with its lengths
  });
  Model m;
  ThreadComm alone;
  Session session{m.state, Sgd{}, alone};
  CHECK(session.before_image_bytes().value() == 8);
  CHECK(session.partner_copy_bytes().value() == 0);
}

// ---- a communicator of the user's own -----------------------------------------------------------

TEST_CASE("rank, size, agree and all_reduce are enough") {
  Hash128 expected{};
  on_ranks(3, [&](ThreadComm& comm) {
    Model m;
    Session session{m.state, Adam{}, comm, ReplicaRecovery{}};
    session.train(5, [&](Step s) { return m.forward_backward(s, comm.rank()); });
    if (comm.rank() == 0) expected = m.hash();
  });
  meet(3, [&](Own& comm) {
    Model m;
    Session session{m.state, Adam{}, comm};
    CHECK(session.rank() == comm.rank());
    CHECK(session.size() == 3);
    session.train(
        5,
        [&](Step s) {
          float loss = m.forward_backward(s, comm.rank());
          session.ready("w");
          return loss;
        },
        [&](const Committed& c) { CHECK(c.loss > 0); });
    CHECK(m.hash() == expected);
    CHECK(comm.agreements == 5);
  });
}

TEST_CASE("a rank that refuses takes the step from all of them") {
  meet(2, [&](Own& comm) {
    Model m;
    Session session{m.state, Sgd{}, comm};
    CHECK(thrown<CommError>([&] {
            session.train(5, [&](Step s) {
              comm.refuse = s == Step{2} && comm.rank() == 1;
              return m.forward_backward(s, comm.rank());
            });
          }).find("another rank refused the step") == 0);
    CHECK(session.step() == Step{2});
    CHECK(m.state.step == 2);
  });
}

TEST_CASE("a wish to stop travels over it, too") {
  meet(2, [&](Own& comm) {
    Model m;
    Session session{m.state, Sgd{}, comm};
    session.train(50, [&](Step s) {
      if (s == Step{3} && comm.rank() == 1) session.request_stop();
      return m.forward_backward(s, comm.rank());
    });
    CHECK(session.step() == Step{4});
  });
}

}  // namespace
