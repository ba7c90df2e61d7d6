#include <mend/comm/group.hpp>

#include <mend/kernel/host/half.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "comm/ranks.hpp"

namespace {

using namespace mend;
using namespace mend::comm;
using namespace mend_test;
using Comm = Ranks::Comm;

// ---- what a reduction must give, computed another way -------------------------------------------

constexpr DType floating[] = {DType::f32, DType::f64, DType::bf16, DType::f16};
constexpr DType integers[] = {DType::i8,  DType::u8,  DType::i16, DType::u16,
                              DType::i32, DType::u32, DType::i64, DType::u64};

// One element of `rank`'s contribution, and the joined element.
template <class T>
T element(Random& random) {
  if constexpr (std::is_floating_point_v<T>)
    return static_cast<T>(random.number()) *
           (1 + static_cast<T>(random.next() % 1000) * std::numeric_limits<T>::epsilon());
  else
    return static_cast<T>(random.next());
}
template <class T>
T joined(const std::vector<T>& by_rank, Reduction reduction) {
  if constexpr (std::is_floating_point_v<T>) {
    T sum = by_rank[0];
    for (std::size_t r = 1; r < by_rank.size(); ++r) sum = sum + by_rank[r];
    return reduction == Reduction::mean ? sum / static_cast<T>(by_rank.size()) : sum;
  } else {
    std::uint64_t sum = 0;  // wraps, as the element does
    for (T x : by_rank) sum += static_cast<std::uint64_t>(x);
    return static_cast<T>(sum);
  }
}

struct Case {
  DType dtype;
  std::size_t count;
  Reduction reduction;
  std::vector<Bytes> inputs{};  // by rank
  Bytes expected{};
};

template <class T>
void fill(Case& c, int ranks, Random& random) {
  auto n = static_cast<std::size_t>(ranks);
  c.inputs.assign(n, Bytes(c.count * sizeof(T)));
  c.expected.assign(c.count * sizeof(T), std::byte{0});
  for (std::size_t i = 0; i < c.count; ++i) {
    std::vector<T> by_rank;
    for (std::size_t r = 0; r < n; ++r) {
      by_rank.push_back(element<T>(random));
      std::memcpy(c.inputs[r].data() + i * sizeof(T), &by_rank[r], sizeof(T));
    }
    T want = joined(by_rank, c.reduction);
    std::memcpy(c.expected.data() + i * sizeof(T), &want, sizeof(T));
  }
}
// Halves are summed in float and rounded once at the end.
void fill_half(Case& c, int ranks, Random& random) {
  bool bf16 = c.dtype == DType::bf16;
  auto n = static_cast<std::size_t>(ranks);
  c.inputs.assign(n, Bytes(c.count * 2));
  c.expected.assign(c.count * 2, std::byte{0});
  for (std::size_t i = 0; i < c.count; ++i) {
    std::vector<float> by_rank;
    for (std::size_t r = 0; r < n; ++r) {
      float x = element<float>(random);
      std::uint16_t half = bf16 ? kernel::float_to_bf16(x) : kernel::float_to_f16(x);
      std::memcpy(c.inputs[r].data() + 2 * i, &half, 2);
      by_rank.push_back(bf16 ? kernel::bf16_to_float(half) : kernel::f16_to_float(half));
    }
    float sum = joined(by_rank, c.reduction);
    std::uint16_t want = bf16 ? kernel::float_to_bf16(sum) : kernel::float_to_f16(sum);
    std::memcpy(c.expected.data() + 2 * i, &want, 2);
  }
}
Case make_case(DType dtype, std::size_t count, Reduction reduction, int ranks, Random& random) {
  Case c{dtype, count, reduction};
  switch (dtype) {
    case DType::f32: fill<float>(c, ranks, random); break;
    case DType::f64: fill<double>(c, ranks, random); break;
    case DType::bf16:
    case DType::f16: fill_half(c, ranks, random); break;
    case DType::i8: fill<std::int8_t>(c, ranks, random); break;
    case DType::u8: fill<std::uint8_t>(c, ranks, random); break;
    case DType::i16: fill<std::int16_t>(c, ranks, random); break;
    case DType::u16: fill<std::uint16_t>(c, ranks, random); break;
    case DType::i32: fill<std::int32_t>(c, ranks, random); break;
    case DType::u32: fill<std::uint32_t>(c, ranks, random); break;
    case DType::i64: fill<std::int64_t>(c, ranks, random); break;
    default: fill<std::uint64_t>(c, ranks, random); break;
  }
  return c;
}

// Every dtype and reduction, each empty, of one element, within a frame, of several with a rest.
std::vector<Case> all_cases(int ranks) {
  Random random{static_cast<std::uint64_t>(ranks)};
  std::vector<Case> cases;
  for (std::size_t count : {37, 0, 1, 301}) {
    for (DType d : floating) {
      cases.push_back(make_case(d, count, Reduction::mean, ranks, random));
      cases.push_back(make_case(d, count, Reduction::sum, ranks, random));
    }
    for (DType d : integers) cases.push_back(make_case(d, count, Reduction::sum, ranks, random));
  }
  return cases;
}

std::span<std::byte> writable(Bytes& b) { return {b.data(), b.size()}; }
template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  ByteView v = std::as_bytes(std::span{values});
  return {v.begin(), v.end()};
}
// What a rank that throws says, in place of the end of its worker.
template <class F>
std::string said(F&& f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return {};
}

// ---- reductions ---------------------------------------------------------------------------------

TEST_CASE("all_reduce joins in rank order, the same bits on every rank") {
  for_each_cluster([](Ranks& ranks) {
    std::vector<Case> cases = all_cases(ranks.size);
    std::vector<std::vector<Bytes>> results(static_cast<std::size_t>(ranks.size));
    std::vector<std::vector<std::size_t>> done(results.size());
    bool good = ranks.run([&](Comm& comm) {
      auto me = static_cast<std::size_t>(comm.rank());
      std::vector<Bytes> mine;
      for (const Case& c : cases) mine.push_back(c.inputs[me]);
      std::vector<Buffer> buffers;
      for (std::size_t i = 0; i < cases.size(); ++i)
        buffers.push_back({mine[i].data(), cases[i].count, cases[i].dtype, cases[i].reduction,
                           static_cast<std::uint32_t>(i)});
      comm.all_reduce(buffers, [&](std::size_t i) {
        done[me].push_back(i);
        // What is reported done is complete here and now.
        if (mine[i] != cases[i].expected) done[me].push_back(cases.size());
      });
      results[me] = std::move(mine);
    });
    REQUIRE(good);
    for (std::size_t r = 0; r < results.size(); ++r) {
      for (std::size_t i = 0; i < cases.size(); ++i) {
        CAPTURE(ranks.size);
        CAPTURE(ranks.options.seed);
        CAPTURE(r);
        CAPTURE(i);
        CHECK(results[r][i] == cases[i].expected);
      }
      // Once each, in their order; what is empty comes first.
      std::vector<std::size_t> order;
      if (ranks.size > 1)
        for (std::size_t i = 0; i < cases.size(); ++i)
          if (cases[i].count == 0) order.push_back(i);
      for (std::size_t i = 0; i < cases.size(); ++i)
        if (ranks.size == 1 || cases[i].count != 0) order.push_back(i);
      CHECK(done[r] == order);
    }
  });
}

TEST_CASE("the order of ranks shows in the bits of the test's own data") {
  for (DType d : floating) {
    Random random{7};
    Case c = make_case(d, 500, Reduction::sum, 4, random);
    Bytes backwards;
    if (d == DType::f64) {
      std::vector<double> sums(c.count);
      for (std::size_t i = 0; i < c.count; ++i) {
        for (std::size_t r = 4; r-- > 0;) {
          double x;
          std::memcpy(&x, c.inputs[r].data() + 8 * i, 8);
          sums[i] = r == 3 ? x : sums[i] + x;
        }
      }
      backwards = bytes_of(sums);
    } else if (d == DType::f32) {
      std::vector<float> sums(c.count);
      for (std::size_t i = 0; i < c.count; ++i) {
        for (std::size_t r = 4; r-- > 0;) {
          float x;
          std::memcpy(&x, c.inputs[r].data() + 4 * i, 4);
          sums[i] = r == 3 ? x : sums[i] + x;
        }
      }
      backwards = bytes_of(sums);
    } else {  // rounding to half after every addition is what must not happen
      bool bf16 = d == DType::bf16;
      std::vector<std::uint16_t> sums(c.count);
      for (std::size_t i = 0; i < c.count; ++i) {
        for (std::size_t r = 0; r < 4; ++r) {
          std::uint16_t x;
          std::memcpy(&x, c.inputs[r].data() + 2 * i, 2);
          auto wide = [&](std::uint16_t h) {
            return bf16 ? kernel::bf16_to_float(h) : kernel::f16_to_float(h);
          };
          float sum = r == 0 ? wide(x) : wide(sums[i]) + wide(x);
          sums[i] = bf16 ? kernel::float_to_bf16(sum) : kernel::float_to_f16(sum);
        }
      }
      backwards = bytes_of(sums);
    }
    CHECK(backwards != c.expected);
  }
}

TEST_CASE("infinities stay, and every NaN becomes the one quiet NaN on every rank") {
  for_each_cluster([](Ranks& ranks) {
    if (ranks.size == 1) return;
    const float inf = std::numeric_limits<float>::infinity();
    std::vector<std::vector<float>> results(static_cast<std::size_t>(ranks.size));
    REQUIRE(ranks.run([&](Comm& comm) {
      auto payload = std::bit_cast<float>(0xffc12300u + static_cast<unsigned>(comm.rank()));
      std::vector<float> v{1, payload, inf, comm.rank() == 0 ? inf : -inf};
      comm.all_reduce(std::span{v});
      results[static_cast<std::size_t>(comm.rank())] = v;
    }));
    for (const auto& v : results) {
      CHECK(v[0] == 1);
      CHECK(std::bit_cast<std::uint32_t>(v[1]) == 0x7fc00000);
      CHECK(v[2] == inf);
      CHECK(std::bit_cast<std::uint32_t>(v[3]) == 0x7fc00000);
    }
  });
}

TEST_CASE("reduce_scatter leaves each rank its block of the same result") {
  for_each_cluster([](Ranks& ranks) {
    auto n = static_cast<std::size_t>(ranks.size);
    for (DType d : {DType::f32, DType::f64, DType::bf16, DType::i32})
      for (std::size_t block : {0, 1, 150}) {
        Random random{block};
        Reduction reduction = is_floating(d) ? Reduction::mean : Reduction::sum;
        Case c = make_case(d, n * block, reduction, ranks.size, random);
        std::vector<Bytes> results(n);
        REQUIRE(ranks.run([&](Comm& comm) {
          auto me = static_cast<std::size_t>(comm.rank());
          Bytes mine = c.inputs[me];
          comm.reduce_scatter({mine.data(), c.count, d, reduction});
          std::size_t size = block * size_of(d);
          results[me].assign(mine.begin() + static_cast<std::ptrdiff_t>(me * size),
                             mine.begin() + static_cast<std::ptrdiff_t>((me + 1) * size));
          comm.barrier();  // a second collective finds nothing that the first one left behind
        }));
        Bytes whole;
        for (const Bytes& b : results) whole.insert(whole.end(), b.begin(), b.end());
        CHECK(whole == c.expected);
      }
  });
}

TEST_CASE("many reductions in a row do not mix") {
  for_each_cluster([](Ranks& ranks) {
    std::vector<std::string> found(static_cast<std::size_t>(ranks.size));
    REQUIRE(ranks.run([&](Comm& comm) {
      int n = comm.size();
      std::string& mine = found[static_cast<std::size_t>(comm.rank())];
      for (int round = 0; round < 20; ++round) {
        comm.at(Step{round});
        std::vector<std::int64_t> v(static_cast<std::size_t>(round * 7 % 90), comm.rank() + round);
        comm.all_reduce(std::span{v}, Reduction::sum);
        for (std::int64_t x : v)
          if (x != n * (n - 1) / 2 + n * round) mine += "sum ";
        std::vector<float> w(static_cast<std::size_t>(n), static_cast<float>(comm.rank()));
        comm.reduce_scatter(Buffer::of(std::span{w}, Reduction::sum));
        if (w[static_cast<std::size_t>(comm.rank())] != static_cast<float>(n * (n - 1) / 2))
          mine += "block ";
        if (!comm.agree(true)) mine += "agreement ";
      }
    }));
    for (const std::string& f : found) CHECK(f == "");
  });
}

TEST_CASE("what cannot be reduced is refused on every rank alike, before anything travels") {
  for_each_cluster([](Ranks& ranks) {
    std::vector<std::string> texts(3 * static_cast<std::size_t>(ranks.size));
    REQUIRE(ranks.run([&](Comm& comm) {
      auto at = 3 * static_cast<std::size_t>(comm.rank());
      std::vector<std::int32_t> whole(5, 1);
      texts[at] = said([&] { comm.all_reduce(std::span{whole}); });
      bool flags[2] = {true, false};
      texts[at + 1] = said([&] { comm.all_reduce(Buffer::of(std::span{flags}, Reduction::sum)); });
      std::vector<float> odd(static_cast<std::size_t>(comm.size()) + 1);
      texts[at + 2] = said([&] { comm.reduce_scatter(Buffer::of(std::span{odd})); });
      comm.barrier();  // and the group is still usable
    }));
    for (std::size_t i = 0; i < texts.size(); i += 3) {
      CHECK(texts[i].find("a mean needs a floating type, not I32") != std::string::npos);
      CHECK(texts[i + 1].find("a sum needs numbers, not BOOL") != std::string::npos);
      if (ranks.size > 1)
        CHECK(texts[i + 2].find("elements do not divide by") != std::string::npos);
      else
        CHECK(texts[i + 2] == "");
    }
  });
}

TEST_CASE("ranks that reduce in different orders are told so, and nothing counts as reduced") {
  for (bool simulated : {false, true}) {
    Ranks ranks{.size = 3, .options = {.simulated = simulated, .timeout = 5s}};
    std::vector<std::string> texts(3);
    std::vector<int> done(3);
    ranks.run([&](Comm& comm) {
      std::vector<float> a(10), b(10);
      Buffer buffers[] = {Buffer::of(std::span{a}, Reduction::mean, 0),
                          Buffer::of(std::span{b}, Reduction::mean, 1)};
      if (comm.rank() == 1) std::swap(buffers[0], buffers[1]);
      auto me = static_cast<std::size_t>(comm.rank());
      try {
        comm.all_reduce(buffers, [&](std::size_t) { ++done[me]; });
      } catch (const CommError& e) {
        texts[me] = e.what();
        throw;
      }
    });
    CHECK(texts[1].find("rank 0 reduces bucket 0 of step 0 where bucket 1 is due: every rank must "
                        "reduce, and call ready(), in the same order") != std::string::npos);
    for (int d : done) CHECK(d == 0);
    for (const std::string& t : texts) CHECK(t != "");
  }
}

// ---- the other collectives ----------------------------------------------------------------------

TEST_CASE("all_gather gives every block to everybody") {
  for_each_cluster([](Ranks& ranks) {
    auto n = static_cast<std::size_t>(ranks.size);
    for (std::size_t block : {0, 1, 256, 900}) {
      Bytes expected(n * block);
      for (std::size_t i = 0; i < expected.size(); ++i)
        expected[i] = static_cast<std::byte>(i * 31 + i / 256);
      std::vector<Bytes> results(n);
      REQUIRE(ranks.run([&](Comm& comm) {
        auto me = static_cast<std::size_t>(comm.rank());
        Bytes mine(n * block);
        if (block > 0) std::memcpy(mine.data() + me * block, expected.data() + me * block, block);
        comm.all_gather(writable(mine));
        results[me] = mine;
      }));
      for (const Bytes& b : results) CHECK(b == expected);
    }
  });
}

TEST_CASE("broadcast from every root, of every size") {
  for_each_cluster([](Ranks& ranks) {
    std::vector<std::string> found(static_cast<std::size_t>(ranks.size));
    REQUIRE(ranks.run([&](Comm& comm) {
      for (int root = 0; root < comm.size(); ++root)
        for (std::size_t size : {0, 1, 255, 256, 257, 1000}) {
          Bytes expected(size, static_cast<std::byte>(17 * root + 1));
          Bytes mine = comm.rank() == root ? expected : Bytes(size);
          comm.broadcast(writable(mine), root);
          if (mine != expected)
            found[static_cast<std::size_t>(comm.rank())] += std::to_string(root) + " ";
        }
    }));
    for (const std::string& f : found) CHECK(f == "");
  });
}

TEST_CASE("broadcast and all_gather refuse what cannot be right") {
  for_each_cluster([](Ranks& ranks) {
    std::vector<std::string> texts(3 * static_cast<std::size_t>(ranks.size));
    REQUIRE(ranks.run([&](Comm& comm) {
      auto at = 3 * static_cast<std::size_t>(comm.rank());
      Bytes some(static_cast<std::size_t>(comm.size()) + 1);
      texts[at] = said([&] { comm.broadcast(writable(some), comm.size()); });
      texts[at + 1] = said([&] { comm.broadcast(writable(some), -1); });
      texts[at + 2] = said([&] { comm.all_gather(writable(some)); });
      comm.barrier();
    }));
    for (std::size_t i = 0; i < texts.size(); i += 3) {
      CHECK(texts[i].find("there is no rank " + std::to_string(ranks.size)) != std::string::npos);
      CHECK(texts[i + 1].find("there is no rank -1") != std::string::npos);
      if (ranks.size > 1) CHECK(texts[i + 2].find("do not divide by") != std::string::npos);
    }
  });
}

TEST_CASE("agree is true when everybody says so") {
  for_each_cluster([](Ranks& ranks) {
    std::vector<std::vector<bool>> answers(static_cast<std::size_t>(ranks.size));
    REQUIRE(ranks.run([&](Comm& comm) {
      std::vector<bool> mine;
      for (int no = -1; no < comm.size(); ++no) mine.push_back(comm.agree(comm.rank() != no));
      mine.push_back(comm.agree(false));
      answers[static_cast<std::size_t>(comm.rank())] = mine;
    }));
    std::vector<bool> expected(static_cast<std::size_t>(ranks.size) + 2, false);
    expected[0] = true;
    for (const auto& a : answers) CHECK(a == expected);
  });
}

TEST_CASE("gather gives records of any size, by rank") {
  for_each_cluster([](Ranks& ranks) {
    std::vector<std::string> found(static_cast<std::size_t>(ranks.size));
    REQUIRE(ranks.run([&](Comm& comm) {
      std::string& mine = found[static_cast<std::size_t>(comm.rank())];
      for (std::size_t round = 0; round < 3; ++round) {
        auto record = [&](int rank) {
          return Bytes(static_cast<std::size_t>(rank) * 100 * round, static_cast<std::byte>(rank));
        };
        comm.gather_begin(record(comm.rank()));  // work may stand here
        std::vector<Payload> all = comm.gather_finish();
        if (all.size() != static_cast<std::size_t>(comm.size())) mine += "count ";
        for (int r = 0; r < comm.size(); ++r) {
          ByteView got = all[static_cast<std::size_t>(r)].view();
          if (Bytes{got.begin(), got.end()} != record(r)) mine += std::to_string(r) + " ";
        }
      }
    }));
    for (const std::string& f : found) CHECK(f == "");
  });
}

TEST_CASE("nobody leaves a barrier before everybody has reached it") {
  for_each_cluster([](Ranks& ranks) {
    std::atomic<int> reached{0};
    std::atomic<bool> early{false};
    REQUIRE(ranks.run([&](Comm& comm) {
      for (int round = 1; round <= 10; ++round) {
        ++reached;
        comm.barrier();
        if (reached < round * comm.size()) early = true;
        comm.barrier();
      }
    }));
    CHECK(!early);
  });
}

TEST_CASE("a channel is a pipe: complete, in order, one per tag") {
  for_each_cluster([](Ranks& ranks) {
    if (ranks.size == 1) return;
    std::vector<std::string> found(static_cast<std::size_t>(ranks.size));
    REQUIRE(ranks.run([&](Comm& comm) {
      std::string& mine = found[static_cast<std::size_t>(comm.rank())];
      int next = (comm.rank() + 1) % comm.size();
      int previous = (comm.rank() + comm.size() - 1) % comm.size();
      auto to = comm.channel(next), to_aside = comm.channel(next, 9);
      auto from = comm.channel(previous), from_aside = comm.channel(previous, 9);
      for (int i = 0; i < 10; ++i) to.send(Bytes(static_cast<std::size_t>(i) * 200, std::byte(i)));
      to_aside.send(Bytes(3, std::byte{99}));
      Bytes aside(3), in;
      from_aside.receive(writable(aside));  // overtakes what its neighbour has not asked for yet
      if (aside != Bytes(3, std::byte{99})) mine += "aside ";
      if (comm.agree(true) == false) mine += "agreement ";  // collectives pass beside messages
      for (int i = 0; i < 10; ++i) {
        in.assign(static_cast<std::size_t>(i) * 200, std::byte{0xee});
        from.receive(writable(in));
        if (in != Bytes(static_cast<std::size_t>(i) * 200, std::byte(i)))
          mine += std::to_string(i) + " ";
      }
    }));
    for (const std::string& f : found) CHECK(f == "");
  });
}

TEST_CASE("a message of another size than expected is an error, and the next one is not touched") {
  for (bool simulated : {false, true}) {
    Ranks ranks{.size = 2, .options = {.simulated = simulated}};
    std::string text, second;
    REQUIRE(ranks.run([&](Comm& comm) {
      auto pipe = comm.channel(1 - comm.rank());
      if (comm.rank() == 0) {
        pipe.send(Bytes(4));
        pipe.send(Bytes(2, std::byte{5}));
      } else {
        Bytes in(2);
        text = said([&] { pipe.receive(writable(in)); });
        pipe.receive(writable(in));
        second = in == Bytes(2, std::byte{5}) ? "right" : "wrong";
      }
      comm.barrier();
    }));
    CHECK(text.find("a message of 4 bytes where 2 were expected") != std::string::npos);
    CHECK(second == "right");
  }
}

TEST_CASE("there is no channel to oneself or to nobody") {
  for_each_cluster([](Ranks& ranks) {
    std::vector<std::string> texts(static_cast<std::size_t>(ranks.size));
    REQUIRE(ranks.run([&](Comm& comm) {
      std::string& mine = texts[static_cast<std::size_t>(comm.rank())];
      for (int peer : {comm.rank(), -1, comm.size()})
        if (said([&] {
              (void)comm.channel(peer);
            }).find("no channel to rank " + std::to_string(peer)) == std::string::npos)
          mine += std::to_string(peer) + " ";
    }));
    for (const std::string& t : texts) CHECK(t == "");
  });
  Comm alone;
  CHECK_THROWS_AS((void)alone.channel(0), CommError);
}

// ---- a group of one -----------------------------------------------------------------------------

TEST_CASE("alone, every collective returns at once and changes nothing") {
  Comm alone;
  std::vector<float> v{1.5f, -2};
  int done = 0;
  Buffer b = Buffer::of(std::span{v});
  alone.all_reduce(std::span{&b, 1}, [&](std::size_t) { ++done; });
  alone.all_reduce(std::span{v}, Reduction::sum);
  alone.reduce_scatter(b);
  Bytes bytes(5, std::byte{3});
  alone.all_gather(writable(bytes));
  alone.broadcast(writable(bytes), 0);
  alone.barrier();
  CHECK(done == 1);
  CHECK(v == std::vector<float>{1.5f, -2});
  CHECK(bytes == Bytes(5, std::byte{3}));
  std::vector<Payload> all = alone.gather(bytes);
  REQUIRE(all.size() == 1);
  CHECK(Bytes{all[0].view().begin(), all[0].view().end()} == bytes);
  CHECK(!alone.concurrent());
  CHECK(alone.now() > Time{0});
}

// ---- ends ---------------------------------------------------------------------------------------

// Law 3: every call ends, with success or an exception. Law of all_reduce: an aborted one throws.
TEST_CASE("wherever a rank is killed, nothing that was reported done is wrong and nobody hangs") {
  Random random{3};
  std::vector<Case> cases;
  for (std::size_t count : {100, 0, 3, 200})
    cases.push_back(make_case(DType::f32, count, Reduction::mean, 3, random));
  auto reduce = [&](Comm& comm, std::vector<std::size_t>& done, bool& wrong, bool& finished) {
    std::vector<Bytes> mine;
    for (const Case& c : cases) mine.push_back(c.inputs[static_cast<std::size_t>(comm.rank())]);
    std::vector<Buffer> buffers;
    for (std::size_t i = 0; i < cases.size(); ++i)
      buffers.push_back({mine[i].data(), cases[i].count, DType::f32, Reduction::mean,
                         static_cast<std::uint32_t>(i)});
    comm.all_reduce(buffers, [&](std::size_t i) {
      done.push_back(i);
      wrong = wrong || mine[i] != cases[i].expected;
    });
    finished = true;
    comm.barrier();
  };
  for (Incarnation victim : {1, 2, 3}) {
    bool reached_the_end = false;
    int interrupted = 0;
    for (std::uint64_t operation = 0; !reached_the_end; ++operation) {
      Ranks ranks{.size = 3,
                  .options = {.simulated = true,
                              .seed = operation + 1,
                              .chunk_bytes = 256,
                              .faults = {{.who = victim, .operation = operation}}}};
      std::vector<std::vector<std::size_t>> done(3);
      bool wrong[3] = {}, finished[3] = {};
      bool good = ranks.run([&](Comm& comm) {
        auto me = static_cast<std::size_t>(comm.rank());
        reduce(comm, done[me], wrong[me], finished[me]);
      });
      REQUIRE(!ranks.hung);
      for (std::size_t r = 0; r < 3; ++r) {
        CHECK(!wrong[r]);
        if (finished[r]) CHECK(done[r].size() == cases.size());
        CHECK(std::set(done[r].begin(), done[r].end()).size() == done[r].size());
        if (!finished[r] && !done[r].empty()) ++interrupted;
      }
      reached_the_end = good;
      REQUIRE(operation < 2000);
    }
    CHECK(interrupted > 0);  // some stopped half-way
  }
}

TEST_CASE("a rank whose peer is silent gives up at the timeout and names it") {
  Ranks ranks{.size = 3, .options = {.simulated = true, .timeout = 7s}};
  std::vector<std::string> texts(3);
  std::vector<Time> took(3);
  std::vector<int> whom(3, -1);
  REQUIRE(ranks.run([&](Comm& comm) {
    auto me = static_cast<std::size_t>(comm.rank());
    comm.barrier();
    Time begin = comm.now();
    if (me == 1) {  // lives on, but takes no part
      for (Deadline end = after(begin, 100s); comm.now() < end;) (void)comm.watch(end);
      return;
    }
    try {
      comm.barrier();
    } catch (const PeerLost& e) {
      texts[me] = e.what();
      whom[me] = int{*e.rank()};
    }
    took[me] = comm.now() - begin;
  }));
  CHECK(texts[0].find("a peer was silent for 7000 ms (timeout)") != std::string::npos);
  CHECK(whom[0] == 1);  // the tree's root waits for both its children
  CHECK(whom[2] == 0);
  CHECK(took[0] >= 7s);
  CHECK(took[0] < 8s);
}

TEST_CASE("the coordinator's word ends a collective and every later one") {
  for (bool simulated : {false, true})
    for (Kind kind : {Kind::view, Kind::stop}) {
      Ranks ranks{.size = 2, .options = {.simulated = simulated}};
      std::string first, second, third;
      ranks.on_frame = [&](World::WorkerHub& hub, const HubEvent& e) {
        REQUIRE(e.frame.header.kind == static_cast<std::uint16_t>(Kind::finished));
        std::string_view why = "the reason";
        Ranks::tell(hub, 1, kind,
                    kind == Kind::stop ? Bytes(std::as_bytes(std::span{why}).begin(),
                                               std::as_bytes(std::span{why}).end())
                                       : encode(ranks.view(0, 2)),
                    2);
      };
      ranks.run([&](Comm& comm) {
        comm.barrier();
        if (comm.rank() == 1) {  // answers nothing
          comm.tell(Kind::finished, Step{0});
          while (said([&] { comm.channel(0, 5).receive({}); }).empty()) {
          }
          return;
        }
        std::vector<float> v(3);
        first = said([&] { comm.all_reduce(std::span{v}); });
        second = said([&] { comm.barrier(); });
        if (kind == Kind::stop) {
          try {
            (void)comm.await_view();
          } catch (const RunStopped& e) {
            third = e.what();
          }
        } else {
          View v2 = comm.await_view();
          third = std::to_string(v2.generation.value());
          comm.enter(v2);
          CHECK(comm.generation() == Generation{2});
        }
      });
      CHECK(first.find("the membership changed") != std::string::npos);
      CHECK(second.find("the membership changed") != std::string::npos);
      CHECK(third.find(kind == Kind::stop ? "the reason" : "2") != std::string::npos);
    }
}

TEST_CASE("cancel ends a wait from another thread, for good") {
  Ranks ranks{.size = 2};
  std::string first, second;
  std::atomic<bool> over{false};
  REQUIRE(ranks.run([&](Comm& comm) {
    comm.barrier();
    if (comm.rank() == 1) {  // takes no part
      over.wait(false);
      return;
    }
    std::thread other{[&] {
      std::this_thread::sleep_for(20ms);
      comm.cancel();
    }};
    std::vector<float> v(3);
    first = said([&] { comm.channel(1).receive({}); });
    other.join();
    second = said([&] { comm.barrier(); });
    over = true;
    over.notify_all();
  }));
  CHECK(first.find("cancelled") != std::string::npos);
  CHECK(second.find("cancelled") != std::string::npos);
}

TEST_CASE("a replacement is kept out of collectives that the others passed long ago") {
  World world{{.simulated = true}};
  std::string text;
  world.run([&](Comm& comm) { text = said([&] { comm.barrier(); }); },
            [](World::WorkerHub& hub) {
              hub.start(1, 0, 2, true);
              while (std::optional<HubEvent> e = hub.poll(after(hub.now(), 10s)))
                if (e->ended) return e->status;
              return -1;
            });
  CHECK(text.find("a replacement takes no part in collectives outside the session") !=
        std::string::npos);
  CHECK(text.find("Derive initial values from a seed") != std::string::npos);
}

TEST_CASE("a group that gets no generation in time says so") {
  World world{{.simulated = true, .timeout = 3s}};
  std::string text;
  world.run([&](Comm& comm) { text = said([&] { comm.barrier(); }); },
            [](World::WorkerHub& hub) {
              hub.start(1, 0, 1, false);
              while (std::optional<HubEvent> e = hub.poll(after(hub.now(), 60s)))
                if (e->ended) return e->status;
              return -1;
            });
  CHECK(text.find("the launcher opened no new generation in time (on rank 0") != std::string::npos);
}

TEST_CASE("a slow rank's unread frames are held back, not piled up") {
  // Rank 1 sends far more than rank 0 may stash while it waits for rank 2.
  Ranks ranks{.size = 3};
  constexpr std::size_t message = std::size_t{1} << 20;
  std::string found;
  REQUIRE(ranks.run([&](Comm& comm) {
    if (comm.rank() == 1) {
      for (int i = 0; i < 12; ++i) comm.channel(0).send(Bytes(message, std::byte(i)));
      comm.barrier();
    } else if (comm.rank() == 2) {
      std::this_thread::sleep_for(100ms);
      comm.channel(0).send(Bytes(1));
      comm.barrier();
    } else {
      Bytes one(1), in(message);
      comm.channel(2).receive(writable(one));
      for (int i = 0; i < 12; ++i) {
        comm.channel(1).receive(writable(in));
        if (in != Bytes(message, std::byte(i))) found += std::to_string(i) + " ";
      }
      comm.barrier();
    }
  }));
  CHECK(found == "");
}

}  // namespace
