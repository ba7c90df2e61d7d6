#include <mend/session/device_bucket.hpp>

#include <doctest/doctest.h>

#include <mend/comm/threads.hpp>
#include <mend/optim/adam.hpp>
#include <mend/optim/undo/roll_forward.hpp>
#include <mend/session/session.hpp>

#include <array>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using namespace mend;

// A device that is host memory; a session cannot know that.
constexpr DeviceMemory elsewhere{
    [](const std::byte* from, std::byte* to, std::size_t n) { std::memcpy(to, from, n); },
    [](const std::byte* from, std::byte* to, std::size_t n) { std::memcpy(to, from, n); }};
template <class T>
struct Elsewhere {
  using element_type = T;
  std::vector<T>* elements;

  [[nodiscard]] T* data() const { return elements->data(); }
  [[nodiscard]] std::size_t size() const { return elements->size(); }
  static const DeviceMemory& memory() { return elsewhere; }
};

struct OnIt {
  using kind = mend::kind::device;
  int* waits;
  void wait() const { ++*waits; }
};

int updates = 0;

}  // namespace

template <class R, class Undo>
class mend::DeviceBucket<OnIt, R, Undo> {
 public:
  DeviceBucket(const OnIt&, std::vector<DeviceTensor<R::slots.size()>> tensors)
      : tensors_{std::move(tensors)} {}
  void apply(const std::vector<typename R::Coefficients>& c, double scale) {
    for (const auto& t : tensors_) {
      std::array<float*, R::slots.size()> slots;
      for (std::size_t k = 0; k < slots.size(); ++k)
        slots[k] = reinterpret_cast<float*>(t.slots[k]);
      kernel::apply<R>(c[t.group], reinterpret_cast<float*>(t.value), slots,
                       reinterpret_cast<const float*>(t.gradient), t.count,
                       static_cast<float>(scale));
      ++updates;
    }
  }
  void revert() {}
  void drop() {}
  void refresh() {}
  [[nodiscard]] ByteCount memory() const { return {}; }

 private:
  std::vector<DeviceTensor<R::slots.size()>> tensors_;
};

template <>
class mend::DeviceArena<OnIt> {
 public:
  DeviceArena() = default;
  DeviceArena(const OnIt&, std::size_t bytes) : memory_{ByteCount{bytes}} {}
  [[nodiscard]] std::byte* data() const { return memory_.data(); }

 private:
  Arena memory_;
};

TEST_CASE("buckets in a device's memory are left to the device") {
  std::vector<float> w(5000, 1), gw(5000), b(3, 1), gb(3), w2 = w, gw2 = gw, b2 = b, gb2 = gb;
  TrainState state, host;
  state.add("w", Elsewhere<float>{&w}, Elsewhere<float>{&gw}).add("b", b, gb);
  host.add("w", w2, gw2).add("b", b2, gb2);
  int waits = 0;
  updates = 0;
  comm::ThreadComm comm, other;
  const auto fill = [](std::vector<float>& g, std::vector<float>& small, Step s) {
    for (std::size_t i = 0; i < g.size(); ++i)
      g[i] = static_cast<float>(i % 11 + static_cast<std::size_t>(s.value()));
    small = {1, 2, 3};
  };
  Session session{state, Adam{}, comm, OnIt{&waits}};
  session.train(3, [&](Step s) { fill(gw, gb, s); });
  Session plain{host, Adam{}, other};
  plain.train(3, [&](Step s) { fill(gw2, gb2, s); });
  CHECK(w == w2);
  CHECK(b == b2);
  CHECK(state.hash() == host.hash());
  CHECK(updates == 3);  // one tensor is on the device
  CHECK(waits >= 6);    // before the gradients are read, and before the commit
}

TEST_CASE("without a device there is no bucket on it") {
  DeviceBucket<HostMemory, Adam, RollForward> bucket{HostMemory{}, {}};
  CHECK(bucket.memory() == ByteCount{});
  CHECK(DeviceArena<HostMemory>{HostMemory{}, 100}.data() == nullptr);
  static_assert(std::is_empty_v<DeviceArena<HostMemory>>);
}

TEST_CASE("tensors on a device need a policy that knows it, and a wide type") {
  std::vector<float> w(5), g(5);
  TrainState state;
  state.add("w", Elsewhere<float>{&w}, Elsewhere<float>{&g});
  comm::ThreadComm comm;
  CHECK_THROWS_WITH_AS((Session{state, Adam{}, comm}),
                       "'w' is in a device's memory: give the session mend::OnStream{stream}",
                       StateError);
}
