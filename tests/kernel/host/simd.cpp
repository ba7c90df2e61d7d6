#include <mend/kernel/host/simd.hpp>

#include <doctest/doctest.h>

#include <mend/core/error.hpp>

#include <cstdlib>

using mend::kernel::Simd;

TEST_CASE("every processor runs scalar and baseline, and the best level is one it runs") {
  CHECK(mend::kernel::supported(Simd::scalar));
  CHECK(mend::kernel::supported(Simd::baseline));
  CHECK(mend::kernel::supported(mend::kernel::best_simd()));
  if (mend::kernel::supported(Simd::avx512)) CHECK(mend::kernel::supported(Simd::avx2));
}

TEST_CASE("levels have names, and names have levels") {
  for (Simd simd : {Simd::scalar, Simd::baseline, Simd::avx2, Simd::avx512}) {
    if (mend::kernel::supported(simd)) {
      CHECK(mend::kernel::simd_named(name_of(simd)) == simd);
    } else {
      CHECK_THROWS_AS((void)mend::kernel::simd_named(name_of(simd)), mend::OptionError);
    }
  }
}

TEST_CASE("an unknown level is refused by name") {
  CHECK_THROWS_WITH_AS((void)mend::kernel::simd_named("avx1024"),
                       "MEND_SIMD: 'avx1024' is none of scalar, baseline, avx2, avx512",
                       mend::OptionError);
}

TEST_CASE("MEND_SIMD decides, or the processor") {
  if (const char* forced = std::getenv("MEND_SIMD"); forced != nullptr && *forced != '\0') {
    CHECK(name_of(mend::kernel::best_simd()) == forced);
  } else {
    CHECK((mend::kernel::best_simd() == Simd::avx512) == mend::kernel::supported(Simd::avx512));
  }
}
