#include <mend/kernel/host/copy.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernel/numbers.hpp"

TEST_CASE("copies of every size and alignment are whole and stay inside") {
  constexpr std::size_t large = std::size_t{1} << 20, margin = 128;
  std::vector<std::uint8_t> from(large + 3 * margin), to;
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::uint8_t>(test::mix(i));
  for (std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{63}, std::size_t{4096},
                        large - 1, large, large + 1, large + 63, large + 64, large + 127})
    for (std::size_t shift : {0, 1, 4, 33, 64}) {
      CAPTURE(n);
      CAPTURE(shift);
      to.assign(n + 2 * margin, 0xee);
      mend::kernel::copy(to.data() + shift, from.data() + 2 * shift % 67, n);
      bool whole = true;
      for (std::size_t i = 0; i < to.size(); ++i)
        whole = whole &&
                to[i] == (i >= shift && i < shift + n ? from[2 * shift % 67 + i - shift] : 0xee);
      CHECK(whole);
    }
}
