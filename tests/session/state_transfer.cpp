#include <mend/session/state_transfer.hpp>

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/ranks.hpp"

namespace {

using namespace mend;
using namespace mend::comm;
using namespace mend_test;
using Comm = Ranks::Comm;
using What = StateTransfer::What;

constexpr std::size_t chunk = StateTransfer::chunk;
constexpr std::int64_t version = 12;

Bytes bytes_of(std::string_view text) {
  ByteView v = std::as_bytes(std::span{text});
  return {v.begin(), v.end()};
}

// What one member holds; filled by seed, so that equal seeds are replicas.
struct Member {
  std::vector<float> large, large_gradient, small, small_gradient, empty;
  std::vector<double> mean{0, 0};
  std::vector<std::uint8_t> own;
  std::int64_t position = 0;
  std::string loader, loaded;
  TrainState state;
  std::unique_ptr<BucketPlan> plan;
  std::unique_ptr<PartnerCopies> copies;
  std::unique_ptr<StateTransfer> transfer;

  explicit Member(int seed, std::size_t floats = chunk * 5 / 8, std::string what_it_saves = "")
      : large(floats),
        large_gradient(floats),
        small(10),
        small_gradient(10),
        own(3),
        loader{what_it_saves} {
    for (std::size_t i = 0; i < floats; ++i) {
      large[i] = static_cast<float>(i % 1013) * static_cast<float>(seed);
      large_gradient[i] = static_cast<float>(i % 17 + 1) * static_cast<float>(seed);
    }
    for (float& x : small) x = static_cast<float>(seed) / 3;
    mean = {0.5 * seed, 1.5 * seed};
    own = {static_cast<std::uint8_t>(seed), 1, 2};
    position = 1000 * seed;
    state.add("large", large, large_gradient)
        .add("tied", large, large_gradient)
        .add("small", small, small_gradient)
        .add("empty", empty, empty)
        .add_buffer("mean", mean)
        .add_buffer("own", own, PerRank{})
        .add_scalar("position", position)
        .add_state(
            "loader", [this] { return bytes_of(loader); },
            [this](ByteView b) {
              loader.assign(reinterpret_cast<const char*>(b.data()), b.size());
              loaded += "+";
            },
            Replicated{});
    plan = std::make_unique<BucketPlan>(state);
    copies = std::make_unique<PartnerCopies>(state);
    transfer = std::make_unique<StateTransfer>(state, *plan, *copies);
  }
  [[nodiscard]] bool same_state(const Member& o) const {
    return large == o.large && small == o.small && mean == o.mean && position == o.position &&
           loader == o.loader;
  }
};

// Answers what peers ask for, until one of them sends a message. answer: in place of the member's.
struct Served {
  int requests = 0;
  std::map<std::pair<int, std::uint32_t>, int> pieces;  // by what and index
};
Served serve(Comm& comm, Member& m, const std::function<bool(Comm&, const Frame&)>& answer = {}) {
  Served served;
  for (Deadline end = after(comm.now(), 60s); comm.now() < end;) {
    std::optional<Frame> f = comm.next_frame(end);
    if (!f) break;
    if (comm.is(*f, Kind::message)) return served;
    if (!comm.is(*f, Kind::request)) continue;
    ++served.requests;
    ++served.pieces[{f->header.flags, f->header.tag}];
    if (answer && answer(comm, *f)) continue;
    m.transfer->take_request(comm, *std::move(f), true);
  }
  throw CommError{"nobody said that it is over"};
}
void release(Comm& comm) {  // the sources
  for (int r = 0; r + 1 < comm.size(); ++r) comm.channel(r).send({});
}
// Frames beside chunks that do not matter here.
constexpr auto other = [](Frame) {};

template <class Source, class Asker>
void exchange(int ranks, Source&& source, Asker&& asker) {
  for (bool simulated : {true, false}) {
    Ranks cluster{.size = ranks, .options = {.simulated = simulated, .timeout = 20s}};
    bool good = cluster.run([&](Comm& comm) {
      comm.barrier();
      // A request that comes while a source is still in the barrier would wait for a collective.
      if (comm.rank() + 1 < comm.size()) {
        comm.channel(comm.size() - 1).send({});
        source(comm);
      } else {
        for (int r = 0; r + 1 < comm.size(); ++r) (void)comm.channel(r).receive({});
        asker(comm);
        release(comm);
      }
    });
    for (const auto& [rank, what] : cluster.failures) MESSAGE("rank " << rank << ": " << what);
    CHECK(good);
  }
}

// ---- hashes -------------------------------------------------------------------------------------

TEST_CASE("one hash per entry, of meta and of all; zero for what does not travel") {
  Member a{1}, b{1}, c{2};
  std::vector<Hash128> hashes = a.transfer->hash(bytes_of("meta"));
  REQUIRE(hashes.size() == a.state.entries().size() + 2);
  CHECK(hashes == b.transfer->hash(bytes_of("meta")));
  CHECK(hashes[0] == hash_bytes(std::as_bytes(std::span{a.large})));
  CHECK(hashes[1] == Hash128{});  // tied
  CHECK(hashes[5] == Hash128{});  // per rank
  CHECK(hashes[8] == hash_bytes(bytes_of("meta")));
  std::vector<Hash128> others = c.transfer->hash(bytes_of("meta"));
  for (std::size_t i : {0, 2, 4, 6, 9}) CHECK(hashes[i] != others[i]);
  CHECK(a.transfer->hash(bytes_of("mete")).back() != hashes.back());
  b.own[0] = 99;  // differs from rank to rank anyway
  CHECK(b.transfer->hash(bytes_of("meta")) == hashes);
  b.small[3] = -0.0f;
  b.small[4] = 0;
  Hash128 negative = b.transfer->hash({})[2];
  b.small[3] = 0;
  CHECK(b.transfer->hash({})[2] != negative);  // bits, not values
}

// ---- whole states -------------------------------------------------------------------------------

TEST_CASE("a replacement gets everything that is replicated, from several sources at once") {
  std::array<Served, 2> served;
  exchange(
      3,
      [&](Comm& comm) {
        Member m{1, chunk * 5 / 8, std::string(chunk + 5, 'l')};
        (void)m.transfer->hash(bytes_of("the meta"));
        served[static_cast<std::size_t>(comm.rank())] = serve(comm, m);
      },
      [&](Comm& comm) {
        Member m{7}, reference{1, chunk * 5 / 8, std::string(chunk + 5, 'l')};
        Bytes meta = m.transfer->fetch_state(comm, version, {0, 1}, other);
        CHECK(meta == bytes_of("the meta"));
        CHECK(m.same_state(reference));
        CHECK(m.own[0] == 7);  // its own stays
        CHECK(m.loaded == "+");
        CHECK(m.large_gradient[5] == Member{7}.large_gradient[5]);
        std::size_t bytes = m.large.size() * 4 + 40 + 16 + 8 + chunk + 5 + 8;
        CHECK(m.transfer->received() == bytes);
        CHECK(m.transfer->hash(meta) == reference.transfer->hash(meta));
      });
  for (const Served& s : served)
    CHECK(s.requests >= 2);  // a table, and what it was fast enough for
  for (const Served& s : served) CHECK(s.pieces.count({static_cast<int>(What::item), 1}) == 0);
}

TEST_CASE("what is asked before a member is whole is answered as soon as it is") {
  bool early = false;
  exchange(
      2,
      [&](Comm& comm) {
        Member m{1};
        std::optional<Frame> f = comm.next_frame(after(comm.now(), 20s));
        REQUIRE(f);
        early = comm.is(*f, Kind::request);
        m.transfer->take_request(comm, *std::move(f), false);
        (void)m.transfer->hash(bytes_of("m"));
        m.transfer->serve_waiting(comm);
        (void)serve(comm, m);
      },
      [&](Comm& comm) {
        Member m{7};
        (void)m.transfer->fetch_state(comm, version, {0}, other);
        CHECK(m.same_state(Member{1}));
      });
  CHECK(early);
}

TEST_CASE("requests of a generation that is over are forgotten") {
  Member m{1};
  Ranks cluster{.size = 1, .options = {.simulated = true}};
  REQUIRE(cluster.run([&](Comm& comm) {
    comm.barrier();
    Frame f;
    f.from = 0;
    m.transfer->take_request(comm, std::move(f), false);
    m.transfer->forget_requests();
    m.transfer->serve_waiting(comm);  // would throw: the request has no body
  }));
}

TEST_CASE("an interrupted transfer goes on where it ended, if it is of the same version") {
  struct Interrupt {};
  for (bool same : {true, false}) {
    std::uint64_t first = 0, all = 0;
    exchange(
        3,
        [&](Comm& comm) {
          Member m{1, 4 * chunk / 4};  // four chunks
          (void)m.transfer->hash(bytes_of("m"));
          // The first source says something else in between: what interrupts the asker.
          int n = 0;
          (void)serve(comm, m, [&](Comm& c, const Frame& f) {
            if (f.header.flags == static_cast<int>(What::item) && f.header.tag == 0 &&
                comm.rank() == 0 && ++n == 2)
              c.post_copy(2, c.header(Kind::vote), {});
            return false;
          });
        },
        [&](Comm& comm) {
          Member m{7, 4 * chunk / 4};
          bool interrupted = false;
          try {
            (void)m.transfer->fetch_state(comm, version, {0, 1}, [](Frame) { throw Interrupt{}; });
          } catch (const Interrupt&) {
            interrupted = true;
          }
          CHECK(interrupted);
          first = m.transfer->received();
          (void)m.transfer->fetch_state(comm, same ? version : version + 1, {0, 1}, other);
          all = m.transfer->received();
          CHECK(m.same_state(Member{1, 4 * chunk / 4}));
        });
    std::uint64_t whole = 4 * chunk + 40 + 16 + 8 + 1;
    CHECK(first >= chunk);
    CHECK(first < whole);
    CHECK(all == (same ? whole : whole + first));
  }
}

TEST_CASE("an old attempt's chunks do not count for a new version") {
  exchange(
      2,
      [&](Comm& comm) {
        Member m{1};
        (void)m.transfer->hash(bytes_of("m"));
        (void)serve(comm, m, [&](Comm& c, const Frame& f) {  // first, one of an older version
          Header h = f.header;
          h.kind = static_cast<std::uint16_t>(Kind::chunk);
          h.step = version - 1;
          c.post_copy(f.from, h, Bytes(100));
          return false;
        });
      },
      [&](Comm& comm) {
        Member m{7};
        (void)m.transfer->fetch_state(comm, version, {0}, other);
        CHECK(m.same_state(Member{1}));
      });
}

// ---- buckets and copies -------------------------------------------------------------------------

TEST_CASE("missing buckets come from those who have them, into place") {
  std::array<Served, 2> served;
  exchange(
      3,
      [&](Comm& comm) {
        Member m{1};
        for (std::size_t i = 0; i < 10; ++i) m.small_gradient[i] = static_cast<float>(i);
        m.plan->pack(1);
        m.transfer->closing = std::as_bytes(std::span{m.mean});
        (void)m.transfer->hash({});
        served[static_cast<std::size_t>(comm.rank())] = serve(comm, m);
      },
      [&](Comm& comm) {
        Member m{7};
        REQUIRE(m.plan->size() == 2);
        std::array<double, 2> closing{};
        std::vector<bool> have;
        std::vector<StateTransfer::Piece> pieces;
        for (std::uint32_t b = 0; b < 2; ++b)
          pieces.push_back({What::bucket, b, (*m.plan)[b].data, (*m.plan)[b].bytes(), {0, 1}});
        pieces.push_back({What::bucket, 2, reinterpret_cast<std::byte*>(closing.data()), 16, {1}});
        m.transfer->fetch(comm, version, pieces, have, other);
        Member reference{1};
        CHECK(m.large_gradient == reference.large_gradient);
        CHECK(m.small_gradient[7] == 7);
        CHECK(closing == std::array<double, 2>{0.5, 1.5});
        CHECK(have == std::vector<bool>(5, true));  // three chunks, one, one
        CHECK(m.large[3] == Member{7}.large[3]);
      });
  CHECK(served[0].requests > 0);
  CHECK(served[1].requests > 0);
}

TEST_CASE("a holder gives buckets before it is whole, and counts who has them all") {
  std::array<int, 3> thanks{};
  exchange(
      3,
      [&](Comm& comm) {
        if (comm.rank() == 1) {
          (void)comm.next_frame(after(comm.now(), 60s));  // released
          return;
        }
        Member m{1};
        auto take = [&](Kind kind) {  // what comes meanwhile, up to the next frame of this kind
          for (Deadline end = after(comm.now(), 20s); comm.now() < end;)
            if (std::optional<Frame> f = comm.next_frame(end)) {
              bool last = comm.is(*f, kind);
              if (comm.is(*f, Kind::request)) m.transfer->take_request(comm, *std::move(f), false);
              if (last) return;
            }
        };
        take(Kind::request);  // kept: it has no bucket yet
        m.transfer->serve_buckets(comm);
        take(Kind::message);
        thanks[0] = m.transfer->thanked();
        m.transfer->forget_requests();
        thanks[1] = m.transfer->thanked();
        take(Kind::message);  // a bucket that is asked for now is not answered any more
        thanks[2] = 1;
      },
      [&](Comm& comm) {
        Member m{7};
        std::vector<bool> have;
        m.transfer->fetch(comm, version,
                          {{What::bucket, 0, (*m.plan)[0].data, (*m.plan)[0].bytes(), {0}}}, have,
                          other);
        CHECK(m.large_gradient == Member{1}.large_gradient);
        StateTransfer::request(comm, 0, version, What::thanks, 0, 0, 0);
        StateTransfer::request(comm, 0, version, What::item, 0, 0, 4);  // of an unfinished state
        CHECK(!comm.next_frame(after(comm.now(), 200ms)));
        comm.channel(0).send({});
        StateTransfer::request(comm, 0, version, What::bucket, 0, 0, 4);
        CHECK(!comm.next_frame(after(comm.now(), 200ms)));
      });
  CHECK(thanks == std::array<int, 3>{1, 0, 1});
}

TEST_CASE("a fetch asks only for the chunks that it has not") {
  Served served;
  exchange(
      2,
      [&](Comm& comm) {
        Member m{1};
        (void)m.transfer->hash({});
        served = serve(comm, m);
      },
      [&](Comm& comm) {
        Member m{7};
        std::vector<bool> have{true, false, true};
        std::size_t bytes = (*m.plan)[0].bytes();
        m.transfer->fetch(comm, version, {{What::bucket, 0, (*m.plan)[0].data, bytes, {0}}}, have,
                          other);
        CHECK(m.large_gradient[0] == Member{7}.large_gradient[0]);
        CHECK(m.large_gradient[chunk / 4] == Member{1}.large_gradient[chunk / 4]);
        CHECK(m.large_gradient.back() == Member{7}.large_gradient.back());
      });
  CHECK(served.requests == 1);
}

TEST_CASE("a partner's copy is told of in the table and fetched by whose it is") {
  exchange(
      2,
      [&](Comm& comm) {
        Member m{1};
        m.copies->hold(5, version, Bytes(chunk + 3, std::byte{42}));
        (void)m.transfer->hash({});
        (void)serve(comm, m);
      },
      [&](Comm& comm) {
        Member m{7};
        StateTransfer::Table none = m.transfer->fetch_table(comm, 0, 6, version, other);
        CHECK(!none.copy);
        CHECK(none.items.size() == m.state.entries().size() + 1);
        CHECK(none.items[0].first == m.large.size() * 4);
        StateTransfer::Table table = m.transfer->fetch_table(comm, 0, 5, version, other);
        REQUIRE(table.copy);
        REQUIRE(table.copy->first == chunk + 3);
        Bytes copy(chunk + 3);
        std::vector<bool> have;
        m.transfer->fetch(comm, version, {{What::copy, 0, copy.data(), copy.size(), {0}, 5}}, have,
                          other);
        CHECK(copy == Bytes(chunk + 3, std::byte{42}));
        CHECK(hash_bytes(copy) == table.copy->second);
      });
}

// ---- what is not right --------------------------------------------------------------------------

// The asker's error when the source answers in its own way.
std::string fails(const std::function<bool(Comm&, const Frame&)>& answer, int seed = 1,
                  std::size_t floats = chunk * 5 / 8) {
  std::string text;
  exchange(
      2,
      [&](Comm& comm) {
        Member m{seed, floats};
        (void)m.transfer->hash(bytes_of("m"));
        (void)serve(comm, m, answer);
      },
      [&](Comm& comm) {
        Member m{7};
        try {
          (void)m.transfer->fetch_state(comm, version, {0}, other);
        } catch (const CommError& e) {
          text = e.what();
        }
        CHECK(m.loaded == "");  // nothing is loaded that was not verified
      });
  return text;
}
// Sends `body` as an answer, with a good or a bad checksum.
void send(Comm& comm, const Frame& asked, Bytes body, bool good = true) {
  Header h = asked.header;
  h.kind = static_cast<std::uint16_t>(Kind::chunk);
  std::uint64_t sum = hash_bytes(body).lo ^ (good ? 0 : 1);
  auto* p = reinterpret_cast<const std::byte*>(&sum);
  body.insert(body.end(), p, p + 8);
  comm.post_copy(asked.from, h, body);
}

TEST_CASE("a chunk that was damaged on its way is found") {
  for (std::size_t size : {std::size_t{0}, std::size_t{8}, chunk})
    CHECK(fails([&](Comm& comm, const Frame& f) {
            if (f.header.flags != static_cast<int>(What::item) || f.header.tag != 0) return false;
            send(comm, f, Bytes(size), false);
            return true;
          }).find("a chunk of state from rank 0 was damaged on its way") == 0);
  CHECK(fails([&](Comm& comm, const Frame& f) {  // too short for a checksum
          if (f.header.flags != static_cast<int>(What::table)) return false;
          Header h = f.header;
          h.kind = static_cast<std::uint16_t>(Kind::chunk);
          comm.post_copy(f.from, h, Bytes(3));
          return true;
        })
            .find("was damaged on its way") != std::string::npos);
}

TEST_CASE("a chunk of another size, or bytes that are not those of the hash, are refused") {
  CHECK(fails([&](Comm& comm, const Frame& f) {
          if (f.header.flags != static_cast<int>(What::item) || f.header.tag != 0) return false;
          send(comm, f, Bytes(100));
          return true;
        }) == "rank 0 sent a chunk of another size");
  CHECK(fails([&](Comm& comm, const Frame& f) {
          if (f.header.flags != static_cast<int>(What::item) || f.header.tag != 2) return false;
          send(comm, f, Bytes(40));
          return true;
        }) == "what was received of 'small' does not have the hash that its source states");
  CHECK(fails([&](Comm& comm, const Frame& f) {
          if (f.header.flags != static_cast<int>(What::meta)) return false;
          send(comm, f, Bytes(1));
          return true;
        }) == "what was received of the step does not have the hash that its source states");
}

TEST_CASE("a source with other entries is refused before a byte is written") {
  CHECK(fails({}, 1, chunk) == "a source holds 'large' in another size");
  CHECK(fails([&](Comm& comm, const Frame& f) {
          if (f.header.flags != static_cast<int>(What::table)) return false;
          send(comm, f, std::move(ByteWriter{}.put(std::uint32_t{0}).put(false)).take());
          return true;
        }) == "a source registered another number of entries");
  for (std::uint32_t count : {5u, 0xffffffffu})  // a table that is shorter than it says
    CHECK(fails([&](Comm& comm, const Frame& f) {
            if (f.header.flags != static_cast<int>(What::table)) return false;
            send(comm, f, std::move(ByteWriter{}.put(count)).take());
            return true;
          }).find("shorter than") != std::string::npos);
}

TEST_CASE("who asks for more than there is, or for what nobody has, gets no answer") {
  struct Ask {
    What what;
    std::uint32_t index;
    std::size_t offset, size;
    Incarnation heir_of = 5;
  };
  const Ask asks[] = {{What::item, 2, 41, 0},
                      {What::item, 2, 8, 33},
                      {What::item, 2, 8, ~std::size_t{0} - 7},
                      {What::item, 1000, 0, 1},
                      {What::bucket, 1, 0, 1000},
                      {What::bucket, 77, 0, 1},
                      {What::meta, 0, 2, 0},
                      {What::copy, 0, 4, 1},
                      {What::copy, 0, 0, 1, 6},
                      {static_cast<What>(999), 0, 0, 1}};
  int requests = 0;
  exchange(
      2,
      [&](Comm& comm) {
        Member m{1};
        m.copies->hold(5, version, Bytes(4));
        (void)m.transfer->hash(bytes_of("m"));
        requests = serve(comm, m).requests;
      },
      [&](Comm& comm) {
        for (const Ask& a : asks)
          StateTransfer::request(comm, 0, version, a.what, a.index, a.offset, a.size, a.heir_of);
        CHECK(!comm.next_frame(after(comm.now(), 300ms)));
        Member m{7};  // and it serves on
        (void)m.transfer->fetch_state(comm, version, {0}, other);
        CHECK(m.same_state(Member{1}));
      });
  CHECK(requests > static_cast<int>(std::size(asks)));
}

TEST_CASE("a source that says nothing is given up at the timeout") {
  Ranks cluster{.size = 2, .options = {.simulated = true, .timeout = 5s}};
  std::string text;
  Time took{};
  REQUIRE(cluster.run([&](Comm& comm) {
    comm.barrier();
    if (comm.rank() == 0) {
      for (Deadline end = after(comm.now(), 60s); comm.now() < end;) (void)comm.watch(end);
      return;
    }
    Member m{7};
    Time begin = comm.now();
    try {
      (void)m.transfer->fetch_state(comm, version, {0}, other);
    } catch (const PeerLost& e) {
      text = e.what();
      CHECK(int{*e.rank()} == 0);
    }
    took = comm.now() - begin;
  }));
  CHECK(text.find("a source of state was silent") == 0);
  CHECK(took >= 5s);
  CHECK(took < 6s);
}

}  // namespace
