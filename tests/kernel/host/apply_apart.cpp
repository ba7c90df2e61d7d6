#include <mend/kernel/host/apply_apart.hpp>

#include <doctest/doctest.h>

#include <mend/core/arena.hpp>
#include <mend/kernel/host/apply.hpp>
#include <mend/optim/adam.hpp>
#include <mend/optim/sgd.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "kernel/numbers.hpp"

using namespace mend;

TEST_CASE_TEMPLATE("the old state stays readable beside the new one", T, float, double) {
  for (kernel::Simd simd :
       {kernel::Simd::scalar, kernel::Simd::baseline, kernel::Simd::avx2, kernel::Simd::avx512}) {
    if (!kernel::supported(simd)) continue;
    for (std::size_t n : {0, 1, 7, 16, 33, 1000}) {
      auto p = test::numbers<T>(n, 1);
      const auto p0 = p, m0 = test::numbers<T>(n, 2), v0 = test::numbers<T>(n, 3),
                 g = test::numbers<T>(n, 4);
      auto plain = p0, m = m0, v = v0;
      const auto c = Adam{}.at(7);
      kernel::apply<Adam>(c, plain.data(), {m.data(), v.data()}, g.data(), n, T(0.5));
      const Arena memory{ByteCount{3 * 16384}};
      T* old_p = reinterpret_cast<T*>(memory.data());
      T* new_m = reinterpret_cast<T*>(memory.data() + 16384);
      T* new_v = reinterpret_cast<T*>(memory.data() + 2 * 16384);
      new_m[n] = old_p[n] = T(42);
      kernel::apply_apart<Adam>(c, p.data(), old_p, {m0.data(), v0.data()}, {new_m, new_v},
                                g.data(), n, T(0.5), simd);
      CHECK(test::same_bits(p, plain));
      CHECK(test::same_bits(std::vector<T>(old_p, old_p + n), p0));
      CHECK(test::same_bits(std::vector<T>(new_m, new_m + n), m));
      CHECK(test::same_bits(std::vector<T>(new_v, new_v + n), v));
      CHECK(new_m[n] == T(42));
      CHECK(old_p[n] == T(42));
    }
  }
}

TEST_CASE("a rule without slots keeps its parameters alone") {
  std::vector<float> p{1, 2, 3};
  const std::vector<float> g{1, 1, 1};
  const Arena memory{ByteCount{64}};
  auto* old_p = reinterpret_cast<float*>(memory.data());
  kernel::apply_apart<Sgd>(Sgd{.lr = 0.5}.at(0), p.data(), old_p, {}, {}, g.data(), 3, 1.0f);
  CHECK(p == std::vector<float>{0.5f, 1.5f, 2.5f});
  CHECK(std::vector<float>(old_p, old_p + 3) == std::vector<float>{1, 2, 3});
}
