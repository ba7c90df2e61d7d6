#include <mend/comm/communicator.hpp>
#include <mend/comm/group.hpp>
#include <mend/comm/world.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <span>
#include <string>

namespace {

using namespace mend;
using namespace mend::comm;

// The least: no collective beyond agreement.
struct Least {
  [[nodiscard]] int rank() const { return 0; }
  [[nodiscard]] int size() const { return 1; }
  bool agree(bool yes) { return yes; }
};
static_assert(Communicator<Least>);
static_assert(!CanAllReduce<Least> && !CanBroadcast<Least> && !CanAllGather<Least>);
static_assert(!CanReduceScatter<Least> && !CanBarrier<Least> && !Elastic<Least>);

// One capability each, and nothing that implies another.
struct Reduces : Least {
  void all_reduce(Buffer) {}
};
static_assert(CanAllReduce<Reduces> && !CanReduceScatter<Reduces> && !CanBroadcast<Reduces>);
struct Broadcasts : Least {
  void broadcast(std::span<std::byte>, int) {}
};
static_assert(CanBroadcast<Broadcasts> && !CanAllReduce<Broadcasts> && !CanAllGather<Broadcasts>);
struct Gathers : Least {
  void all_gather(std::span<std::byte>) {}
};
static_assert(CanAllGather<Gathers> && !CanBroadcast<Gathers>);
struct Scatters : Least {
  void reduce_scatter(Buffer) {}
};
static_assert(CanReduceScatter<Scatters> && !CanAllReduce<Scatters>);
struct Waits : Least {
  void barrier() {}
};
static_assert(CanBarrier<Waits> && !CanBarrier<Least>);

// Near misses.
struct NoAgreement {
  [[nodiscard]] int rank() const { return 0; }
  [[nodiscard]] int size() const { return 1; }
};
static_assert(!Communicator<NoAgreement>);
struct AgreesToNothing : NoAgreement {
  void agree(bool) {}
};
static_assert(!Communicator<AgreesToNothing>);
struct MutableRank {
  int rank() { return 0; }
  [[nodiscard]] int size() const { return 1; }
  bool agree(bool yes) { return yes; }
};
static_assert(!Communicator<MutableRank>);
struct NamedRank {
  [[nodiscard]] std::string rank() const { return "first"; }
  [[nodiscard]] int size() const { return 1; }
  bool agree(bool yes) { return yes; }
};
static_assert(!Communicator<NamedRank>);
struct ReducesFloats : Least {
  void all_reduce(std::span<float>) {}
};
static_assert(!CanAllReduce<ReducesFloats>);
struct ReducesAlone {  // a capability without the base
  void all_reduce(Buffer) {}
};
static_assert(!CanAllReduce<ReducesAlone>);
struct SaysManaged : Least {  // an int is no answer to managed()
  [[nodiscard]] int managed() const { return 1; }
  void await_view() {}
};
static_assert(!Elastic<SaysManaged>);

struct Pipe {
  void send(ByteView) {}
  void receive(std::span<std::byte>) {}
};
static_assert(Channel<Pipe>);
struct OneWay {
  void send(ByteView) {}
};
static_assert(!Channel<OneWay>);
struct ReceivesConst {
  void send(ByteView) {}
  void receive(std::string&) {}
};
static_assert(!Channel<ReceivesConst>);

// mend's own communicator can do everything.
using Own = Group<World::WorkerLink>;
static_assert(Elastic<Own> && CanAllReduce<Own> && CanBroadcast<Own> && CanAllGather<Own>);
static_assert(CanReduceScatter<Own> && CanBarrier<Own> && Channel<Own::Pipe>);

TEST_CASE("a group of one needs no coordinator") {
  Own alone;
  CHECK(alone.rank() == 0);
  CHECK(alone.size() == 1);
  CHECK(!alone.managed());
  CHECK(alone.agree(true));
  CHECK(!alone.agree(false));
}

}  // namespace
