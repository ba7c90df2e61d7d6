#include <mend/optim/undo/page_stack.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

TEST_CASE("pieces do not overlap, and pages come and go with the need") {
  mend::detail::PageStack pages;
  CHECK(pages.size() == 0);
  std::byte* a = pages.take(5);
  std::byte* b = pages.take(100);
  CHECK(reinterpret_cast<std::uintptr_t>(b) % 8 == 0);
  CHECK(b >= a + 5);
  CHECK(pages.used() == 112);
  const std::size_t page = pages.size();
  std::memset(a, 1, 5);
  std::memset(pages.take(3 * page), 2, 3 * page);  // larger than a page
  std::memset(pages.take(page / 2), 3, page / 2);
  CHECK(a[4] == std::byte{1});
  const std::size_t most = pages.size();
  CHECK(most > 4 * page);
  pages.clear();
  CHECK(pages.used() == 0);
  CHECK(pages.size() == most);  // the next round may need as much
  CHECK(pages.take(1) == a);
  pages.clear();
  CHECK(pages.size() == page);  // this one did not
  pages.clear();
  CHECK(pages.size() == 0);
}
