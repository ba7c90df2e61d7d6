#include <mend/kernel/cuda/apply.cuh>

#include <doctest/doctest.h>

#include <mend/core/error.hpp>
#include <mend/kernel/host/apply.hpp>
#include <mend/kernel/host/reduce.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/device.hpp"
#include "cuda/rules.hpp"

using mend::DType;

namespace {

//! A rule of a user's own.
struct Plain {
  static constexpr std::array<std::string_view, 0> slots{};
  struct Coefficients {
    double rate;
  };
  template <class Real>
  MEND_RULE static void apply(Real& p, mend::Slots<Real, 0>&, Real g, const auto& c) {
    p = p - g * c.rate;
  }
};

// Sizes around a vector, a warp, a block's share; shifts off every alignment.
struct Shape {
  std::size_t n, shift;
};
const std::vector<Shape> shapes{{0, 0},    {1, 0},    {2, 1},    {3, 0},     {4, 0},
                                {5, 3},    {31, 0},   {33, 2},   {255, 0},   {1021, 0},
                                {1024, 0}, {1027, 1}, {2500, 0}, {16384, 0}, {16391, 0}};

//! The state of one tensor on the host.
template <class Rule, class T>
struct State {
  static constexpr std::size_t slot_count = Rule::slots.size();
  std::vector<T> value;
  std::array<std::vector<T>, slot_count> slots;

  State(std::size_t n, std::uint64_t seed) : value{test::numbers<T>(n, seed)} {
    for (std::size_t k = 0; k != slot_count; ++k) {
      slots[k] = test::numbers<T>(n, seed + 10 + k);
      // Second moments are not negative in real life; here one in three is.
      for (std::size_t i = 0; i < n; ++i)
        if (i % 3 != 0) slots[k][i] = slots[k][i] < 0 ? -slots[k][i] : slots[k][i];
    }
  }
  std::array<T*, slot_count> pointers() {
    std::array<T*, slot_count> p{};
    for (std::size_t k = 0; k != slot_count; ++k) p[k] = slots[k].data();
    return p;
  }
  friend bool operator==(const State& a, const State& b) {
    bool same = test::same_bits(a.value, b.value);
    for (std::size_t k = 0; k != slot_count; ++k)
      same = same && test::same_bits(a.slots[k], b.slots[k]);
    return same;
  }
};

//! The same on the device.
template <class Rule, class T>
struct DeviceState {
  static constexpr std::size_t slot_count = Rule::slots.size();
  test::OnDevice<T> value;
  std::vector<test::OnDevice<T>> slots;

  DeviceState(const State<Rule, T>& from, std::size_t shift) : value{from.value, shift} {
    for (const auto& slot : from.slots) slots.emplace_back(slot, shift);
  }
  mend::cuda::Parameter<Rule, T> parameter(const void* gradient, DType gradient_type) const {
    mend::cuda::Parameter<Rule, T> p{value.data(), {}, gradient, gradient_type, value.size()};
    if constexpr (slot_count > 0)
      for (std::size_t k = 0; k != slot_count; ++k) p.slots[k] = slots[k].data();
    return p;
  }
  State<Rule, T> read(const test::Stream& stream) const {
    State<Rule, T> state(0, 0);
    state.value = value.read(stream);
    for (std::size_t k = 0; k != slot_count; ++k) state.slots[k] = slots[k].read(stream);
    return state;
  }
};

//! Tensors of all shapes, updated in one launch, against one call of the host's kernel each.
template <class Rule, class T, bool forward>
void same_as_host(T scale) {
  const test::Stream stream;
  const auto c = Rule{}.at(3);
  std::vector<State<Rule, T>> host;
  std::vector<DeviceState<Rule, T>> device;
  std::vector<std::vector<T>> gradients;
  std::vector<test::OnDevice<T>> device_gradients;
  std::vector<mend::cuda::Parameter<Rule, T>> parameters;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const auto [n, shift] = shapes[i];
    host.emplace_back(n, i);
    gradients.push_back(test::numbers<T>(n, 100 + i));
    device.emplace_back(host.back(), shift);
    device_gradients.emplace_back(gradients.back(), shift);
    parameters.push_back(
        device.back().parameter(device_gradients.back().data(), mend::dtype_of<T>));
  }
  const auto table = mend::cuda::parameters<Rule, T>(std::move(parameters), stream);
  if constexpr (forward)
    mend::cuda::apply_async(table, c, scale, stream);
  else
    mend::cuda::revert_async(table, c, scale, stream);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    CAPTURE(shapes[i].n);
    CAPTURE(shapes[i].shift);
    auto& h = host[i];
    if constexpr (forward)
      mend::kernel::apply<Rule>(c, h.value.data(), h.pointers(), gradients[i].data(), shapes[i].n,
                                scale);
    else
      mend::kernel::revert<Rule>(c, h.value.data(), h.pointers(), gradients[i].data(), shapes[i].n,
                                 scale);
    CHECK(device[i].read(stream) == h);
    CHECK(test::same_bits(device_gradients[i].read(stream), gradients[i]));
  }
}

}  // namespace

TEST_CASE_TEMPLATE("an update on the device has the host's bits", Rule, MEND_TEST_RULES) {
  same_as_host<Rule, float, true>(1);
  same_as_host<Rule, float, true>(0.3f);
}

TEST_CASE_TEMPLATE("so has its inverse", Rule, MEND_TEST_INVERTIBLE_RULES) {
  same_as_host<Rule, float, false>(0.3f);
}

TEST_CASE_TEMPLATE("doubles too", Rule, mend::Adam, mend::Lion) {
  same_as_host<Rule, double, true>(0.3);
  same_as_host<Rule, double, false>(1);
}

TEST_CASE("a gradient of 16 bits moves a float as its value does") {
  using Rule = mend::Adam;
  const test::Stream stream;
  const auto c = Rule{}.at(0);
  for (DType type : {DType::bf16, DType::f16})
    for (const Shape& shape : shapes) {
      const std::size_t n = shape.n, shift = shape.shift;
      CAPTURE(n);
      State<Rule, float> host(n, n);
      const DeviceState<Rule, float> device(host, shift);
      const auto gradient = test::patterns(n, n + 1);
      const test::OnDevice<std::uint16_t> device_gradient{gradient, shift};
      const auto table = mend::cuda::parameters<Rule, float>(
          {device.parameter(device_gradient.data(), type)}, stream);
      mend::cuda::apply_async(table, c, 0.5f, stream);
      std::vector<float> wide(n);
      mend::kernel::to_float(type, gradient.data(), wide.data(), n);
      mend::kernel::apply<Rule>(c, host.value.data(), host.pointers(), wide.data(), n, 0.5f);
      CHECK(device.read(stream) == host);
    }
}

TEST_CASE("every tensor may have its own coefficients, new at every step") {
  using Rule = Plain;
  const test::Stream stream;
  const std::vector<std::size_t> sizes{70, 5, 20000};
  std::vector<State<Rule, float>> host;
  std::vector<DeviceState<Rule, float>> device;
  std::vector<std::vector<float>> gradients;
  std::vector<test::OnDevice<float>> device_gradients;
  std::vector<mend::cuda::Parameter<Rule>> parameters;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    host.emplace_back(sizes[i], i);
    device.emplace_back(host[i], 0);
    gradients.push_back(test::numbers<float>(sizes[i], 7 + i));
    device_gradients.emplace_back(gradients[i]);
    parameters.push_back(device[i].parameter(device_gradients[i].data(), DType::f32));
  }
  const auto table = mend::cuda::parameters<Rule>(std::move(parameters), stream);
  mend::cuda::CoefficientList<Rule> coefficients{sizes.size()};
  for (int step = 0; step < 3; ++step) {  // nothing waits between the steps
    std::vector<Rule::Coefficients> c;
    for (std::size_t i = 0; i < sizes.size(); ++i) c.push_back({0.1 * (step + 1) + double(i)});
    coefficients.upload_async(c, stream);
    c.assign(c.size(), {0});
    mend::cuda::apply_async(table, coefficients, 1, stream);
    for (std::size_t i = 0; i < sizes.size(); ++i)
      mend::kernel::apply<Rule>({0.1 * (step + 1) + double(i)}, host[i].value.data(), {},
                                gradients[i].data(), sizes[i]);
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) CHECK(device[i].read(stream) == host[i]);
}

TEST_CASE("nothing happens for no tensors, or empty ones") {
  const test::Stream stream;
  const auto none = mend::cuda::parameters<Plain>({}, stream);
  mend::cuda::apply_async(none, Plain::Coefficients{0.1}, 1, stream);
  const auto empty = mend::cuda::parameters<Plain>({{nullptr, {}, nullptr, DType::f32, 0}}, stream);
  CHECK(empty.chunks() == 0);
  mend::cuda::apply_async(empty, Plain::Coefficients{0.1}, 1, stream);
  stream.wait();
}

TEST_CASE("a gradient of another type is refused") {
  const test::Stream stream;
  CHECK_THROWS_WITH_AS(
      (void)(mend::cuda::parameters<Plain, float>({{nullptr, {}, nullptr, DType::f64, 0}}, stream)),
      "a parameter of F32 cannot take a gradient of F64", mend::OptionError);
  CHECK_THROWS_AS((void)(mend::cuda::parameters<Plain, double>(
                      {{nullptr, {}, nullptr, DType::bf16, 0}}, stream)),
                  mend::OptionError);
}
