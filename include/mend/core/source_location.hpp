#pragma once

namespace mend {

//! Where in the source something happened. (clang 14 has no std::source_location with libstdc++.)
struct SourceLocation {
  const char* file = "";
  int line = 0;
  const char* function = "";

  //! As a default argument: the place of the call.
  static constexpr SourceLocation current(const char* file = __builtin_FILE(),
                                          int line = __builtin_LINE(),
                                          const char* function = __builtin_FUNCTION()) {
    return {file, line, function};
  }
};

}  // namespace mend
