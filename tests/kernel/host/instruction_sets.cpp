#include <mend/kernel/host/instruction_sets.hpp>

#include <doctest/doctest.h>

#include <mend/kernel/host/lanes.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernel/numbers.hpp"

using namespace mend::kernel;

namespace {

struct Widths {
  std::size_t *floats, *doubles;
  template <class Set>
  void operator()(Set) const {
    *floats = Lanes<float, Set>::width;
    *doubles = Lanes<double, Set>::width;
  }
};

struct HalfRoundTrip {
  const std::uint16_t* from;
  float* floats;
  std::uint16_t *bf16, *f16;
  template <class Set>
  void operator()(Set) const {
    using Real = Lanes<float, Set>;
    for (std::size_t i = 0; i < 16; i += Real::width) {
      Real::load_bf16(from + i).store(floats + i);
      Real::load_f16(from + i).store(floats + 16 + i);
      Real::load_bf16(from + i).store_f16(f16 + i);
      Real::load_f16(from + i).store_bf16(bf16 + i);
    }
  }
};

struct Widened {
  const float* from;
  double* to;
  template <class Set>
  void operator()(Set) const {
    using Real = Lanes<double, Set>;
    for (std::size_t i = 0; i < 16; i += Real::width) Real::load_float(from + i).store(to + i);
  }
};

struct StoreHalves {
  const float* from;
  std::uint16_t *bf16, *f16;
  template <class Set>
  void operator()(Set) const {
    using Real = Lanes<float, Set>;
    for (std::size_t i = 0; i < 16; i += Real::width) {
      Real::load(from + i).store_bf16(bf16 + i);
      Real::load(from + i).store_f16(f16 + i);
    }
  }
};

}  // namespace

TEST_CASE("a level runs in registers of its width") {
  const std::size_t bytes[] = {0, 16, 32, 64};
  for (Simd simd : test::levels()) {
    std::size_t floats = 0, doubles = 0;
    run_on(simd, Widths{&floats, &doubles});
    CHECK(floats == (simd == Simd::scalar ? 1 : bytes[static_cast<int>(simd)] / 4));
    CHECK(doubles == (simd == Simd::scalar ? 1 : bytes[static_cast<int>(simd)] / 8));
    run_memory_bound(simd, Widths{&floats, &doubles});
    CHECK(floats == (simd >= Simd::avx2 ? 8 : 4));
  }
}

TEST_CASE("every half-precision pattern converts as the scalar functions say, in every set") {
  for (Simd simd : test::levels()) {
    CAPTURE(name_of(simd));
    int wrong = 0;
    for (std::uint32_t base = 0; base < 0x10000; base += 16) {
      std::uint16_t from[16], bf16[16], f16[16];
      float floats[32];
      for (std::uint32_t i = 0; i < 16; ++i) from[i] = static_cast<std::uint16_t>(base + i);
      run_on(simd, HalfRoundTrip{from, floats, bf16, f16});
      for (int i = 0; i < 16; ++i) {
        wrong += !test::same_number(floats[i], bf16_to_float(from[i]));
        wrong += !test::same_number(floats[16 + i], f16_to_float(from[i]));
        wrong += f16[i] != float_to_f16(floats[i]);
        wrong += bf16[i] != float_to_bf16(floats[16 + i]);
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("random floats round to half precision as the scalar functions say, in every set") {
  for (Simd simd : test::levels()) {
    CAPTURE(name_of(simd));
    int wrong = 0;
    for (std::uint64_t base = 0; base < 160000; base += 16) {
      float from[16];
      std::uint16_t bf16[16], f16[16];
      for (std::uint64_t i = 0; i < 16; ++i) {
        const auto bits = static_cast<std::uint32_t>(test::mix(base + i));
        std::memcpy(&from[i], &bits, sizeof bits);
        if (base % 32 == 0) from[i] = test::number<float>(base + i, 26);  // where f16 has values
      }
      run_on(simd, StoreHalves{from, bf16, f16});
      for (int i = 0; i < 16; ++i)
        wrong += bf16[i] != float_to_bf16(from[i]) || f16[i] != float_to_f16(from[i]);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("floats become doubles exactly") {
  const auto from = test::numbers<float>(1600, 7);
  for (Simd simd : test::levels()) {
    for (std::size_t i = 0; i < from.size(); i += 16) {
      double to[16];
      run_on(simd, Widened{from.data() + i, to});
      for (std::size_t k = 0; k < 16; ++k)
        CHECK(test::same_number(to[k], static_cast<double>(from[i + k])));
    }
  }
}
