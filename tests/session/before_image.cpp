#include <mend/session/before_image.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using namespace mend;

Bytes bytes_of(const std::string& text) {
  ByteView v = std::as_bytes(std::span{text});
  return {v.begin(), v.end()};
}

// Everything that a state can hold.
struct Everything {
  std::vector<float> w{1, 2}, g{3, 4};
  std::vector<double> mean{5, 6, 7}, left_out{8};
  std::vector<std::uint8_t> flags{1};
  std::vector<float> empty;
  std::int64_t position = 9;
  float scale = 10;
  std::string loader = "ten", shared = "x";
  int saves = 0;
  TrainState state;

  Everything() {
    auto save = [](const std::string& text) { return bytes_of(text); };
    auto load = [](std::string& text, ByteView b) {
      text.assign(reinterpret_cast<const char*>(b.data()), b.size());
    };
    state.add("w", w, g)
        .add_buffer("mean", mean)
        .add_buffer("left out", left_out, {}, {.before_image = false})
        .add_scalar("position", position, PerRank{})
        .add_state(
            "loader",
            [this, save] {
              ++saves;
              return save(loader);
            },
            [this, load](ByteView b) { load(loader, b); })
        .add_buffer("empty", empty)
        .add_buffer("flags", flags, PerRank{.copies = 0})
        .add_state(
            "shared", [this, save] { return save(shared); },
            [this, load](ByteView b) { load(shared, b); }, Replicated{})
        .add_scalar("scale", scale);
  }
  void change() {
    for (float& x : w) x = -1;
    for (float& x : g) x = -1;
    for (double& x : mean) x = -1;
    left_out[0] = -1;
    flags[0] = 77;
    position = -1;
    scale = -1;
    loader = "something longer";
    shared.clear();
  }
};

TEST_CASE("buffers, scalars and states return to where they were; tensors stay as they are") {
  Everything e;
  BeforeImage image{e.state};
  image.take();
  e.change();
  image.restore();
  CHECK(e.mean == std::vector<double>{5, 6, 7});
  CHECK(e.flags == std::vector<std::uint8_t>{1});
  CHECK(e.position == 9);
  CHECK(e.scale == 10);
  CHECK(e.loader == "ten");
  CHECK(e.shared == "x");
  CHECK(e.w == std::vector<float>{-1, -1});
  CHECK(e.g == std::vector<float>{-1, -1});
  CHECK(e.left_out == std::vector<double>{-1});  // it said that only the update changes it
}

TEST_CASE("it can be restored more than once, and taken anew") {
  Everything e;
  BeforeImage image{e.state};
  image.take();
  for (int i = 0; i < 3; ++i) {
    e.change();
    image.restore();
    CHECK(e.position == 9);
    CHECK(e.loader == "ten");
  }
  e.position = 11;
  e.loader = "another";
  image.take();
  e.change();
  image.restore();
  CHECK(e.position == 11);
  CHECK(e.loader == "another");
}

TEST_CASE("its size is that of what it holds") {
  Everything e;
  BeforeImage image{e.state};
  std::size_t fixed = 3 * sizeof(double) + 1 + sizeof(std::int64_t) + sizeof(float);
  CHECK(image.bytes().value() == fixed);  // states are not known before the first step
  image.take();
  CHECK(image.bytes().value() == fixed + 3 + 1);
  e.loader = std::string(1000, 'l');
  image.take();
  CHECK(image.bytes().value() == fixed + 1000 + 1);
  CHECK(e.saves == 2);  // once per step, no more
}

TEST_CASE("a state without buffers costs nothing") {
  std::vector<float> w(1000), g(1000);
  TrainState state;
  state.add("w", w, g);
  BeforeImage image{state};
  image.take();
  CHECK(image.bytes().value() == 0);
  image.restore();
}

TEST_CASE("a save that throws reaches the caller") {
  TrainState state;
  state.add_state(
      "broken", []() -> Bytes { throw std::runtime_error{"disk"}; }, [](ByteView) {});
  BeforeImage image{state};
  CHECK_THROWS_WITH(image.take(), "disk");
}

}  // namespace
