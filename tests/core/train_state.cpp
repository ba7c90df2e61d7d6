#include <mend/core/train_state.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using mend::Bytes;
using mend::ByteView;
using mend::DType;
using mend::OptionError;
using mend::PerRank;
using mend::Placement;
using mend::Slice;
using mend::StateError;
using mend::TrainState;
using Kind = mend::TrainState::Kind;

namespace {

struct Bf16 {
  std::uint16_t bits;
};

}  // namespace

template <>
inline constexpr mend::DType mend::dtype_of<Bf16> = mend::DType::bf16;

namespace {

static_assert(!std::is_copy_constructible_v<TrainState> &&
              !std::is_move_constructible_v<TrainState>);
static_assert(!std::is_copy_assignable_v<TrainState> && !std::is_move_assignable_v<TrainState>);

// A temporary state would be gone at the end of the line.
template <class S>
concept CanAddTo = requires(S&& state, std::vector<float>& v) {
  std::forward<S>(state).add("w", v, v);
};
static_assert(CanAddTo<TrainState&>);
static_assert(!CanAddTo<TrainState> && !CanAddTo<const TrainState&>);

template <class T>
concept CanAddScalar = requires(TrainState& state, T&& value) {
  state.add_scalar("s", std::forward<T>(value));
};
static_assert(CanAddScalar<float&> && CanAddScalar<bool&>);
static_assert(!CanAddScalar<float>);

//! The message of the StateError that a call ends in; empty where it ends well.
std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const StateError& e) {
    return e.what();
  }
  return "";
}

bool says(const std::string& message, std::string_view part) {
  return message.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("what is registered is what is listed, in order") {
  std::vector<float> w(6), g(6);
  std::array<double, 2> a{}, ga{};
  std::int64_t raw[3]{};
  float scale = 0;
  TrainState state;
  state.add("w", w, g, {.shape = {2, 3}, .group = "no_decay", .before_image = false})
      .add("a", a, ga);
  state.add_buffer("raw", raw, PerRank{.copies = 2}).add_scalar("scale", scale);
  state.add_state(
      "loader", [] { return Bytes(3); }, [](ByteView) {});
  const auto& e = state.entries();
  REQUIRE(e.size() == 5);

  CHECK(e[0].name == "w");
  CHECK(e[0].kind == Kind::tensor);
  CHECK(e[0].dtype == DType::f32);
  CHECK(e[0].shape == mend::Shape{2, 3});
  CHECK(e[0].count == 6);
  CHECK(e[0].bytes() == 24);
  CHECK(e[0].value == reinterpret_cast<std::byte*>(w.data()));
  CHECK(e[0].gradient == reinterpret_cast<std::byte*>(g.data()));
  CHECK(e[0].gradient_bytes() == 24);
  CHECK(state.entries()[0].memory == nullptr);
  CHECK(e[0].group == "no_decay");
  CHECK_FALSE(e[0].before_image);
  CHECK_FALSE(e[0].placement.per_rank);

  CHECK(e[1].dtype == DType::f64);
  CHECK(e[1].shape == mend::Shape{2});
  CHECK(e[1].group == "default");
  CHECK(e[1].before_image);

  CHECK(e[2].kind == Kind::buffer);
  CHECK(e[2].dtype == DType::i64);
  CHECK(e[2].gradient == nullptr);
  CHECK(e[2].placement.per_rank);
  CHECK(e[2].placement.copies == 2);

  CHECK(e[3].kind == Kind::scalar);
  CHECK(e[3].shape.empty());
  CHECK(e[3].count == 1);
  CHECK(e[3].value == reinterpret_cast<std::byte*>(&scale));

  CHECK(e[4].kind == Kind::state);
  CHECK(e[4].value == nullptr);
  CHECK(e[4].placement.per_rank);
  CHECK(e[4].save().size() == 3);

  CHECK(state.find("raw") == &e[2]);
  CHECK(state.find("none") == nullptr);
  CHECK(state.step == 0);
}

TEST_CASE("views may be temporary, what they view may not") {
  std::vector<float> w(4), g(4);
  TrainState state;
  state.add("w", std::span{w}, std::span{g}.first(4));
  state.add_buffer("rest", std::span<float>{});
  CHECK(state.find("w")->value == reinterpret_cast<std::byte*>(w.data()));
}

TEST_CASE("a value and a gradient of different sizes") {
  std::vector<float> w(4), g(3);
  TrainState state;
  std::string text = refusal([&] { state.add("fc1.weight", w, g); });
  CHECK(says(text, "'fc1.weight' has 4 elements and its gradient 3"));
  CHECK(state.entries().empty());
}

TEST_CASE("shapes that are not the buffer's") {
  std::vector<float> w(6), g(6);
  TrainState state;
  CHECK(says(refusal([&] {
               state.add("w", w, g, {.shape = {2, 4}});
             }),
             "'w' has 6 elements and the shape [2, 4] has 8"));
  CHECK(says(refusal([&] {
               state.add("w", w, g, {.shape = {-2, -3}});
             }),
             "negative extent: [-2, -3]"));
  CHECK(says(refusal([&] {
               state.add("w", w, g, {.shape = {6, std::int64_t{1} << 40, 1 << 30}});
             }),
             "no memory holds"));
  CHECK(says(refusal([&] { state.add_buffer("w", w, {}, {.shape = {7}}); }), "6 elements"));
  CHECK(state.entries().empty());
  CHECK(refusal([&] { state.add("w", w, g, {.shape = {1, 6, 1}}); }).empty());
}

TEST_CASE("a name that is taken, and one that is empty") {
  std::vector<float> w(4), g(4), v(4);
  float f = 0;
  TrainState state;
  state.add("w", w, g);
  for (auto call :
       {std::function<void()>{[&] { state.add_buffer("w", v); }},
        std::function<void()>{[&] { state.add_scalar("w", f); }}, std::function<void()>{[&] {
          state.add_state(
              "w", [] { return Bytes{}; }, [](ByteView) {});
        }}})
    CHECK(says(refusal(call), "the name 'w' is taken"));
  CHECK(says(refusal([&] { state.add_buffer("", v); }), "needs a name"));
  CHECK(state.entries().size() == 1);
}

TEST_CASE("buffers that overlap, from either side, by one byte or as a whole") {
  std::vector<float> memory(100), other(100);
  std::span all{memory};
  auto refused = [&](auto first, auto second) {
    TrainState state;
    state.add_buffer("first", first);
    std::string text = refusal([&] { state.add_buffer("second", second); });
    CHECK(state.entries().size() == (text.empty() ? 2u : 1u));
    return says(text, "'second' overlap those of 'first'");
  };
  CHECK(refused(all.subspan(10, 10), all.subspan(10, 10)));
  CHECK(refused(all.subspan(10, 10), all.subspan(19, 10)));
  CHECK(refused(all.subspan(10, 10), all.subspan(1, 10)));
  CHECK(refused(all.subspan(10, 10), all.subspan(12, 2)));
  CHECK(refused(all.subspan(12, 2), all.subspan(10, 10)));
  auto bytes = std::as_writable_bytes(all);
  CHECK(refused(bytes.subspan(0, 41), bytes.subspan(40, 8)));
  // Near misses: neighbours touch, and nothing overlaps with nothing.
  CHECK_FALSE(refused(all.subspan(10, 10), all.subspan(20, 10)));
  CHECK_FALSE(refused(all.subspan(10, 10), all.subspan(0, 10)));
  CHECK_FALSE(refused(all.subspan(10, 10), all.subspan(15, 0)));
  CHECK_FALSE(refused(bytes.subspan(0, 40), bytes.subspan(40, 8)));
}

TEST_CASE("gradients, scalars and copies are memory too") {
  std::vector<float> w(4), g(4), v(4);
  std::vector<Bf16> low(4);
  TrainState state;
  state.add("w", w, g).add_copy("w", low);
  CHECK(says(refusal([&] { state.add_buffer("x", g); }), "overlap those of 'w'"));
  CHECK(says(refusal([&] { state.add_scalar("x", w[2]); }), "overlap those of 'w'"));
  CHECK(says(refusal([&] { state.add("x", v, g); }), "overlap those of 'w'"));
  CHECK(says(refusal([&] { state.add_buffer("x", low); }), "overlap those of 'w'"));
  CHECK(says(refusal([&] { state.add_copy("w", low); }), "overlap"));
  CHECK(says(refusal([&] { state.add("x", v, v); }), "overlaps its own gradient"));
  CHECK(state.entries().size() == 1);
  CHECK(refusal([&] { state.add_buffer("x", v); }).empty());
}

TEST_CASE("thousands of neighbours in any order, and the one that overlaps") {
  std::vector<float> memory(3001);
  TrainState state;
  for (std::size_t i = 0; i < 1000; ++i) {
    std::size_t at = 3 * (i * 617 % 1000);
    state.add_buffer("b" + std::to_string(at), std::span{memory}.subspan(at, 3));
  }
  CHECK(says(refusal([&] { state.add_scalar("x", memory[1499]); }), "overlap those of 'b1497'"));
  CHECK(refusal([&] { state.add_scalar("x", memory[3000]); }).empty());
}

TEST_CASE("the same two buffers under another name are a tied tensor") {
  std::vector<float> w(6), g(6), g2(6);
  TrainState state;
  state.add("embed", w, g, {.shape = {2, 3}}).add("head", w, g, {.shape = {3, 2}});
  state.add("third", w, g);
  CHECK(state.entries()[0].tied_to.empty());
  CHECK(state.entries()[1].tied_to == "embed");
  CHECK(state.entries()[2].tied_to == "embed");
  // Near misses: half the tensor, another gradient, a buffer.
  CHECK(refusal([&] { state.add("x", std::span{w}.first(3), std::span{g}.first(3)); }) != "");
  CHECK(refusal([&] { state.add("x", w, g2); }) != "");
  CHECK(refusal([&] { state.add_buffer("x", w); }) != "");
}

TEST_CASE("tensors of no elements") {
  std::vector<float> none, none2, w(2), g(2);
  TrainState state;
  state.add("a", none, none2).add("b", none, none2, {.shape = {3, 0}}).add("w", w, g);
  CHECK(state.entries()[0].shape == mend::Shape{0});
  CHECK(state.entries()[1].tied_to.empty());
  CHECK(state.entries()[1].bytes() == 0);
}

TEST_CASE("a reallocated container is found, by name") {
  std::vector<float> w(4), g(4), b(4);
  std::vector<Bf16> low(4);
  auto moved = [&](std::vector<float>& which, const std::string& what) {
    TrainState state;
    w.assign(4, 0), g.assign(4, 0), b.assign(4, 0);
    w.shrink_to_fit(), g.shrink_to_fit(), b.shrink_to_fit();
    state.add("weight", w, g).add_buffer("running", b);
    CHECK_NOTHROW(state.check());
    w[0] = 1;
    CHECK_NOTHROW(state.check());
    which.push_back(0);
    CHECK(refusal([&] { state.check(); }) ==
          what + " was moved or resized after registration; register buffers of final size");
    which.pop_back();
    which.shrink_to_fit();
  };
  moved(w, "the value of tensor 'weight'");
  moved(g, "the gradient of tensor 'weight'");
  moved(b, "buffer 'running'");
  TrainState state;
  state.add("w", w, g).add_copy("w", low);
  low.resize(100);
  CHECK(says(refusal([&] { state.check(); }), "a copy of tensor 'w' was moved"));
}

TEST_CASE("a float master takes narrower gradients and low-precision copies") {
  std::vector<float> w(4);
  std::vector<Bf16> g(4), low(4), small(3);
  std::vector<double> d(4), gd(4);
  TrainState state;
  state.add("w", w, g).add_copy("w", low).add("d", d, gd);
  CHECK(state.find("w")->gradient_dtype == DType::bf16);
  CHECK(state.find("w")->gradient_bytes() == 8);
  REQUIRE(state.find("w")->copies.size() == 1);
  CHECK(state.find("w")->copies[0].dtype == DType::bf16);
  CHECK(state.find("w")->copies[0].data == reinterpret_cast<std::byte*>(low.data()));
  CHECK(says(refusal([&] { state.add_copy("w", small); }), "4 elements and its copy 3"));
  CHECK(says(refusal([&] { state.add_copy("v", low); }), "no float tensor 'v'"));
  CHECK(says(refusal([&] { state.add_copy("d", low); }), "no float tensor 'd'"));
}

TEST_CASE("a state needs both functions") {
  TrainState state;
  CHECK(refusal([&] { state.add_state("s", nullptr, [](ByteView) {}); }) != "");
  CHECK(refusal([&] {
          state.add_state(
              "s", [] { return Bytes{}; }, nullptr);
        }) != "");
}

TEST_CASE_TEMPLATE("a generator goes on with the numbers that it would have drawn", G, std::mt19937,
                   std::mt19937_64, std::minstd_rand, std::ranlux24, std::ranlux48, std::knuth_b,
                   std::normal_distribution<float>, std::uniform_int_distribution<int>) {
  std::mt19937_64 source{7};
  auto next = [&](G& g) {
    if constexpr (requires { g(); })
      return g();
    else
      return g(source);
  };
  auto keep = [](const TrainState::Entry& e) {
    return e.kind == Kind::state ? e.save() : Bytes(e.value, e.value + e.bytes());
  };
  auto restore = [](const TrainState::Entry& e, const Bytes& bytes) {
    if (e.kind == Kind::state)
      e.load(bytes);
    else
      std::memcpy(e.value, bytes.data(), bytes.size());
  };
  G here{}, there{};
  (void)next(here);  // a normal distribution now holds a second number
  TrainState a, b;
  a.add_generator("rng", here);
  b.add_generator("rng", there, mend::Replicated{});
  const auto &from = a.entries()[0], &to = b.entries()[0];
  CHECK(from.placement.per_rank);
  CHECK_FALSE(to.placement.per_rank);
  const Bytes kept = keep(from);
  CHECK(keep(from) == kept);  // to look at it changes nothing
  const std::mt19937_64 then = source;
  std::vector<typename G::result_type> drawn(50), again(50);
  for (auto& x : drawn) x = next(here);
  for (auto [entry, generator] : {std::pair{&from, &here}, std::pair{&to, &there}}) {
    source = then;
    restore(*entry, kept);
    for (auto& x : again) x = next(*generator);
    CHECK(std::memcmp(drawn.data(), again.data(), drawn.size() * sizeof drawn[0]) == 0);
  }
}

TEST_CASE("what is no state of a generator is refused") {
  std::normal_distribution<float> noise;
  TrainState state;
  state.add_generator("noise", noise);
  std::string text{"gibberish"};
  auto bytes = std::as_bytes(std::span{text});
  CHECK(says(refusal([&] { state.entries()[0].load(bytes); }), "generator 'noise'"));
  CHECK(says(refusal([&] { state.add_generator("noise", noise); }), "'noise' is taken"));
}

TEST_CASE("the hash of a state is that of everything in it") {
  std::vector<float> w{1, 2}, g(2), b{3};
  std::vector<Bf16> low(2);
  std::int64_t position = 4;
  Bytes blob(3);
  std::vector<float> slot(2);
  TrainState state;
  state.add("w", w, g).add_copy("w", low).add_buffer("b", b, PerRank{}).add_scalar("p", position);
  state.add_state(
      "s", [&] { return blob; }, [](ByteView) {});
  state.freeze();
  state.add_slot(state.entries()[0], "m", reinterpret_cast<std::byte*>(slot.data()));
  const mend::Hash128 hash = state.hash();
  auto changes = [&](auto& what, auto value) {
    auto before = std::exchange(what, value);
    bool differs = state.hash() != hash;
    what = before;
    return differs && state.hash() == hash;
  };
  CHECK(changes(w[1], 3.0f));
  CHECK(changes(w[0], -1.0f));
  CHECK(changes(b[0], 0.0f));
  CHECK(changes(low[1].bits, std::uint16_t{1}));
  CHECK(changes(position, 5));
  CHECK(changes(blob, Bytes(4)));
  CHECK(changes(slot[1], 1.0f));
  CHECK(changes(state.step, 1));
  CHECK(changes(state.applied, 1));
  CHECK_FALSE(changes(g[0], 7.0f));  // gradients are no state
  CHECK_FALSE(changes(state.rank, 1));
  CHECK(TrainState{}.hash() == TrainState{}.hash());
}

TEST_CASE("a shape as text") {
  CHECK(mend::to_text({}) == "[]");
  CHECK(mend::to_text({8}) == "[8]");
  CHECK(mend::to_text({2, 3, 4}) == "[2, 3, 4]");
}

TEST_CASE("memory of the state's own") {
  TrainState state;
  auto [w, g] = state.make<float>("w", {3, 5}, {.group = "g"});
  CHECK(w.size() == 15);
  CHECK(g.size() == 15);
  CHECK(reinterpret_cast<std::uintptr_t>(w.data()) % 64 == 0);
  CHECK(reinterpret_cast<std::uintptr_t>(g.data()) % 64 == 0);
  CHECK(w[14] == 0);
  g[14] = 1;
  const auto* e = state.find("w");
  CHECK(e->shape == mend::Shape{3, 5});
  CHECK(e->value == reinterpret_cast<std::byte*>(w.data()));
  CHECK(e->group == "g");
  for (int i = 0; i < 100; ++i) (void)state.make<double>("d" + std::to_string(i), {i});
  w[0] = 7;  // still there: more memory moved nothing
  CHECK(reinterpret_cast<float*>(state.find("w")->value)[0] == 7);
  CHECK_NOTHROW(state.check());

  for (mend::Shape shape :
       {mend::Shape{-1}, mend::Shape{std::int64_t{1} << 32, std::int64_t{1} << 30},
        mend::Shape{std::int64_t{1} << 40, std::int64_t{1} << 40},
        mend::Shape{std::int64_t{1} << 55}})
    CHECK(refusal([&] { (void)state.make<float>("x", shape); }) != "");
  CHECK(state.find("x") == nullptr);
}

TEST_CASE("one session at a time, and nothing is added under it") {
  std::vector<float> w(4), g(4), m(4), v(4);
  std::vector<Bf16> low(4);
  TrainState state;
  state.add("w", w, g);
  state.freeze();
  CHECK(says(refusal([&] { state.freeze(); }), "two sessions on one TrainState"));
  CHECK(says(refusal([&] { state.add_buffer("v", v); }), "'v' was added after a session"));
  CHECK(says(refusal([&] { state.add_copy("w", low); }), "added after a session"));
  state.add_slot(*state.find("w"), "m", reinterpret_cast<std::byte*>(m.data()));
  REQUIRE(state.find("w.m") != nullptr);
  CHECK(state.find("w.m")->kind == Kind::slot);
  CHECK(state.find("w.m")->count == 4);
  CHECK(state.find("w.m")->bytes() == 16);
  state.release();
  CHECK(state.find("w.m") == nullptr);
  CHECK(state.entries().size() == 1);
  CHECK(refusal([&] { state.add_buffer("v", v); }).empty());
  CHECK(state.find("v")->name == "v");
  CHECK_NOTHROW(state.freeze());
}

TEST_CASE("a slot's name that the trainer has taken is an error, not a mix-up") {
  std::vector<float> w(4), g(4), m(4);
  TrainState state;
  state.add("w", w, g).add_buffer("w.m", m);
  state.freeze();
  CHECK(says(refusal([&] { state.add_slot(*state.find("w"), "m", nullptr); }), "'w.m' is taken"));
}

TEST_CASE("a slice that is none of its array, and a negative number of copies") {
  std::vector<float> x(6);
  TrainState state;
  auto add = [&](Placement p) { state.add_buffer("x", x, std::move(p)); };
  CHECK_THROWS_WITH_AS(add(PerRank{.copies = -1}), "'x': PerRank{.copies = -1} cannot be negative",
                       OptionError);
  for (const Slice& s :
       {Slice{.of = {4, 3}, .at = {3, 0}, .extent = {2, 3}},
        Slice{.of = {4, 3}, .at = {0, 0}, .extent = {2, 2}},
        Slice{.of = {4, 3}, .at = {0}, .extent = {6}}, Slice{.of = {9}, .at = {-1}, .extent = {6}}})
    CHECK_THROWS_WITH_AS(add(s), doctest::Contains("'x' of 6 elements is no slice "), OptionError);
  add(Slice{.of = {4, 3}, .at = {2, 0}, .extent = {2, 3}});
  CHECK(state.entries().size() == 1);
}

// ---- memory of a device -------------------------------------------------------------------------

namespace {

// Plays a device: what lies there is inverted, so that who reads it directly reads nonsense.
template <class T>
struct Inverted {
  using element_type = T;
  T* elements;
  std::size_t count;

  [[nodiscard]] T* data() const { return elements; }
  [[nodiscard]] std::size_t size() const { return count; }
  static void copy(const std::byte* from, std::byte* to, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) to[i] = ~from[i];
  }
  static const mend::DeviceMemory& memory();
};
constexpr mend::DeviceMemory inverted{&Inverted<char>::copy, &Inverted<char>::copy};
template <class T>
const mend::DeviceMemory& Inverted<T>::memory() {
  return inverted;
}
static_assert(mend::DeviceRange<Inverted<float>>);
static_assert(!mend::DeviceRange<std::vector<float>>);

}  // namespace

TEST_CASE("entries in a device's memory are read and written through it") {
  std::vector<float> w(4), g(4), mean(2), host_w(4), host_g(4), host_mean{1, 2};
  std::vector<Bf16> low(4);
  mend::TrainState state, host;
  state.add("w", Inverted<float>{w.data(), 4}, Inverted<float>{g.data(), 4}, {.shape = {2, 2}});
  state.add_buffer("mean", Inverted<float>{mean.data(), 2});
  host.add("w", host_w, host_g, {.shape = {2, 2}}).add_buffer("mean", host_mean);
  const auto& e = state.entries();
  CHECK(e[0].memory == &inverted);
  CHECK(e[0].shape == mend::Shape{2, 2});

  const float values[] = {1, 2, 3, 4};
  e[0].write(reinterpret_cast<const std::byte*>(values), e[0].value, sizeof values);
  e[1].write(reinterpret_cast<const std::byte*>(host_mean.data()), e[1].value, 8);
  CHECK(w[0] != 1);
  mend::Bytes room;
  CHECK(std::memcmp(e[0].view(room).data(), values, sizeof values) == 0);
  host_w.assign(values, values + 4);
  CHECK(state.hash() == host.hash());
  CHECK(host.entries()[0].view(room).data() == host.entries()[0].value);  // no copy

  CHECK_THROWS_WITH_AS(state.add_copy("w", low),
                       "add_copy: tensor 'w' and its copy must both be in host memory or both on "
                       "the device",
                       mend::StateError);
  state.freeze();
  std::vector<float> m(4);
  state.add_slot(e[0], "m", reinterpret_cast<std::byte*>(m.data()));
  CHECK(state.find("w.m")->memory == &inverted);
  std::vector<float> elsewhere(4);
  state.move_slot(2, reinterpret_cast<std::byte*>(elsewhere.data()));
  CHECK(state.find("w.m")->value == reinterpret_cast<std::byte*>(elsewhere.data()));
  std::int64_t number = 7;
  state.add_slot("count", number);
  CHECK(state.find("count")->dtype == mend::DType::i64);
  CHECK(state.find("count")->bytes() == 8);
  state.release();
  CHECK(state.find("count") == nullptr);
}
