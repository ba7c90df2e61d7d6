#include <mend/kernel/cuda/rule_norms.cuh>

#include <doctest/doctest.h>

#include <mend/kernel/cuda/apply.cuh>
#include <mend/kernel/host/apply.hpp>
#include <mend/kernel/host/norms.hpp>
#include <mend/kernel/host/reduce.hpp>
#include <mend/optim/lamb.hpp>
#include <mend/optim/lars.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/device.hpp"

using mend::DType;

namespace {

template <class T>
std::vector<T> small_numbers(std::size_t n, std::uint64_t seed, bool positive) {
  std::vector<T> v(n);
  for (std::size_t i = 0; i < n; ++i) {
    const T x = test::number<T>(test::mix(seed) + i, 6);
    v[i] = positive && x < 0 ? -x : x;
  }
  return v;
}

//! A step of some tensors: norms, coefficients, update.
template <class Rule, class T>
void steps_like_host(const std::vector<std::size_t>& sizes, std::size_t shift) {
  constexpr std::size_t slot_count = Rule::slots.size();
  const test::Stream stream;
  const auto c = Rule{}.at(4);
  const T scale = T(0.3);
  std::vector<std::vector<T>> p, g;
  std::vector<std::array<std::vector<T>, slot_count>> slots;
  std::vector<test::OnDevice<T>> device_p, device_g, device_slots;
  std::vector<mend::cuda::Parameter<Rule, T>> parameters;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    p.push_back(small_numbers<T>(sizes[i], i, false));
    g.push_back(small_numbers<T>(sizes[i], i + 50, false));
    device_p.emplace_back(p[i], shift);
    device_g.emplace_back(g[i], shift);
    parameters.push_back({device_p[i].data(), {}, device_g[i].data(), mend::dtype_of<T>, sizes[i]});
    slots.emplace_back();
    for (std::size_t k = 0; k != slot_count; ++k) {
      slots[i][k] = small_numbers<T>(sizes[i], i + 100 * k, k == 1);
      device_slots.emplace_back(slots[i][k], shift);
      parameters[i].slots[k] = device_slots.back().data();
    }
  }
  const auto table = mend::cuda::parameters<Rule, T>(std::move(parameters), stream);
  mend::cuda::RuleNorms<Rule, T> norms{table, stream};
  norms.compute_async(c, scale, stream);
  const auto found = norms.read(stream);
  std::vector<typename Rule::Coefficients> each;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    CAPTURE(sizes[i]);
    std::array<T*, slot_count> s;
    std::array<const T*, slot_count> read;
    for (std::size_t k = 0; k != slot_count; ++k) read[k] = s[k] = slots[i][k].data();
    const auto expected =
        mend::kernel::norms<Rule>(c, p[i].data(), read, g[i].data(), sizes[i], scale);
    CHECK(found[i] == expected);
    each.push_back(Rule::with_norms(c, found[i]));
    mend::kernel::apply<Rule>(Rule::with_norms(c, expected), p[i].data(), s, g[i].data(), sizes[i],
                              scale);
  }
  mend::cuda::CoefficientList<Rule> list{each.size()};
  list.upload_async(each, stream);
  mend::cuda::apply_async(table, list, scale, stream);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    CHECK(test::same_bits(device_p[i].read(stream), p[i]));
    for (std::size_t k = 0; k != slot_count; ++k)
      CHECK(test::same_bits(device_slots[i * slot_count + k].read(stream), slots[i][k]));
  }
}

}  // namespace

TEST_CASE_TEMPLATE("a step of a rule with norms has the host's bits", Rule, mend::Lamb,
                   mend::Lars) {
  for (std::size_t shift : {0, 1}) {
    steps_like_host<Rule, float>({0, 1, 16, 1000, 1024, 1025, 66000}, shift);
    steps_like_host<Rule, double>({5, 3000}, shift);
  }
}

TEST_CASE("norms of a 16-bit gradient are those of its values; one NaN for all") {
  using Rule = mend::Lamb;
  const test::Stream stream;
  for (DType type : {DType::bf16, DType::f16}) {
    const std::size_t n = 3000;
    const auto p = small_numbers<float>(n, 1, false);
    const std::vector<float> zeros(n);
    const auto patterns = test::patterns(n, 5);  // NaNs among them
    std::vector<float> g(n);
    mend::kernel::to_float(type, patterns.data(), g.data(), n);
    const test::OnDevice<float> dp{p}, dm{zeros}, dv{zeros};
    const test::OnDevice<std::uint16_t> dg{patterns};
    const auto table = mend::cuda::parameters<Rule>(
        {{dp.data(), {{dm.data(), dv.data()}}, dg.data(), type, n}}, stream);
    mend::cuda::RuleNorms<Rule> norms{table, stream};
    norms.compute_async(Rule{}.at(0), 1, stream);
    const auto found = norms.read(stream)[0];
    const auto expected = mend::kernel::norms<Rule>(Rule{}.at(0), p.data(),
                                                    {zeros.data(), zeros.data()}, g.data(), n);
    CHECK(std::bit_cast<std::array<std::uint64_t, 2>>(found) ==
          std::bit_cast<std::array<std::uint64_t, 2>>(expected));
  }
}
