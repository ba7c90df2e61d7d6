#include <mend/mend_cuda.cuh>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "cuda/trainers.hpp"

namespace {

using namespace test;

template <class Rule, class... Policies>
void same_bits_on_host_and_device(const Rule& rule, bool early, Policies... policies) {
  const Outcome host = trained<OnHost>(rule, early, {}, policies...);
  const Outcome device = trained<OnTheDevice>(rule, early, {}, policies...);
  REQUIRE_MESSAGE(host.finished, host.reason);
  REQUIRE_MESSAGE(device.finished, device.reason);
  CHECK(host.final == device.final);
  std::size_t kills = 0;
  for (const auto& t : device.trace) {
    if (t.who != 2 ||
        (t.point != "bucket" && t.point != "updated" && t.point != "commit" && t.point != "lambda"))
      continue;
    if (kills++ % 3 != 0) continue;  // each is a run of the emulator
    const Outcome killed =
        trained<OnTheDevice>(rule, early, {{.who = t.who, .operation = t.operation}}, policies...);
    CAPTURE(t.point);
    CHECK_MESSAGE(killed.finished, killed.reason);
    CHECK(killed.final == host.final);
  }
  CHECK(kills > 8);
}

}  // namespace

TEST_CASE("a run on the device has the bits of one on the host, kills and all") {
  same_bits_on_host_and_device(Adam{.lr = 1e-2}, true, ExactUndo{});
}
TEST_CASE("so it has with clipped norms and norms of tensors") {
  same_bits_on_host_and_device(Lamb{.lr = 1e-2}, false, ClipNorm{0.25f});
}

TEST_CASE("what is on the device is saved and loaded as what is on the host") {
  const std::string path = std::string{std::getenv("TMPDIR") ? std::getenv("TMPDIR") : "/tmp"} +
                           "/mend_cuda_session.safetensors";
  OnTheDevice device;
  ThreadComm comm, other;
  Hash128 expected;
  {
    Session session{device.state, Adam{}, comm, device.policy(), SnapshotUndo{}};
    session.train(3, [&](Step s) { device.step(s, 0, [](const char*) {}); });
    save(device.state, path);
    expected = device.state.hash();
  }
  OnHost host;
  Session session{host.state, Adam{}, other};
  load(host.state, path);
  session.train(3, [](Step) {});
  CHECK(host.state.hash() == expected);
  std::remove(path.c_str());
}

TEST_CASE("what only the host does is refused for tensors on a device") {
  Stream stream;
  ThreadComm comm;
  OnDevice<float> w{std::vector<float>(4)}, g{std::vector<float>(4)};
  OnDevice<BFloat16> low{std::vector<BFloat16>(4)}, low_g{std::vector<BFloat16>(4)};
  {
    TrainState state;
    state.add("w", w.span(), g.span()).add_copy("w", low.span());
    CHECK_THROWS_WITH_AS((Session{state, OwnUpdate{[](Step) {}}, comm, OnStream{stream}}),
                         "OwnUpdate rounds the copies of 'w' on its device itself: leave add_copy "
                         "out",
                         StateError);
  }
  {
    TrainState state;
    state.add("w", low.span(), low_g.span());
    CHECK_THROWS_AS((Session{state, Adam{}, comm, OnStream{stream}}), StateError);
  }
}

TEST_CASE("tensors on a device need a policy that knows it") {
  OnTheDevice device;
  ThreadComm comm;
  CHECK_THROWS_WITH_AS((Session{device.state, Sgd{}, comm}),
                       "'a' is in a device's memory: give the session mend::OnStream{stream}",
                       StateError);
}
