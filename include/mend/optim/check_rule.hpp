#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "mend/core/step.hpp"
#include "mend/core/text.hpp"
#include "mend/kernel/host/apply.hpp"
#include "mend/kernel/host/norms.hpp"
#include "mend/kernel/host/scalar.hpp"
#include "mend/kernel/host/simd.hpp"
#include "mend/kernel/slots.hpp"
#include "mend/optim/bounded_rule.hpp"
#include "mend/optim/low_bits.hpp"
#include "mend/optim/norm_rule.hpp"
#include "mend/optim/rule.hpp"

namespace mend {

//! What check_rule found: nothing, or the first fault and where it shows.
struct RuleReport {
  std::string fault{};      //!< one sentence; empty for a sound rule
  std::string array{};      //!< "p", a slot's name, or "norms"
  std::size_t element = 0;  //!< the first element that shows it
  Step step{};              //!< after this many updates
  double expected = 0, found = 0;

  [[nodiscard]] explicit operator bool() const { return fault.empty(); }

  //! "no fault", or all of it in one line.
  [[nodiscard]] std::string to_string() const {
    if (fault.empty()) return "no fault";
    return fault + " (" + array + "[" + std::to_string(element) + "] after " +
           std::to_string(step.value()) + " updates: " + shortest(found) + ", expected " +
           shortest(expected) + ")";
  }
};

namespace detail {

//! Numbers that provoke roundings.
template <class T>
class Provoking {
 public:
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

  explicit Provoking(std::uint64_t seed) : seed_{seed} {}

  std::uint64_t random() {  // splitmix64
    std::uint64_t z = seed_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
  //! Its exponent within `range` of `around`; its mantissa random, sparse, or next to a power of
  //! two.
  T near(int around, int range) {
    constexpr int digits = std::numeric_limits<T>::digits - 1;
    const std::uint64_t r = random();
    const int exponent =
        around - range + static_cast<int>(r % static_cast<unsigned>(2 * range + 1));
    std::uint64_t mantissa = random() >> (64 - digits);
    switch (r >> 32 & 7) {
      case 0: mantissa = r >> 40 & 3; break;
      case 1: mantissa = (std::uint64_t{1} << digits) - 1 - (r >> 40 & 3); break;
      case 2: mantissa &= ~std::uint64_t{0} << (digits - 4); break;
      default: break;
    }
    const T size = std::ldexp(1 + std::ldexp(static_cast<T>(mantissa), -digits), exponent);
    return (r >> 63) != 0 ? -size : size;
  }
  //! Any bit pattern, one of the smallest denormal numbers, or a special value.
  T strange() {
    using Limits = std::numeric_limits<T>;
    const T special[] = {
        0, Limits::min(), 1, Limits::max(), Limits::infinity(), Limits::quiet_NaN()};
    const std::uint64_t r = random();
    switch (r & 3) {
      case 0: return std::bit_cast<T>(static_cast<Bits>(r >> 2));
      case 1: return std::bit_cast<T>(static_cast<Bits>((r >> 2) % 64));
      default: return ((r >> 63) != 0 ? T(-1) : T(1)) * special[(r >> 2) % std::size(special)];
    }
  }
  //! Within four units in the last place.
  T next_to(T x) {
    return std::bit_cast<T>(std::bit_cast<Bits>(x) + static_cast<Bits>(random() % 9) - 4);
  }

 private:
  std::uint64_t seed_;
};

//! A rule's updates of one parameter, undone with their low bits (laws 6 to 8).
template <BoundedOptimizer R, class T>
class LowBitsTrial {
 public:
  static constexpr std::size_t arrays = R::kept_bits.size();
  using State = std::array<T, arrays>;  // the parameter, then the slots

  //! What went wrong with the last sample.
  enum class Fault { none, record_changes_apply, record_differs_in_revert, other_bits };
  State old{}, found{};
  std::size_t array = 0;

  LowBitsTrial(const typename R::Coefficients& c, std::uint64_t seed) : c_{c}, values_{seed} {}

  //! One sample. loose: an array whose guard is a binade too wide, to see that bits come back
  //! wrong; `arrays` for none.
  Fault next(std::size_t loose = arrays) {
    const T g = draw();
    LowBits<R, T> record;
    record.old = old;
    if (loose < arrays) ++record.guard[loose];
    One one{old};
    R::apply(one.p, one.s, Real{g}, c_, record);
    found = one.values();
    const State plain = updated(old, g);
    if (!same_numbers(found, plain)) return Fault::record_changes_apply;
    R::revert(one.p, one.s, Real{g}, c_, record);
    found = record.restored(one.values());
    if (!record.sound) return Fault::record_differs_in_revert;
    for (array = 0; array < arrays; ++array)
      if (std::memcmp(&found[array], &old[array], sizeof(T)) != 0) return Fault::other_bits;
    return Fault::none;
  }

 private:
  using Real = kernel::Scalar<T>;

  struct One {
    Real p;
    Slots<Real, arrays - 1> s;

    explicit One(const State& values) : p{values[0]} {
      if constexpr (arrays > 1)
        for (std::size_t k = 1; k < arrays; ++k) s[k - 1] = values[k];
    }
    State values() const {
      State all;
      p.store(&all[0]);
      if constexpr (arrays > 1)
        for (std::size_t k = 1; k < arrays; ++k) s[k - 1].store(&all[k]);
      return all;
    }
  };

  State updated(const State& before, T g) const {
    One one{before};
    R::apply(one.p, one.s, Real{g}, c_);
    return one.values();
  }
  bool same_numbers(const State& a, const State& b) {  // of a NaN, neither sign nor payload counts
    for (array = 0; array < arrays; ++array)
      if (std::memcmp(&a[array], &b[array], sizeof(T)) != 0 &&
          !(std::isnan(a[array]) && std::isnan(b[array])))
        return false;
    return true;
  }

  //! A gradient, and old values of about the size of what it adds to them, so that sums cancel, end
  //! next to powers of two, and pass the guard or just fail it. Some are strange.
  T draw() {
    using Limits = std::numeric_limits<T>;
    constexpr int least = Limits::min_exponent - Limits::digits, most = Limits::max_exponent;
    const std::uint64_t r = values_.random();
    const int around = r % 4 == 0 ? least + static_cast<int>((r >> 8) % (most - least)) : 0;
    T g = values_.near(around, 3);
    old = {values_.near(around, 3)};
    const State added = updated(old, g);  // to slots of zero
    for (std::size_t k = 1; k < arrays; ++k) {
      old[k] =
          (r >> 16 & 3) == 0 ? values_.next_to(-added[k]) : values_.near(exponent(added[k]), 8);
      // What a first gradient of either sign makes positive is an average of sizes.
      if ((r >> 18 & 15) != 0 && added[k] >= 0 && updated(old, -g)[k] >= 0)
        old[k] = std::abs(old[k]);
    }
    if ((r >> 22 & 7) != 0) {
      State zero = old;
      zero[0] = 0;
      old[0] = values_.near(exponent(updated(zero, g)[0]), 3);
    }
    if ((r >> 25 & 31) == 0) g = values_.strange();
    for (T& x : old)
      if (values_.random() % 32 == 0) x = values_.strange();
    return g;
  }
  static int exponent(T x) { return x == 0 || !std::isfinite(x) ? 0 : std::ilogb(x); }

  typename R::Coefficients c_;
  Provoking<T> values_;
};

template <class R>
concept HasRevert = requires(kernel::Scalar<float>& x,
                             Slots<kernel::Scalar<float>, R::slots.size()>& s,
                             const typename R::Coefficients& c) {
  R::revert(x, s, x, c);
};

template <class R>
concept HasKeptBits = requires {
  R::kept_bits;
};

//! A rule on a few hundred parameters of type T, with every fault turned into a report.
template <Rule R, class T>
class RuleTrial {
 public:
  explicit RuleTrial(const R& rule) : rule_{rule} {}

  RuleReport run() {
    return types() && ordinary_steps() && special_values() && far_steps() && fresh_zero() &&
                   norms() && low_bits()
               ? RuleReport{}
               : report_;
  }

 private:
  static constexpr std::size_t n = 203;  // whole registers and a rest in every instruction set
  static constexpr std::size_t slot_count = R::slots.size();
  static constexpr int steps = 50;

  using Array = std::vector<T>;
  using State = std::array<Array, 1 + slot_count>;  // the parameters, then the slots

  enum class Way { apply, revert };
  template <Way way>
  State updated(State s, const Array& g, Step applied,
                kernel::Simd simd = kernel::Simd::scalar) const {
    return updated_with<way>(rule_.at(applied), std::move(s), g, simd);
  }
  template <Way way>
  State updated_with(const typename R::Coefficients& c, State s, const Array& g,
                     kernel::Simd simd = kernel::Simd::scalar) const {
    std::array<T*, slot_count> slots;
    for (std::size_t k = 0; k != slot_count; ++k) slots[k] = s[k + 1].data();
    if constexpr (way == Way::apply)
      kernel::apply<R>(c, s[0].data(), slots, g.data(), n, T{1}, simd);
    else
      kernel::revert<R>(c, s[0].data(), slots, g.data(), n, T{1}, simd);
    return s;
  }

  //! What a rule meant to have, and no concept sees.
  bool types() {
    if constexpr (HasRevert<R> && !InvertibleOptimizer<R>)
      return fail("revert has another type than apply's, so that nobody calls it", 0, 0, 0, 0, 0);
    if constexpr (HasKeptBits<R> && !BoundedOptimizer<R>)
      return fail(
          "kept_bits is there and the rule is no mend::BoundedOptimizer: apply and revert "
          "with a record or bounded() have another type, or the bits do not add up",
          0, 0, 0, 0, 0);
    return true;
  }
  bool far_steps() {
    const State state = fresh();
    const Array g = gradient();
    for (Step applied : {99, 9'999, 999'999}) {
      const State next = updated<Way::apply>(state, g, applied);
      for (std::size_t k = 0; k < next.size(); ++k)
        for (std::size_t i = 0; i < n; ++i)
          if (!std::isfinite(next[k][i]))
            return fail("apply makes a value infinite or NaN from ordinary ones", k, i, applied,
                        state[k][i], next[k][i]);
    }
    return true;
  }

  bool ordinary_steps() {
    const State first = fresh();
    State state = first, opposite = first;
    std::array<bool, 1 + slot_count> written{};
    bool reverted = false;
    for (int t = 0; t < steps; ++t) {
      const Array g = gradient();
      const State next = updated<Way::apply>(state, g, t);
      if (!same_everywhere<Way::apply>(state, next, g, t)) return false;
      for (std::size_t k = 0; k < next.size(); ++k)
        for (std::size_t i = 0; i < n; ++i)
          if (!std::isfinite(next[k][i]))
            return fail("apply makes a value infinite or NaN from ordinary ones", k, i, t,
                        state[k][i], next[k][i]);
      if constexpr (InvertibleOptimizer<R>) {
        const State back = updated<Way::revert>(next, g, t);
        if (!same_everywhere<Way::revert>(next, back, g, t)) return false;
        for (std::size_t k = 0; k < back.size(); ++k)
          for (std::size_t i = 0; i < n; ++i) {
            const T size = std::max(std::abs(state[k][i]), std::abs(next[k][i]));
            if (!(std::abs(back[k][i] - state[k][i]) <=
                  64 * std::numeric_limits<T>::epsilon() * size))
              return fail(
                  "revert does not restore what was there before apply, to within 64 units in the "
                  "last place",
                  k, i, t, state[k][i], back[k][i]);
          }
        reverted = reverted || back[0] != next[0];
      }
      Array minus = g;
      for (T& x : minus) x = -x;
      opposite = updated<Way::apply>(opposite, minus, t);
      for (std::size_t k = 0; k < next.size(); ++k) written[k] = written[k] || next[k] != state[k];
      state = next;
    }
    for (std::size_t k = 0; k < written.size(); ++k)
      if (!written[k])
        return fail(k == 0 ? "apply never moves a parameter" : "apply never writes this slot", k, 0,
                    steps, first[k][0], state[k][0]);
    if (opposite[0] == state[0])
      return fail("apply moves parameters without regard to the gradient", 0, 0, steps, state[0][0],
                  opposite[0][0]);
    if (InvertibleOptimizer<R> && !reverted)
      return fail("revert never moves a parameter", 0, 0, steps, first[0][0], state[0][0]);
    return true;
  }

  bool special_values() {
    using Limits = std::numeric_limits<T>;
    const T sizes[] = {T(0),
                       Limits::denorm_min(),
                       Limits::min() / 2,
                       Limits::min(),
                       T(1e-30),
                       T(1e-19),
                       T(1e10),
                       T(1e18),
                       Limits::max(),
                       Limits::infinity(),
                       Limits::quiet_NaN()};
    State state = fresh();
    for (int t = 0; t < steps; ++t) {
      Array g = gradient();
      for (std::size_t i = 0; i < n; i += 2) g[i] = sign() * sizes[random() % std::size(sizes)];
      const State next = updated<Way::apply>(state, g, t);
      if (!same_everywhere<Way::apply>(state, next, g, t)) return false;
      if constexpr (InvertibleOptimizer<R>)
        if (!same_everywhere<Way::revert>(next, updated<Way::revert>(next, g, t), g, t))
          return false;
      const State renewed = fresh();  // an infinity or a NaN would stay for good
      for (std::size_t k = 0; k < state.size(); ++k)
        for (std::size_t i = 0; i < n; ++i)
          state[k][i] = std::isfinite(next[k][i]) ? next[k][i] : renewed[k][i];
    }
    return true;
  }

  bool fresh_zero() {
    const State first = fresh(), next = updated<Way::apply>(first, Array(n), 0);
    for (std::size_t k = 0; k < next.size(); ++k)
      for (std::size_t i = 0; i < n; ++i)
        if (!std::isfinite(next[k][i]))
          return fail("a zero gradient at the first step makes a value infinite or NaN", k, i, 0,
                      first[k][i], next[k][i]);
    return true;
  }

  //! Of a NormRule: its terms in lanes as in a scalar, and that the update depends on the norms.
  bool norms() {
    if constexpr (NormRule<R>) {
      State state = fresh();
      for (int t = 0; t < steps; ++t) {
        const Array g = gradient();
        const auto expected = norms_of(state, g, t, kernel::Simd::scalar);
        for (double norm : expected)
          if (!std::isfinite(norm))
            return fail_norm("prepare makes a norm infinite or NaN from ordinary values", t, 0,
                             norm);
        for (kernel::Simd simd : {kernel::Simd::scalar, kernel::Simd::baseline, kernel::Simd::avx2,
                                  kernel::Simd::avx512}) {
          if (!kernel::supported(simd)) continue;
          const auto found = norms_of(state, g, t, simd);
          for (std::size_t k = 0; k < found.size(); ++k)
            if (found[k] != expected[k])
              return fail_norm("prepare gives other terms in " +
                                   std::string{kernel::name_of(simd)} +
                                   " lanes than as a scalar before: they depend on something else, "
                                   "or round differently",
                               t, expected[k], found[k]);
        }
        state = updated<Way::apply>(state, g, t);
      }
      const Array g = gradient();
      std::array<double, R::norms> some, others;
      for (std::size_t k = 0; k < R::norms; ++k) {
        some[k] = static_cast<double>(k + 2);
        others[k] = static_cast<double>((k + 2) * (k + 5));
      }
      const auto c = rule_.at(steps);
      if (updated_with<Way::apply>(R::with_norms(c, some), state, g) ==
          updated_with<Way::apply>(R::with_norms(c, others), state, g))
        return fail_norm("with_norms has no effect on the update", steps, 0, 0);
    }
    return true;
  }
  auto norms_of(const State& s, const Array& g, Step t, kernel::Simd simd) const {
    std::array<const T*, slot_count> slots;
    for (std::size_t k = 0; k != slot_count; ++k) slots[k] = s[k + 1].data();
    return kernel::norms<R>(rule_.at(t), s[0].data(), slots, g.data(), n, T{1}, nullptr, simd);
  }
  bool fail_norm(std::string fault, Step t, double expected, double found) {
    report_ = {std::move(fault), "norms", 0, t, expected, found};
    return false;
  }

  bool low_bits() {
    if constexpr (BoundedOptimizer<R>)
      for (Step applied : {0, 9, 999}) {
        const auto c = rule_.at(applied);
        if (!R::bounded(c)) continue;
        LowBitsTrial<R, T> trial{c, 1};
        using Fault = typename LowBitsTrial<R, T>::Fault;
        for (std::size_t i = 0; i < 20000; ++i) {
          const Fault fault = trial.next();
          if (fault == Fault::none) continue;
          const bool named = trial.array < trial.arrays;
          const std::size_t k = named ? trial.array : 0;
          return fail(
              fault == Fault::record_changes_apply
                  ? "apply with a record gives other bits than without"
              : fault == Fault::record_differs_in_revert
                  ? "revert does not name to its record what apply did: every array once, in "
                    "the same order, with the same remainders"
                  : "does not revert to the same bits with its low bits",
              k, i, applied, trial.old[k], trial.found[k]);
        }
      }
    return true;
  }

  //! Whether the scalar result comes again, and from lanes of every width.
  template <Way way>
  bool same_everywhere(const State& before, const State& expected, const Array& g, Step t) {
    const std::string name = way == Way::apply ? "apply" : "revert";
    if (!same(expected, updated<way>(before, g, t), t,
              name + " gives another result for the same arguments: it depends on something else"))
      return false;
    for (kernel::Simd simd : {kernel::Simd::baseline, kernel::Simd::avx2, kernel::Simd::avx512})
      if (kernel::supported(simd) &&
          !same(expected, updated<way>(before, g, t, simd), t,
                name + " gives other bits in " + std::string{kernel::name_of(simd)} +
                    " lanes than as a scalar"))
        return false;
    return true;
  }

  bool same(const State& a, const State& b, Step t, const std::string& fault) {
    for (std::size_t k = 0; k < a.size(); ++k)
      for (std::size_t i = 0; i < n; ++i)
        if (std::memcmp(&a[k][i], &b[k][i], sizeof(T)) != 0)
          return fail(fault, k, i, t, a[k][i], b[k][i]);
    return true;
  }

  bool fail(std::string fault, std::size_t array, std::size_t element, Step t, T expected,
            T found) {
    report_ = {std::move(fault),
               array == 0 ? "p" : std::string{R::slots[array - 1]},
               element,
               t,
               static_cast<double>(expected),
               static_cast<double>(found)};
    return false;
  }

  State fresh() {
    State s;
    s.fill(Array(n));
    for (T& p : s[0]) p = sign() * (T(0.01) + uniform());
    return s;
  }
  Array gradient() {
    Array g(n);
    for (T& x : g) x = sign() * static_cast<T>(std::exp(-9 + 11 * uniform()));  // 1e-4 to 7
    return g;
  }

  T sign() { return random() % 2 == 0 ? T(1) : T(-1); }
  T uniform() { return static_cast<T>(random() % 16777216) / T(16777216); }
  std::uint64_t random() { return values_.random(); }

  const R& rule_;
  RuleReport report_;
  Provoking<T> values_{1};
};

}  // namespace detail

//! Runs a rule on a few hundred parameters for 100 steps, in float and double, and looks for what
//! the concepts cannot see: parameters that never move, slots never written, a gradient without
//! effect, a revert that does not invert (law 5), results that depend on more than the arguments,
//! other bits in lanes than as a scalar (zeros, denormals, infinities and NaNs included), NaNs out
//! of ordinary values. Of a NormRule also its terms, and whether the norms matter. A
//! BoundedOptimizer also undoes 10^5 single updates with its low bits (laws 6 to 8), where it says
//! that it is bounded; `element` is then the sample. A rule without revert is checked for the rest.
//! Cost: milliseconds; for a BoundedOptimizer tens of them.
template <class R>
[[nodiscard]] RuleReport check_rule_report(const R& rule) {
  static_assert(
      Rule<R>,
      "check_rule: this is no mend::Rule; slots, Coefficients and at() must be there, and "
      "apply be `void (Real& p, Slots<Real, N>& s, Real g, const auto& c)`");
  RuleReport report = detail::RuleTrial<R, float>{rule}.run();
  return report ? detail::RuleTrial<R, double>{rule}.run() : report;
}
template <class R>
  requires std::default_initializable<R>
[[nodiscard]] RuleReport check_rule_report() { return check_rule_report(R{}); }

//! True for a sound rule; for a user's own tests: `static_assert(mend::Rule<Mine>);
//! assert(mend::check_rule<Mine>());`
template <class R>
[[nodiscard]] bool check_rule(const R& rule) {
  return static_cast<bool>(check_rule_report(rule));
}
template <class R>
  requires std::default_initializable<R>
[[nodiscard]] bool check_rule() { return check_rule(R{}); }

}  // namespace mend
