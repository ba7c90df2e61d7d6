#include <mend/optim/norm_rule.hpp>

#include <doctest/doctest.h>

#include <mend/kernel/host/apply.hpp>
#include <mend/kernel/host/norms.hpp>

#include <array>
#include <cstddef>
#include <string_view>
#include <vector>

namespace {

// Gradient descent on a gradient of unit norm.
struct Unit {
  static constexpr std::array<std::string_view, 0> slots{};
  static constexpr std::size_t norms = 1;
  struct Coefficients {
    double lr;
  };
  Coefficients at(mend::Step) const { return {0.5}; }
  template <class Real>
  MEND_RULE static void prepare(const Real&, const mend::Slots<Real, 0>&, Real g, const auto&,
                                mend::Slots<Real, 1>& terms) {
    terms[0] = g;
  }
  static Coefficients with_norms(Coefficients c, const std::array<double, 1>& of) {
    return {c.lr / of[0]};
  }
  template <class Real>
  MEND_RULE static void apply(Real& p, mend::Slots<Real, 0>&, Real g, const auto& c) {
    p = p - c.lr * g;
  }
};
static_assert(mend::NormRule<Unit>);

struct OtherCount : Unit {
  static constexpr std::size_t norms = 2;  // prepare fills one
};
static_assert(mend::Rule<OtherCount> && !mend::NormRule<OtherCount>);

struct ParameterWritten : Unit {
  template <class Real>
  MEND_RULE static void prepare(Real&, const mend::Slots<Real, 0>&, Real, const auto&,
                                mend::Slots<Real, 1>&) {}
};
static_assert(mend::Rule<ParameterWritten> && !mend::NormRule<ParameterWritten>);

struct KeepsNorms : Unit {
  static void with_norms(const Coefficients&, const std::array<double, 1>&) {}
};
static_assert(mend::Rule<KeepsNorms> && !mend::NormRule<KeepsNorms>);

}  // namespace

TEST_CASE("norms, then coefficients for the tensor, then the update") {
  std::vector<float> p{1, 1};
  const std::vector<float> g{3, 4};
  auto c = Unit{}.at(0);
  c = Unit::with_norms(c, mend::kernel::norms<Unit>(c, p.data(), {}, g.data(), 2));
  CHECK(c.lr == 0.1);
  mend::kernel::apply<Unit>(c, p.data(), {}, g.data(), 2);
  CHECK(p[0] == 1 - 0.1f * 3);
  CHECK(p[1] == 1 - 0.1f * 4);
}
