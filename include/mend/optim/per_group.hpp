#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mend/core/error.hpp"
#include "mend/optim/bounded_rule.hpp"
#include "mend/optim/check_options.hpp"
#include "mend/optim/norm_rule.hpp"
#include "mend/optim/rule.hpp"

namespace mend {

namespace detail {

// Constants that a rule may have cannot be left out by a requires, but by an empty base.
template <class R>
struct BoundsOf {};
template <BoundedOptimizer R>
struct BoundsOf<R> {
  static constexpr auto kept_bits = R::kept_bits;
  [[nodiscard]] static bool bounded(const typename R::Coefficients& c) { return R::bounded(c); }
};
template <class R>
struct NormsOf {};
template <NormRule R>
struct NormsOf<R> {
  static constexpr std::size_t norms = R::norms;
  [[nodiscard]] static typename R::Coefficients with_norms(const typename R::Coefficients& c,
                                                           const std::array<double, R::norms>& of) {
    return R::with_norms(c, of);
  }
};

}  // namespace detail

//! One rule with other coefficients for some parameter groups:
//! `PerGroup{AdamW{.lr = lr}, {{"no_decay", AdamW{.lr = lr, .weight_decay = 0}}}}` over
//! `state.add(..., {.group = "no_decay"})`. Itself a rule, the one of parameters in no group, with
//! all that R has: revert, bounds, norms. Throws OptionError for a group that is named twice or has
//! no name.
template <Rule R>
class PerGroup : public detail::BoundsOf<R>, public detail::NormsOf<R> {
 public:
  PerGroup(R fallback, std::initializer_list<std::pair<std::string_view, R>> groups)
      : fallback_{std::move(fallback)} {
    for (const auto& [name, rule] : groups) {
      if (name.empty()) throw OptionError{"PerGroup: a group needs a name"};
      if (find(name) != nullptr)
        throw OptionError{"PerGroup: group '" + std::string{name} + "' is named twice"};
      names_.emplace_back(name);
      rules_.push_back(rule);
    }
  }

  //! The rule of that group; the fallback for a name that is none of names().
  [[nodiscard]] const R& for_group(std::string_view name) const {
    const R* rule = find(name);
    return rule != nullptr ? *rule : fallback_;
  }
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }

  void check() const {
    check_options(fallback_);
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      try {
        check_options(rules_[i]);
      } catch (const OptionError& e) {
        throw OptionError{"group '" + names_[i] + "': " + e.what()};
      }
    }
  }

  static constexpr auto slots = R::slots;
  using Coefficients = typename R::Coefficients;
  [[nodiscard]] Coefficients at(Step applied) const { return fallback_.at(applied); }
  template <class Real>
  MEND_RULE static void apply(Real& p, Slots<Real, slots.size()>& s, Real g, const auto& c) {
    R::apply(p, s, g, c);
  }
  template <class Real>
  requires InvertibleOptimizer<R> MEND_RULE static void revert(Real& p,
                                                               Slots<Real, slots.size()>& s, Real g,
                                                               const auto& c) {
    R::revert(p, s, g, c);
  }

  template <class Real, class Record>
  requires BoundedOptimizer<R> MEND_RULE static void apply(Real& p, Slots<Real, slots.size()>& s,
                                                           Real g, const auto& c, Record& record) {
    R::apply(p, s, g, c, record);
  }
  template <class Real, class Record>
  requires BoundedOptimizer<R> MEND_RULE static void revert(Real& p, Slots<Real, slots.size()>& s,
                                                            Real g, const auto& c, Record& record) {
    R::revert(p, s, g, c, record);
  }

  template <class Real>
  requires NormRule<R> MEND_RULE static void prepare(const Real& p,
                                                     const Slots<Real, slots.size()>& s, Real g,
                                                     const auto& c, auto& terms) {
    R::prepare(p, s, g, c, terms);
  }

 private:
  [[nodiscard]] const R* find(std::string_view name) const {
    for (std::size_t i = 0; i < names_.size(); ++i)
      if (names_[i] == name) return &rules_[i];
    return nullptr;
  }

  R fallback_;
  std::vector<std::string> names_;
  std::vector<R> rules_;
};

}  // namespace mend
