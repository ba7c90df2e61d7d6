#include <mend/core/link.hpp>

#include <doctest/doctest.h>

#include <cstring>
#include <type_traits>
#include <utility>

using mend::Bytes;
using mend::ByteView;
using mend::Frame;
using mend::Payload;

namespace {

struct NullLink {
  [[nodiscard]] mend::Time now() const { return {}; }
  void enter(mend::Generation, int, std::span<const mend::Peer>) {}
  void post(int, mend::Header, ByteView) {}
  [[nodiscard]] std::size_t backlog(int) const { return 0; }
  std::optional<Frame> poll(mend::Deadline, bool) { return {}; }
  void hold(int, bool) {}
  void tell(mend::Header, ByteView) {}
  void recycle(Payload) {}
  void wake() {}
};
struct BlindLink : NullLink {  // near miss: nobody can ask what has not left yet
  std::size_t backlog(int) = delete;
};
struct WaitsForEver : NullLink {  // near miss: a wait without a deadline
  std::optional<Frame> poll() { return {}; }
};
static_assert(mend::Link<NullLink>);
static_assert(!mend::Link<BlindLink>);
static_assert(!mend::Link<WaitsForEver>);

struct NullHub {
  [[nodiscard]] mend::Time now() const { return {}; }
  std::optional<mend::HubEvent> poll(mend::Deadline) { return {}; }
  void tell(mend::Incarnation, mend::Header, ByteView) {}
  void start(mend::Incarnation, int, int, bool) {}
  void kill(mend::Incarnation) {}
  [[nodiscard]] mend::Time last_heard(mend::Incarnation) const { return {}; }
};
static_assert(mend::Hub<NullHub>);
static_assert(!mend::Hub<NullLink>);

// A header goes over the wire as it stands in memory.
static_assert(std::is_trivially_copyable_v<mend::Header>);
static_assert(std::has_unique_object_representations_v<mend::Header>);
static_assert(!std::is_copy_constructible_v<Payload> && !std::is_copy_assignable_v<Payload>);
static_assert(!std::is_convertible_v<std::size_t, Payload>);

}  // namespace

TEST_CASE("a payload owns a copy of what it was made from") {
  Bytes bytes{std::byte{1}, std::byte{2}, std::byte{3}};
  Payload p{ByteView{bytes}};
  bytes[0] = std::byte{9};
  CHECK(p.size() == 3);
  CHECK(p.data()[0] == std::byte{1});
  CHECK(p.view().size() == 3);
  CHECK(Payload{}.size() == 0);
  CHECK(Payload{ByteView{}}.view().empty());
}

TEST_CASE("a payload keeps its storage while it is large enough") {
  Payload p{100};
  std::byte* storage = p.data();
  std::memset(p.data(), 7, 100);
  p.resize(10);
  CHECK(p.size() == 10);
  p.resize(100);
  CHECK(p.data() == storage);
  p.resize(101);
  CHECK(p.size() == 101);
  std::memset(p.data(), 7, 101);  // ASan sees storage that is too small
}

TEST_CASE("a moved payload is empty and usable") {
  Payload p{8};
  std::byte* storage = p.data();
  Payload q{std::move(p)};
  CHECK(q.data() == storage);
  CHECK(p.size() == 0);  // NOLINT: moved-from on purpose
  p.resize(4);
  std::memset(p.data(), 1, 4);
  q = std::move(p);
  CHECK(q.size() == 4);
  CHECK(q.data()[3] == std::byte{1});
}

TEST_CASE("a frame is from the coordinator, and a broken link, unless it says otherwise") {
  Frame f;
  CHECK(f.from == Frame::coordinator);
  CHECK(f.header.kind == mend::Header::broken);
}
