// expect: Session: the rule has `kept_bits` and does not model mend::BoundedOptimizer
#include <mend/mend.hpp>

#include <array>
#include <string_view>
#include <vector>

struct Mine {
  static constexpr std::array<std::string_view, 0> slots{};
  static constexpr std::array<int, 1> kept_bits{2};
  struct Coefficients {
    float lr;
  };
  Coefficients at(mend::Step) const { return {1e-3f}; }
  template <class Real>
  MEND_RULE static void apply(Real& p, mend::Slots<Real, 0>&, Real g, const auto& c) {
    p = p - g * c.lr;
  }
  template <class Real>
  MEND_RULE static void revert(Real& p, mend::Slots<Real, 0>&, Real g, const auto& c) {
    p = p + g * c.lr;
  }
};

void wrong() {
  std::vector<float> w(10), g(10);
  mend::TrainState state;
  state.add("w", w, g);
  mend::comm::ThreadComm comm;
  mend::Session session{state, Mine{}, comm, mend::ExactUndo{}};
}
