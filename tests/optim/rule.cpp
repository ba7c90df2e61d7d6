#include <mend/optim/rule.hpp>

#include <doctest/doctest.h>

#include <array>
#include <string_view>

namespace {

// A rule as a user writes it, and what is nearly one. Each Broken differs in one place.
struct Mine {
  float lr = 1e-4f;
  static constexpr std::array<std::string_view, 1> slots{"m"};
  struct Coefficients {
    float lr;
  };
  Coefficients at(mend::Step) const { return {lr}; }
  template <class Real>
  MEND_RULE static void apply(Real& p, mend::Slots<Real, 1>& s, Real g, const auto& c) {
    s[0] = s[0] + g;
    p = p - s[0] * c.lr;
  }
  template <class Real>
  MEND_RULE static void revert(Real& p, mend::Slots<Real, 1>& s, Real g, const auto& c) {
    p = p + s[0] * c.lr;
    s[0] = s[0] - g;
  }
};
static_assert(mend::Rule<Mine>);
static_assert(mend::InvertibleOptimizer<Mine>);

struct Base {
  static constexpr std::array<std::string_view, 1> slots{"m"};
  struct Coefficients {
    float lr;
  };
  Coefficients at(mend::Step) const { return {1}; }
  template <class Real>
  static void apply(Real& p, mend::Slots<Real, 1>&, Real g, const auto& c) {
    p = p - g * c.lr;
  }
};
static_assert(mend::Rule<Base>);
static_assert(!mend::InvertibleOptimizer<Base>, "no revert");

struct ParameterByValue : Base {
  template <class Real>
  static void apply(Real p, mend::Slots<Real, 1>&, Real g, const auto& c) {
    p = p - g * c.lr;
  }
};
static_assert(!mend::Rule<ParameterByValue>);

struct SlotsByValue : Base {
  template <class Real>
  static void apply(Real&, mend::Slots<Real, 1>, Real, const auto&) {}
};
static_assert(!mend::Rule<SlotsByValue>);

struct OtherSlots : Base {
  template <class Real>
  static void apply(Real&, mend::Slots<Real, 2>&, Real, const auto&) {}
};
static_assert(!mend::Rule<OtherSlots>, "one name, two slots");

struct BareFloat : Base {
  static void apply(float&, mend::Slots<float, 1>&, float, const auto&) {}
};
static_assert(!mend::Rule<BareFloat>);

struct GradientWritten : Base {
  template <class Real>
  static void apply(Real&, mend::Slots<Real, 1>&, Real&, const auto&) {}
};
static_assert(!mend::Rule<GradientWritten>);

struct NotStatic : Base {
  template <class Real>
  void apply(Real&, mend::Slots<Real, 1>&, Real, const auto&) {}
};
static_assert(!mend::Rule<NotStatic>);

struct AnswersSomething : Base {
  template <class Real>
  static Real apply(Real& p, mend::Slots<Real, 1>&, Real, const auto&) {
    return p;
  }
};
static_assert(!mend::Rule<AnswersSomething>);

struct AtReturnsOther : Base {
  float at(mend::Step) const { return 1; }
};
static_assert(!mend::Rule<AtReturnsOther>);

struct AtChangesTheRule : Base {
  Coefficients at(mend::Step) { return {1}; }
};
static_assert(!mend::Rule<AtChangesTheRule>);

struct NamesAreNotConstant : Base {
  static inline std::array<std::string_view, 1> slots{};
};
static_assert(!mend::Rule<NamesAreNotConstant>);

struct RevertByValue : Mine {
  template <class Real>
  MEND_RULE static void revert(Real, mend::Slots<Real, 1>&, Real, const auto&) {}
};
static_assert(mend::Rule<RevertByValue>);
static_assert(!mend::InvertibleOptimizer<RevertByValue>);

static_assert(!mend::Rule<int>);

}  // namespace

TEST_CASE("a rule computes with numbers that are wrapped") {
  using Real = mend::kernel::Scalar<float>;
  Real p = 1;
  mend::Slots<Real, 1> s{{Real{2}}};
  const Mine rule{.lr = 0.5f};
  Mine::apply<Real>(p, s, Real{1}, rule.at(0));
  float value = 0;
  p.store(&value);
  CHECK(value == 1 - 3 * 0.5f);
  Mine::revert<Real>(p, s, Real{1}, rule.at(0));
  p.store(&value);
  CHECK(value == 1);
}
