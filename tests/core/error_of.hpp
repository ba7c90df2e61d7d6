#pragma once

#include <doctest/doctest.h>

#include <mend/core/error.hpp>

namespace mend_test {

//! The errno of the FileError that a call throws, which must name a path; -1 where it throws none.
int error_of(auto call) {
  try {
    call();
  } catch (const mend::FileError& e) {
    CHECK_FALSE(e.path().empty());
    return e.code();
  }
  return -1;
}

}  // namespace mend_test
