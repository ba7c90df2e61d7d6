#include <mend/session/bucket_plan.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace {

using namespace mend;

struct Half {
  std::uint16_t bits;
};

}  // namespace

template <>
inline constexpr mend::DType mend::dtype_of<Half> = mend::DType::bf16;

namespace {

constexpr std::size_t small = BucketPlan::small_bytes, packed = BucketPlan::packed_bytes;

// A state of tensors of these sizes, "0", "1", ..., their gradients numbered throughout.
struct Tensors {
  std::vector<std::vector<float>> values, gradients;
  TrainState state;

  explicit Tensors(const std::vector<std::size_t>& floats) {
    float next = 0;
    for (std::size_t n : floats) {
      values.emplace_back(n);
      gradients.emplace_back(n);
      for (float& g : gradients.back()) g = next++;
    }
    for (std::size_t i = 0; i < floats.size(); ++i)
      state.add(std::to_string(i), values[i], gradients[i]);
  }
};
std::string shape_of(const BucketPlan& plan) {  // entries per bucket: "0|1,2|3"
  std::string text;
  for (std::size_t b = 0; b < plan.size(); ++b) {
    text += b == 0 ? "" : "|";
    for (std::size_t i = 0; i < plan[b].entries.size(); ++i)
      text += (i == 0 ? "" : ",") + std::to_string(plan[b].entries[i]);
  }
  return text;
}

TEST_CASE("a large tensor is a bucket of its own and is not copied") {
  Tensors t{{small / 4, small / 4 + 1, 100000}};
  BucketPlan plan{t.state};
  CHECK(shape_of(plan) == "0|1|2");
  for (std::size_t b = 0; b < 3; ++b) {
    CHECK(!plan[b].packed());
    CHECK(plan[b].data == reinterpret_cast<std::byte*>(t.gradients[b].data()));
    CHECK(plan[b].count == t.gradients[b].size());
    CHECK(plan[b].bytes() == 4 * t.gradients[b].size());
    plan.pack(b);
    plan.unpack(b);
    CHECK(t.gradients[b][1] == t.gradients[b][0] + 1);
  }
}

TEST_CASE("small neighbours share one; a large one in between parts them") {
  CHECK(shape_of(BucketPlan{Tensors{{3, 5, 7}}.state}) == "0,1,2");
  CHECK(shape_of(BucketPlan{Tensors{{3, 5, small, 7, 9, 11}}.state}) == "0,1|2|3,4,5");
  CHECK(shape_of(BucketPlan{Tensors{{small, 7, small}}.state}) == "0|1|2");
  CHECK(shape_of(BucketPlan{Tensors{{}}.state}).empty());
}

TEST_CASE("a pack has an end") {
  std::vector<std::size_t> floats(packed / (small / 2) + 1, small / 2 / 4);  // one too many
  Tensors t{floats};
  BucketPlan plan{t.state};
  REQUIRE(plan.size() == 2);
  CHECK(plan[0].bytes() == packed);
  CHECK(plan[1].entries.size() == 1);
}

TEST_CASE("gradients go into the pack and back") {
  Tensors t{{3, 5, 7}};
  BucketPlan plan{t.state};
  plan.pack(0);
  auto* all = reinterpret_cast<float*>(plan[0].data);
  for (int i = 0; i < 15; ++i) CHECK(all[i] == static_cast<float>(i));
  for (int i = 0; i < 15; ++i) all[i] += 100;
  plan.unpack(0);
  CHECK(t.gradients[0] == std::vector<float>{100, 101, 102});
  CHECK(t.gradients[2].back() == 114);
}

TEST_CASE("types are not mixed, and a narrow gradient counts by its own size") {
  std::vector<float> a(10), ga(10), b(10), c(10), gc(10), large(small / 4 + 1);
  std::vector<double> d(10), gd(10);
  std::vector<Half> gb(10), glarge(small / 4 + 1);
  TrainState state;
  state.add("a", a, ga).add("b", b, gb).add("c", c, gc).add("d", d, gd).add("e", large, glarge);
  BucketPlan plan{state};
  CHECK(shape_of(plan) == "0|1|2|3|4");
  CHECK(plan[1].dtype == DType::bf16);
  CHECK(plan[1].bytes() == 20);
  CHECK(plan[3].dtype == DType::f64);
  std::vector<float> f(10);
  std::vector<Half> gf(10);
  state.add("f", f, gf);  // the large tensor's gradient is small: half as many bytes
  CHECK(shape_of(BucketPlan{state}) == "0|1|2|3|4,5");
}

TEST_CASE("what has no gradient of its own is in no bucket: buffers, tied and empty tensors") {
  std::vector<float> w(4), g(4), mean(4), empty;
  float scale = 1;
  TrainState state;
  state.add("w", w, g)
      .add_buffer("mean", mean)
      .add("tied", w, g)
      .add("empty", empty, empty)
      .add_scalar("scale", scale);
  BucketPlan plan{state};
  CHECK(shape_of(plan) == "0");
  CHECK(plan.find(plan.entry("w")) == 0);
  CHECK(plan.find(plan.entry("tied")) == 0);  // the owner's bucket
  CHECK(plan.find(plan.entry("empty")) == plan.size());
  CHECK_THROWS_WITH_AS((void)plan.entry("mean"),
                       "ready(\"mean\"): no tensor of that name was added", StateError);
  CHECK_THROWS_AS((void)plan.entry("nothing"), StateError);
}

TEST_CASE("tensors are found in their buckets, and buffers bear the bucket's number") {
  Tensors t{{3, 5, small, 7}};
  BucketPlan plan{t.state};
  CHECK(plan.find(plan.entry("0")) == 0);
  CHECK(plan.find(plan.entry("1")) == 0);
  CHECK(plan.find(plan.entry("2")) == 1);
  CHECK(plan.find(plan.entry("3")) == 2);
  for (std::size_t b = 0; b < plan.size(); ++b) {
    comm::Buffer buffer = plan.buffer(b);
    CHECK(buffer.data == plan[b].data);
    CHECK(buffer.count == plan[b].count);
    CHECK(buffer.dtype == DType::f32);
    CHECK(buffer.reduction == comm::Reduction::mean);
    CHECK(buffer.tag == b);
  }
}

}  // namespace
