#include <mend/optim/check_rule.hpp>

#include <doctest/doctest.h>

#include <mend/optim/bounded_rule.hpp>
#include <mend/optim/inverse.hpp>
#include <mend/optim/norm_rule.hpp>

#include <array>
#include <limits>
#include <string>
#include <string_view>

namespace {

// A sound rule whose apply and revert the broken ones below replace.
template <std::size_t n>
struct Base {
  static constexpr std::array<std::string_view, n> slots{};
  struct Coefficients {
    float lr, decay;
  };
  Coefficients at(mend::Step) const { return {0.01f, 0.5f}; }
};

struct Sound : Base<1> {
  static constexpr std::array<std::string_view, 1> slots{"m"};
  template <class Real>
  MEND_RULE static void apply(Real& p, mend::Slots<Real, 1>& s, Real g, const auto& c) {
    s[0] = fma(c.decay, s[0], g);
    p = p - c.lr * s[0];
  }
  template <class Real>
  MEND_RULE static void revert(Real& p, mend::Slots<Real, 1>& s, Real g, const auto& c) {
    p = p + c.lr * s[0];
    s[0] = (s[0] - g) / c.decay;
  }
};

// A rule that needs norms, for the broken ones.
struct WithNorms : Base<0> {
  static constexpr std::size_t norms = 2;
  template <class Real>
  MEND_RULE static void prepare(const Real& p, const mend::Slots<Real, 0>&, Real g, const auto& c,
                                mend::Slots<Real, 2>& terms) {
    terms = {p, fma(c.decay, p, g)};
  }
  static Coefficients with_norms(const Coefficients& c, const std::array<double, 2>& of) {
    return {static_cast<float>(0.01 * of[0] / of[1]), c.decay};
  }
  template <class Real>
  MEND_RULE static void apply(Real& p, mend::Slots<Real, 0>&, Real g, const auto& c) {
    p = p - g * c.lr;
  }
};
struct OtherTermsInLanes : WithNorms {
  template <class Real>
  MEND_RULE static void prepare(const Real& p, const mend::Slots<Real, 0>&, Real g, const auto&,
                                mend::Slots<Real, 2>& terms) {
    terms = {p, Real::width > 1 ? g * 1.0000001f : g};
  }
};
struct CountsTerms : WithNorms {
  template <class Real>
  MEND_RULE static void prepare(const Real& p, const mend::Slots<Real, 0>&, Real g, const auto&,
                                mend::Slots<Real, 2>& terms) {
    static int calls = 0;
    terms = {p, g * ++calls};
  }
};
struct TermsOfZero : WithNorms {
  template <class Real>
  MEND_RULE static void prepare(const Real& p, const mend::Slots<Real, 0>&, Real g, const auto&,
                                mend::Slots<Real, 2>& terms) {
    terms = {p, g / (p - p)};
  }
};
struct IgnoresNorms : WithNorms {
  static Coefficients with_norms(const Coefficients& c, const std::array<double, 2>&) { return c; }
};

struct RevertsByOtherType : Sound {
  template <class Real>
  MEND_RULE static void revert(Real& p, mend::Slots<Real, 1>& s, const Real&, const auto& c) {
    p = p + c.lr * s[0];
  }
};
struct BitsThatDoNotAddUp : Sound {
  static constexpr std::array<int, 2> kept_bits{2, 3};
};
struct FailsLate : Base<0> {
  Coefficients at(mend::Step applied) const {
    return {applied.value() > 1000 ? std::numeric_limits<float>::infinity() : 0.01f, 0};
  }
  template <class Real>
  MEND_RULE static void apply(Real& p, mend::Slots<Real, 0>&, Real g, const auto& c) {
    p = p - g * c.lr;
  }
};

struct NeverMoves : Base<0> {
  template <class Real>
  MEND_RULE static void apply(Real& p, mend::Slots<Real, 0>&, Real g, const auto& c) {
    Real copy = p;
    copy = copy - g * c.lr;
  }
};
struct IgnoresGradient : Base<0> {
  template <class Real>
  MEND_RULE static void apply(Real& p, mend::Slots<Real, 0>&, Real, const auto& c) {
    p = p - p * c.lr;
  }
};
struct ForgetsSlot : Sound {
  template <class Real>
  MEND_RULE static void apply(Real& p, mend::Slots<Real, 1>& s, Real g, const auto& c) {
    p = p - c.lr * fma(c.decay, s[0], g);
  }
  template <class Real>
  MEND_RULE static void revert(Real& p, mend::Slots<Real, 1>& s, Real g, const auto& c) {
    p = p + c.lr * fma(c.decay, s[0], g);
  }
};
struct RevertsNothing : Sound {
  template <class Real>
  MEND_RULE static void revert(Real&, mend::Slots<Real, 1>&, Real, const auto&) {}
};
struct RevertsOtherWay : Sound {
  template <class Real>
  MEND_RULE static void revert(Real& p, mend::Slots<Real, 1>& s, Real g, const auto& c) {
    p = p - c.lr * s[0];
    s[0] = (s[0] - g) / c.decay;
  }
};
struct RevertsParameterOnly : Sound {
  template <class Real>
  MEND_RULE static void revert(Real& p, mend::Slots<Real, 1>& s, Real, const auto& c) {
    p = p + c.lr * s[0];
  }
};
struct RevertsNearly : Sound {  // forgets the decay in the last place that counts
  template <class Real>
  MEND_RULE static void revert(Real& p, mend::Slots<Real, 1>& s, Real g, const auto& c) {
    p = p + (c.lr * 0.9999) * s[0];
    s[0] = (s[0] - g) / c.decay;
  }
};
struct RevertsTooSmallSteps : Base<0> {  // its steps are smaller than what may be lost
  Coefficients at(mend::Step) const { return {1e-9f, 0}; }
  template <class Real>
  MEND_RULE static void apply(Real& p, mend::Slots<Real, 0>&, Real g, const auto& c) {
    p = p - p * (g * c.lr) - p * (g * c.lr) * 50;
  }
  template <class Real>
  MEND_RULE static void revert(Real&, mend::Slots<Real, 0>&, Real, const auto&) {}
};
struct CountsCalls : Base<0> {
  static inline int calls = 0;
  template <class Real>
  static void apply(Real& p, mend::Slots<Real, 0>&, Real g, const auto& c) {
    p = p - g * c.lr * ++calls;
  }
};
struct ChangesItsMind : Base<0> {
  static inline int calls = 0;
  Coefficients at(mend::Step) const { return {0.01f * static_cast<float>(++calls), 0}; }
  template <class Real>
  static void apply(Real& p, mend::Slots<Real, 0>&, Real g, const auto& c) {
    p = p - g * c.lr;
  }
};
struct OtherInLanes : Base<0> {
  template <class Real>
  static void apply(Real& p, mend::Slots<Real, 0>&, Real g, const auto& c) {
    if constexpr (Real::width == 1)
      p = p - g * c.lr;
    else
      p = fma(-g, c.lr, p);
  }
};
struct OtherRevertInLanes : Sound {
  template <class Real>
  static void revert(Real& p, mend::Slots<Real, 1>& s, Real g, const auto& c) {
    if constexpr (Real::width == 1)
      p = p + c.lr * s[0];
    else
      p = fma(c.lr, s[0], p);
    s[0] = (s[0] - g) / c.decay;
  }
};
struct OtherForInfinity : Base<0> {  // differs for special gradients only
  template <class Real>
  static void apply(Real& p, mend::Slots<Real, 0>&, Real g, const auto& c) {
    const Real bounded = Real::width == 1 ? min(g, 1e30) : g;
    p = p - bounded * c.lr;
  }
};
struct DividesByZero : Base<1> {
  static constexpr std::array<std::string_view, 1> slots{"v"};
  template <class Real>
  static void apply(Real& p, mend::Slots<Real, 1>& s, Real g, const auto& c) {
    s[0] = s[0] + g * g;
    p = p - c.lr * (g / sqrt(s[0]));
  }
};
struct Explodes : Base<0> {
  template <class Real>
  static void apply(Real& p, mend::Slots<Real, 0>&, Real g, const auto& c) {
    p = p * p * p * p + g * c.lr * 1e30 * 1e30;
  }
};

// A sound bounded rule and what breaks one of its laws.
template <class Self>
struct BoundedBase {
  static constexpr std::array<std::string_view, 1> slots{"m"};
  static constexpr std::array<int, 2> kept_bits{2, 2};
  struct Coefficients {
    double lr, decay;
  };
  Coefficients at(mend::Step) const { return {0.5, 0.875}; }
  static bool bounded(const Coefficients&) { return true; }

  template <class Real>
  static void apply(Real& p, mend::Slots<Real, 1>& s, Real g, const auto& c) {
    mend::Unrecorded none;
    Self::apply(p, s, g, c, none);
  }
  template <class Real>
  static void revert(Real& p, mend::Slots<Real, 1>& s, Real g, const auto& c) {
    mend::Unrecorded none;
    Self::revert(p, s, g, c, none);
  }
  template <class Real, class Record>
  static void apply(Real& p, mend::Slots<Real, 1>& s, Real g, const auto& c, Record& record) {
    s[0] = fma(c.decay, s[0], g);
    p = p - c.lr * s[0];
    record.keep(0, p, p + c.lr * s[0]);
    record.keep(1, s[0], s[0] - g);
  }
  template <class Real, class Record>
  static void revert(Real& p, mend::Slots<Real, 1>& s, Real g, const auto& c, Record& record) {
    const Real old = p + c.lr * s[0];
    record.recall(0, p, old, old);
    record.recall(1, s[0], s[0] - g, mend::undo_fma(s[0], g, Real{c.decay}, Real{1 / c.decay}));
  }
};
struct Bounded : BoundedBase<Bounded> {
  using BoundedBase::apply, BoundedBase::revert;
};
struct DividesRoughly : BoundedBase<DividesRoughly> {  // its estimate needs more than two bits
  using BoundedBase::apply, BoundedBase::revert;
  template <class Real, class Record>
  static void revert(Real& p, mend::Slots<Real, 1>& s, Real g, const auto& c, Record& record) {
    const Real old = p + c.lr * s[0], rest = s[0] - g;
    record.recall(0, p, old, old);
    record.recall(1, s[0], rest, rest * (1 / c.decay));
  }
};
struct DecaysTooMuch : BoundedBase<DecaysTooMuch> {  // a decay of 1/2 has no bound of two bits
  using BoundedBase::apply, BoundedBase::revert;
  Coefficients at(mend::Step) const { return {0.5, 0.5}; }
};
struct SaysSo : DecaysTooMuch {  // the same, but it does not claim to have one
  static bool bounded(const Coefficients& c) { return c.decay > 0.75; }
};
struct RecallsInOtherOrder : BoundedBase<RecallsInOtherOrder> {
  using BoundedBase::apply, BoundedBase::revert;
  template <class Real, class Record>
  static void revert(Real& p, mend::Slots<Real, 1>& s, Real g, const auto& c, Record& record) {
    const Real u = c.lr * s[0];
    record.recall(1, s[0], s[0] - g, mend::undo_fma(s[0], g, Real{c.decay}, Real{1 / c.decay}));
    record.recall(0, p, p + u, p + u);
  }
};
struct OtherRemainder : BoundedBase<OtherRemainder> {  // apply tells another than revert
  using BoundedBase::apply, BoundedBase::revert;
  template <class Real, class Record>
  static void apply(Real& p, mend::Slots<Real, 1>& s, Real g, const auto& c, Record& record) {
    s[0] = fma(c.decay, s[0], g);
    record.keep(0, p, p + c.lr * s[0]);
    p = p - c.lr * s[0];
    record.keep(1, s[0], s[0] - g);
  }
};
struct OtherWithRecord : BoundedBase<OtherWithRecord> {
  using BoundedBase::apply, BoundedBase::revert;
  template <class Real>
  static void apply(Real& p, mend::Slots<Real, 1>& s, Real g, const auto& c) {
    s[0] = s[0] * c.decay + g;
    p = p - c.lr * s[0];
  }
};

template <class R>
void finds(std::string_view fault, std::string_view array = "p") {
  const mend::RuleReport report = mend::check_rule_report<R>();
  CHECK(!report);
  CHECK(report.fault.find(fault) != std::string::npos);
  CHECK(report.array == array);
  CHECK(!mend::check_rule<R>());
  INFO(report.fault);
}

}  // namespace

TEST_CASE("a sound rule passes, and without revert too") {
  CHECK(mend::check_rule<Sound>());
  const mend::RuleReport report = mend::check_rule_report(Sound{});
  CHECK(report);
  CHECK(report.fault == "");
}

TEST_CASE("parameters that never move, slots that are never written, a gradient without effect") {
  finds<NeverMoves>("apply never moves a parameter");
  finds<ForgetsSlot>("apply never writes this slot", "m");
  finds<IgnoresGradient>("without regard to the gradient");
}

TEST_CASE("a revert that is not the inverse") {
  finds<RevertsNothing>("revert does not restore");
  finds<RevertsOtherWay>("revert does not restore");
  finds<RevertsParameterOnly>("revert does not restore", "m");
  finds<RevertsNearly>("revert does not restore");
  finds<RevertsTooSmallSteps>("revert never moves a parameter");
}

TEST_CASE("the report shows the first element, and what was there") {
  const mend::RuleReport report = mend::check_rule_report<RevertsOtherWay>();
  CHECK(report.element == 0);
  CHECK(report.step == mend::Step{0});
  CHECK(report.expected != report.found);
}

TEST_CASE("results that depend on more than the arguments") {
  finds<CountsCalls>("depends on something else");
  finds<ChangesItsMind>("depends on something else");
}

TEST_CASE("other bits in lanes than as a scalar") {
  finds<OtherInLanes>("apply gives other bits in baseline lanes");
  finds<OtherRevertInLanes>("revert gives other bits in baseline lanes");
  finds<OtherForInfinity>("apply gives other bits in baseline lanes");
}

TEST_CASE("terms of norms that are not what they should be, and norms without effect") {
  static_assert(mend::NormRule<WithNorms>);
  CHECK(mend::check_rule<WithNorms>());
  finds<OtherTermsInLanes>("prepare gives other terms in baseline lanes", "norms");
  finds<CountsTerms>("prepare gives other terms in scalar lanes", "norms");
  finds<TermsOfZero>("prepare makes a norm infinite or NaN", "norms");
  finds<IgnoresNorms>("with_norms has no effect", "norms");
}

TEST_CASE("a revert or bits that no concept accepts, and so nobody uses") {
  static_assert(mend::Rule<RevertsByOtherType> && !mend::InvertibleOptimizer<RevertsByOtherType>);
  finds<RevertsByOtherType>("revert has another type than apply's");
  static_assert(!mend::BoundedOptimizer<BitsThatDoNotAddUp>);
  finds<BitsThatDoNotAddUp>("kept_bits is there and the rule is no mend::BoundedOptimizer");
}

TEST_CASE("what goes wrong only after many updates") { finds<FailsLate>("infinite or NaN"); }

TEST_CASE("a report in one line") {
  CHECK(mend::check_rule_report<Sound>().to_string() == "no fault");
  const std::string text = mend::check_rule_report<RevertsOtherWay>().to_string();
  CHECK(text.find("revert does not restore") == 0);
  CHECK(text.find("(p[0] after 0 updates: ") != std::string::npos);
}

TEST_CASE("bounds that do not hold, and records that are told otherwise") {
  static_assert(mend::BoundedOptimizer<Bounded>);
  CHECK(mend::check_rule<Bounded>());
  finds<DividesRoughly>("does not revert to the same bits with its low bits", "m");
  finds<DecaysTooMuch>("does not revert to the same bits with its low bits", "m");
  CHECK(mend::check_rule<SaysSo>());
  finds<RecallsInOtherOrder>("revert does not name to its record what apply did");
  finds<OtherRemainder>("revert does not name to its record what apply did");
  finds<OtherWithRecord>("apply with a record gives other bits than without");
}

TEST_CASE("NaNs and infinities out of ordinary values") {
  finds<DividesByZero>("a zero gradient at the first step");
  finds<Explodes>("infinite or NaN from ordinary ones");
}
