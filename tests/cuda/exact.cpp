#include <mend/kernel/cuda/exact.cuh>

#include <doctest/doctest.h>

#include <mend/kernel/cuda/apply.cuh>
#include <mend/kernel/host/apply.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "cuda/device.hpp"
#include "cuda/rules.hpp"

using mend::DType;

namespace {

//! A rule without bounds: its inverse is tried at once.
struct Unbounded {
  static constexpr std::array<std::string_view, 1> slots{"m"};
  struct Coefficients {
    double rate;
  };
  [[nodiscard]] Coefficients at(mend::Step) const { return {0.01}; }
  template <class Real>
  MEND_RULE static void apply(Real& p, mend::Slots<Real, 1>& s, Real g, const auto& c) {
    s[0] = s[0] + g;
    p = p - s[0] * c.rate;
  }
  template <class Real>
  MEND_RULE static void revert(Real& p, mend::Slots<Real, 1>& s, Real g, const auto& c) {
    p = p + s[0] * c.rate;
    s[0] = s[0] - g;
  }
};

template <class Rule>
bool bounded(const typename Rule::Coefficients& c) {
  if constexpr (requires { Rule::bounded(c); })
    return Rule::bounded(c);
  else
    return true;
}

enum class Kind { ordinary, special };

template <class T>
std::vector<T> numbers(std::size_t n, std::uint64_t seed, Kind kind) {
  if (kind == Kind::special) return test::numbers<T>(n, seed);
  std::vector<T> v(n);
  for (std::size_t i = 0; i < n; ++i) v[i] = test::number<T>(test::mix(seed) + i, 8);
  return v;
}

//! One tensor on the host, and on the device: the value and slots, then the gradient.
template <class Rule, class T>
struct Tensor {
  static constexpr std::size_t slot_count = Rule::slots.size();
  std::vector<std::vector<T>> host;
  std::vector<test::OnDevice<T>> device;

  Tensor(std::size_t n, std::size_t shift, std::uint64_t seed, Kind kind) {
    for (std::size_t k = 0; k != slot_count + 2; ++k) {
      host.push_back(numbers<T>(n, seed + k, kind));
      if (k == 2 && slot_count == 2)  // second moments are not negative, but for some
        for (std::size_t i = 0; i < n; ++i)
          if (i % 50 != 0 && host[k][i] < 0) host[k][i] = -host[k][i];
      device.emplace_back(host[k], shift);
    }
  }
  [[nodiscard]] mend::cuda::Parameter<Rule, T> parameter() const {
    mend::cuda::Parameter<Rule, T> p{
        device[0].data(), {}, device[slot_count + 1].data(), mend::dtype_of<T>, device[0].size()};
    if constexpr (slot_count > 0)
      for (std::size_t k = 0; k != slot_count; ++k) p.slots[k] = device[k + 1].data();
    return p;
  }
  [[nodiscard]] std::vector<std::vector<T>> updated(const typename Rule::Coefficients& c,
                                                    T scale) const {
    auto after = host;
    std::array<T*, slot_count> slots{};
    for (std::size_t k = 0; k != slot_count; ++k) slots[k] = after[k + 1].data();
    mend::kernel::apply<Rule>(c, after[0].data(), slots, host[slot_count + 1].data(),
                              host[0].size(), scale);
    return after;
  }
  [[nodiscard]] bool holds(const std::vector<std::vector<T>>& values,
                           const test::Stream& stream) const {
    bool same = true;
    for (std::size_t k = 0; k != slot_count + 1; ++k)
      same = same && test::same_bits(device[k].read(stream), values[k]);
    return same;
  }
};

//! Updates and takes back tensors of several shapes.
template <class Rule, class T>
void goes_and_comes_back(mend::Step applied, Kind kind, bool own_rate = false) {
  const test::Stream stream;
  const auto c = Rule{}.at(applied);
  const T scale = T(0.7);
  std::vector<Tensor<Rule, T>> tensors;
  std::vector<mend::cuda::Parameter<Rule, T>> parameters;
  const std::array<std::size_t, 9> sizes{0, 1, 31, 127, 128, 129, 1000, 4096, 9001};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    tensors.emplace_back(sizes[i], i % 4 == 3 ? 1 : 0, 100 * i, kind);
    parameters.push_back(tensors.back().parameter());
  }
  const auto table = mend::cuda::parameters<Rule, T>(std::move(parameters), stream);
  mend::cuda::ExactRecord<Rule, T> record{table, 100, stream};
  mend::cuda::CoefficientList<Rule> list{sizes.size()};
  list.upload_async(std::vector<typename Rule::Coefficients>(sizes.size(), c), stream);
  for (int again = 0; again < 2; ++again) {
    const auto update = [&] {
      if (own_rate)
        record.apply_async(list, scale, stream, !bounded<Rule>(c));
      else
        record.apply_async(c, scale, stream, !bounded<Rule>(c));
    };
    update();
    if (!record.complete(stream)) {
      update();
      CHECK(record.complete(stream));
    }
    for (const auto& t : tensors) {
      CAPTURE(t.host[0].size());
      CHECK(t.holds(t.updated(c, scale), stream));
    }
    if (own_rate)
      record.revert_async(list, scale, stream);
    else
      record.revert_async(c, scale, stream);
    for (const auto& t : tensors) {
      CAPTURE(t.host[0].size());
      CHECK(t.holds(t.host, stream));
    }
  }
}

}  // namespace

TEST_CASE_TEMPLATE("an exact update is the host's, and its undo restores every bit", Rule,
                   MEND_TEST_INVERTIBLE_RULES, Unbounded) {
  for (mend::Step applied : {0, 9}) {
    CAPTURE(applied.value());
    for (Kind kind : {Kind::ordinary, Kind::special})
      goes_and_comes_back<Rule, float>(applied, kind);
  }
  goes_and_comes_back<Rule, float>(999, Kind::special, true);
}

TEST_CASE_TEMPLATE("doubles too", Rule, mend::Adam, mend::Sgd, Unbounded) {
  for (Kind kind : {Kind::ordinary, Kind::special}) goes_and_comes_back<Rule, double>(3, kind);
}

TEST_CASE("a record without room refuses, changes nothing it cannot undo, and goes on") {
  using Rule = mend::Adam;
  const test::Stream stream;
  const auto c = Rule{}.at(1);
  for (bool all_raw : {false, true}) {
    const Tensor<Rule, float> t{20000, 0, 1, Kind::special};
    const auto table = mend::cuda::parameters<Rule>({t.parameter()}, stream);
    mend::cuda::ExactRecord<Rule> record{table, 0, stream};
    const std::size_t bytes = record.bytes();
    record.apply_async(c, 1, stream, all_raw);
    CHECK(!t.holds(t.updated(c, 1), stream));
    record.revert_async(c, 1, stream);  // half-done
    CHECK(t.holds(t.host, stream));
    record.apply_async(c, 1, stream, all_raw);
    CHECK(!record.complete(stream));
    CHECK(record.bytes() > bytes);
    record.apply_async(c, 1, stream, all_raw);
    CHECK(record.complete(stream));
    CHECK(t.holds(t.updated(c, 1), stream));
    record.revert_async(c, 1, stream);
    CHECK(t.holds(t.host, stream));
    record.apply_async(c, 1, stream, all_raw);  // now there is room at once
    CHECK(record.complete(stream));
    record.drop_async(stream);
    record.revert_async(c, 1, stream);  // nothing to take back
    CHECK(t.holds(t.updated(c, 1), stream));
  }
}

TEST_CASE("a steady Adam keeps within its own place, and no negative zero is lost") {
  using Rule = mend::Adam;
  const test::Stream stream;
  const auto c = Rule{}.at(100);
  const std::size_t n = 8192;
  Tensor<Rule, float> t{n, 0, 3, Kind::ordinary};
  // As after many steps: averages of the gradient and of its square.
  for (std::size_t i = 0; i < n; ++i) {
    const float g = t.host[3][i];
    t.host[1][i] = 0.3f * g + 0.1f * test::number<float>(i, 3);
    t.host[2][i] = g * g * 1.1f;
  }
  t.host[0][77] = -0.0f;
  t.device.clear();
  for (const auto& array : t.host) t.device.emplace_back(array);
  const auto table = mend::cuda::parameters<Rule>({t.parameter()}, stream);
  mend::cuda::ExactRecord<Rule> record{table, 2000, stream};
  CHECK(record.bytes() <= n * 13 / 8 + 2000 * sizeof(float));
  record.apply_async(c, 1, stream);
  CHECK(record.complete(stream));
  CHECK(t.holds(t.updated(c, 1), stream));
  record.revert_async(c, 1, stream);
  CHECK(t.holds(t.host, stream));
}

TEST_CASE("a thousand updates and undos change no bit") {
  using Rule = mend::Adam;
  const test::Stream stream;
  const std::size_t n = 300;
  Tensor<Rule, float> t{n, 0, 5, Kind::ordinary};
  const auto table = mend::cuda::parameters<Rule>({t.parameter()}, stream);
  mend::cuda::ExactRecord<Rule> record{table, 3 * n + 3 * 128, stream};
  const auto c = Rule{}.at(20);
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const auto g = numbers<float>(n, 1000 + i, Kind::ordinary);
    mend::cuda::copy_async<float>(std::span<const float>{g}, t.device[3].span(), stream);
    record.apply_async(c, 1, stream);
    record.revert_async(c, 1, stream);
  }
  CHECK(t.holds(t.host, stream));
  mend::cuda::apply_async(table, c, 1, stream);  // and the rule's own inverse does change some
  mend::cuda::revert_async(table, c, 1, stream);
  CHECK(!t.holds(t.host, stream));
}
