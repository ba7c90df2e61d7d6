#include <mend/core/source_location.hpp>

#include <doctest/doctest.h>

#include <string>
#include <string_view>

using mend::SourceLocation;

namespace {

SourceLocation where_called(SourceLocation at = SourceLocation::current()) { return at; }

}  // namespace

TEST_CASE("as a default argument it is the place of the call") {
  SourceLocation here = where_called();
  int line = __LINE__ - 1;
  CHECK(here.line == line);
  CHECK(std::string_view{here.file}.find("source_location.cpp") != std::string_view::npos);
  CHECK(std::string{here.function} == __func__);
  CHECK(where_called().line == __LINE__);
}
