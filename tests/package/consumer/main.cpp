// A training loop in a project that knows mend as a package. Two sources include it, as in any real
// program: a function that forgot to be inline does not link.
#include <mend/mend.hpp>

#include <cstdio>
#include <vector>

static_assert(mend::library_version == EXPECTED_VERSION,
              "the package has the version of its headers");

int committed_in_second_source();

int main() {
  std::vector<float> w(1000, 1.0f), g(1000);
  mend::TrainState state;
  state.add("w", w, g);
  auto comm = mend::comm::join_tcp();
  mend::Session session{state, mend::Sgd{.lr = 0.5f}, comm, mend::ReplicaRecovery{}};
  session.train(2, [&](mend::Step) { g.assign(g.size(), 1.0f); });
  bool right = w.front() == 0.0f && w.back() == 0.0f && committed_in_second_source() == 3;
  if (!right) std::printf("wrong: w is %g\n", double(w.front()));
  return right ? 0 : 1;
}
