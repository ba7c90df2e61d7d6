#include <mend/session/partner_copies.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace mend;

struct Rank0 {
  std::vector<float> mean{1, 2, 3}, shared{4}, uncopied{5}, empty;
  std::uint64_t rng = 6;
  std::string loader = "seven";
  TrainState state;

  Rank0() {
    state.add_buffer("mean", mean, PerRank{})
        .add_buffer("shared", shared)
        .add_buffer("uncopied", uncopied, PerRank{.copies = 0})
        .add_scalar("rng", rng, PerRank{.copies = 2})
        .add_buffer("empty", empty, PerRank{})
        .add_state(
            "loader",
            [this] {
              ByteView b = std::as_bytes(std::span{loader});
              return Bytes{b.begin(), b.end()};
            },
            [this](ByteView b) {
              loader.assign(reinterpret_cast<const char*>(b.data()), b.size());
            });
  }
};
Bytes some(std::size_t size, int value = 1) { return Bytes(size, static_cast<std::byte>(value)); }

TEST_CASE("what is per rank and copied goes over, nothing else") {
  Rank0 a, b;
  b.mean = {0, 0, 0};
  b.shared = {-4};
  b.uncopied = {-5};
  b.rng = 0;
  b.loader = "another loader";
  PartnerCopies from{a.state}, to{b.state};
  to.decode(from.encode());
  CHECK(b.mean == a.mean);
  CHECK(b.rng == 6);
  CHECK(b.loader == "seven");
  CHECK(b.shared == std::vector<float>{-4});
  CHECK(b.uncopied == std::vector<float>{-5});
}

TEST_CASE("as many partners as the most careful entry asks for") {
  CHECK(PartnerCopies{Rank0{}.state}.wanted() == 2);
  TrainState none;
  std::vector<float> v(3);
  none.add_buffer("v", v);
  CHECK(PartnerCopies{none}.wanted() == 0);
  CHECK(PartnerCopies{none}.encode().empty());
}

TEST_CASE("a copy of another shape, or cut short, is refused") {
  Rank0 a;
  std::vector<float> longer(4);
  TrainState other;
  other.add_buffer("mean", longer, PerRank{});
  CHECK_THROWS_WITH_AS(PartnerCopies{other}.decode(PartnerCopies{a.state}.encode()),
                       "a partner's copy of 'mean' has another size", StateError);
  Bytes copy = PartnerCopies{a.state}.encode();
  for (std::size_t size = 0; size < copy.size(); ++size) {
    Rank0 b;
    Bytes cut{copy.begin(), copy.begin() + static_cast<std::ptrdiff_t>(size)};
    CHECK_THROWS_AS(PartnerCopies{b.state}.decode(cut), CommError);
  }
}

TEST_CASE("a version stays until a newer one is committed") {
  TrainState state;
  PartnerCopies copies{state};
  copies.hold(7, 10, some(3));
  copies.hold(8, 10, some(4));
  copies.committed(10);
  copies.hold(7, 11, some(5));  // step 10 is at hand: its copies are there before it is committed
  REQUIRE(copies.find(7, 10) != nullptr);
  REQUIRE(copies.find(7, 11) != nullptr);
  CHECK(copies.find(7, 10)->size() == 3);
  CHECK(copies.find(7, 11)->size() == 5);
  CHECK(copies.find(8, 11) == nullptr);
  CHECK(copies.find(9, 10) == nullptr);
  CHECK(copies.bytes().value() == 12);
  copies.committed(11);
  CHECK(copies.find(7, 10) == nullptr);
  CHECK(copies.find(7, 11) != nullptr);
  CHECK(copies.bytes().value() == 5);
}

TEST_CASE("a step that is taken back takes its copies along") {
  TrainState state;
  PartnerCopies copies{state};
  copies.hold(7, 10, some(3));
  copies.hold(7, 11, some(3));
  copies.taken_back(10);
  CHECK(copies.find(7, 10) != nullptr);
  CHECK(copies.find(7, 11) == nullptr);
  copies.hold(7, 11, some(3, 2));  // the repeated step's
  REQUIRE(copies.find(7, 11) != nullptr);
  CHECK(*copies.find(7, 11) == some(3, 2));
}

TEST_CASE("the list tells whose and which; those who are no members are forgotten") {
  TrainState state;
  PartnerCopies copies{state};
  CHECK(copies.list().empty());
  copies.hold(9, 4, some(1));
  copies.hold(7, 5, some(1));
  copies.hold(7, 4, some(1));
  using List = std::vector<std::pair<Incarnation, std::vector<std::int64_t>>>;
  CHECK(copies.list() == List{{7, {4, 5}}, {9, {4}}});
  copies.keep_only({1, 9});
  CHECK(copies.list() == List{{9, {4}}});
}

}  // namespace
