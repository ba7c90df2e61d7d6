#include <mend/comm/membership/messages.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

// The largest allocation since it was last set to 0, in this thread.
thread_local std::size_t largest = 0;

void* counted(std::size_t size) {
  if (size > largest) largest = size;
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc{};
}

}  // namespace

#if defined(__GNUC__) && !defined(__clang__)  // beside a sanitizer it takes the pair below for two
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#endif

void* operator new(std::size_t size) { return counted(size); }
void* operator new[](std::size_t size) { return counted(size); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }

namespace {

using namespace mend;
using namespace mend::comm;

Join join() { return {"0.1.0", "127.0.0.1:4242"}; }
View view() {
  View v;
  v.generation = Generation{7};
  v.lineage = 2;
  v.rank = 1;
  v.peers = {{11, "127.0.0.1:1", 3}, {12, "", 12}, {19, std::string(300, 'x'), 5}};
  v.first = true;
  return v;
}
Report report() {
  Report r;
  r.has_state = true;
  r.all_reduced = false;
  r.copies = {{4, {9, 10}}, {5, {}}, {6, {std::numeric_limits<std::int64_t>::max()}}};
  r.copies_wanted = 2;
  r.schema = "tensor 'w' F32 [3,]\nslot 'w.m' F32 [3,]\n";
  return r;
}
Plan plan() {
  Plan p;
  p.restore = true;
  p.sources = {0, 2, 3};
  p.bucket_holders = {2};
  p.bucket_fetchers = 4;
  p.copy_holders = {{1, {0, 2}}, {3, {}}};
  return p;
}

TEST_CASE("a Join comes back as it was") {
  for (const Join& m : {Join{}, join()}) {
    Join back = decode_join(encode(m));
    CHECK(back.version == m.version);
    CHECK(back.address == m.address);
  }
}

TEST_CASE("a View comes back as it was") {
  for (const View& m : {View{}, view()}) {
    View back = decode_view(encode(m));
    CHECK(back.generation == m.generation);
    CHECK(back.lineage == m.lineage);
    CHECK(back.rank == m.rank);
    CHECK(back.first == m.first);
    CHECK(back.size() == m.size());
    REQUIRE(back.peers.size() == m.peers.size());
    for (std::size_t i = 0; i < m.peers.size(); ++i) {
      CHECK(back.peers[i].incarnation == m.peers[i].incarnation);
      CHECK(back.peers[i].address == m.peers[i].address);
      CHECK(back.peers[i].heir_of == m.peers[i].heir_of);
    }
  }
}

TEST_CASE("a Report comes back as it was") {
  for (const Report& m : {Report{}, report()}) {
    Report back = decode_report(encode(m));
    CHECK(back.has_state == m.has_state);
    CHECK(back.all_reduced == m.all_reduced);
    CHECK(back.copies == m.copies);
    CHECK(back.copies_wanted == m.copies_wanted);
    CHECK(back.schema == m.schema);
  }
}

TEST_CASE("a Plan comes back as it was") {
  for (const Plan& m : {Plan{}, plan()}) {
    Plan back = decode_plan(encode(m));
    CHECK(back.restore == m.restore);
    CHECK(back.sources == m.sources);
    CHECK(back.bucket_holders == m.bucket_holders);
    CHECK(back.bucket_fetchers == m.bucket_fetchers);
    CHECK(back.copy_holders == m.copy_holders);
  }
}

// A decode allocates no more than a few times what the message holds.
template <class Decode>
void refused(const Bytes& message, Decode&& decode, std::size_t size) {
  Bytes cut{message.begin(), message.begin() + static_cast<std::ptrdiff_t>(size)};
  largest = 0;
  bool threw = false;
  try {
    (void)decode(cut);
  } catch (const CommError&) {
    threw = true;
  }
  CHECK(threw);
  CHECK(largest < 64 * message.size() + 1024);
}

TEST_CASE("every truncation is refused") {
  auto each = [](const Bytes& message, auto&& decode) {
    (void)decode(message);
    for (std::size_t size = 0; size < message.size(); ++size) refused(message, decode, size);
  };
  each(encode(join()), decode_join);
  each(encode(view()), decode_view);
  each(encode(report()), decode_report);
  each(encode(plan()), decode_plan);
}

// Overwrites every run of 4 and of 8 bytes with lengths that nobody has.
template <class Decode>
void survives(const Bytes& message, Decode&& decode) {
  auto attempt = [&](Bytes hostile) {
    largest = 0;
    try {
      (void)decode(hostile);  // what is no length field may hold anything
    } catch (const CommError&) {
    }
    CHECK(largest < 64 * message.size() + 1024);
  };
  for (std::uint64_t length : {~std::uint64_t{0}, std::uint64_t{1} << 63, std::uint64_t{1} << 32,
                               std::uint64_t{0x7fffffff7fffffff}})
    for (std::size_t width : {std::size_t{4}, std::size_t{8}})
      for (std::size_t at = 0; at + width <= message.size(); ++at) {
        Bytes hostile = message;
        std::memcpy(hostile.data() + at, &length, width);
        attempt(std::move(hostile));
      }
  std::uint64_t state = 1;
  for (int i = 0; i < 2000; ++i) {
    Bytes noise(static_cast<std::size_t>(i) % (2 * message.size()));
    for (std::byte& b : noise) {
      state = state * 6364136223846793005 + 1442695040888963407;
      b = static_cast<std::byte>(state >> 56);
    }
    attempt(std::move(noise));
  }
}

TEST_CASE("no length field makes a decoder allocate, or read beyond the message") {
  survives(encode(join()), decode_join);
  survives(encode(view()), decode_view);
  survives(encode(report()), decode_report);
  survives(encode(plan()), decode_plan);
}

TEST_CASE("any byte but 0 is true") {
  Bytes r = encode(report()), p = encode(plan());
  for (unsigned byte : {2u, 0x80u, 0xffu}) {
    r[0] = r[1] = p[0] = static_cast<std::byte>(byte);
    CHECK(decode_report(r).has_state);
    CHECK(decode_report(r).all_reduced);
    CHECK(decode_plan(p).restore);
  }
}

TEST_CASE("kinds are told apart by who says them, and from a link's own broken") {
  CHECK(Header::broken == 0);
  CHECK(static_cast<int>(Kind::join) == 1);
  CHECK(Kind::refused < Kind::view);
  CHECK(static_cast<int>(Kind::view) == 32);
  CHECK(Kind::stop < Kind::partial);
  CHECK(static_cast<int>(Kind::partial) == 64);
  CHECK(Kind::message < Kind::hello);
  CHECK(static_cast<int>(Kind::hello) == 128);
}

}  // namespace
