// expect: Session's second argument is an update: a rule (mend::Adam, or your own: see check_rule)
// or mend::OwnUpdate
#include <mend/mend.hpp>

#include <array>
#include <string_view>
#include <vector>

struct ByValue {  // p is a copy: this rule would never move a parameter
  float lr = 1e-2f;
  static constexpr std::array<std::string_view, 0> slots{};
  struct Coefficients {
    float lr;
  };
  Coefficients at(mend::Step) const { return {lr}; }
  template <class Real>
  MEND_RULE static void apply(Real p, mend::Slots<Real, 0>&, Real g, const auto& c) {
    p = p - g * c.lr;
  }
};

void wrong() {
  std::vector<float> w(10), g(10);
  mend::TrainState state;
  state.add("w", w, g);
  mend::comm::ThreadComm comm;
  mend::Session session{state, ByValue{}, comm};
}
