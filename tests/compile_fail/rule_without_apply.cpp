// expect: Session's second argument is an update: a rule (mend::Adam, or your own: see check_rule)
// or mend::OwnUpdate
#include <mend/mend.hpp>

#include <array>
#include <string_view>
#include <vector>

struct Nothing {
  static constexpr std::array<std::string_view, 0> slots{};
  struct Coefficients {};
  Coefficients at(mend::Step) const { return {}; }
};

void wrong() {
  std::vector<float> w(10), g(10);
  mend::TrainState state;
  state.add("w", w, g);
  mend::comm::ThreadComm comm;
  mend::Session session{state, Nothing{}, comm};
}
