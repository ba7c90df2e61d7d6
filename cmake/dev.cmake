# What the project's own programs are built with; none of it reaches a user of mend::mend.

add_library(mend_dev INTERFACE)
target_link_libraries(mend_dev INTERFACE mend::mend)
target_compile_options(mend_dev INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Werror)
# The debug checks, which a user gets at -O0, in every build but the release one.
target_compile_definitions(mend_dev INTERFACE $<$<NOT:$<CONFIG:Release>>:MEND_DEBUG=1>)
if(MEND_SANITIZE)
  target_compile_options(mend_dev INTERFACE
    -fsanitize=${MEND_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(mend_dev INTERFACE -fsanitize=${MEND_SANITIZE})
endif()

if(PROJECT_IS_TOP_LEVEL AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(MEND_CCACHE ccache)
  if(MEND_CCACHE)
    # Paths count from the project's root, so that one clone finds what another has compiled.
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${MEND_CCACHE})
  endif()
endif()

# mend_find(package): find_package for a development dependency, with advice where it is missing.
macro(mend_find package)
  find_package(${package} ${ARGN} QUIET)
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR "mend's tests, examples and benchmarks need ${package}, which was not "
      "found. Run `sh cmake/install-deps.sh`, or configure with -DMEND_BUILD_TESTS=OFF "
      "-DMEND_BUILD_EXAMPLES=OFF -DMEND_BUILD_BENCH=OFF; the library itself needs none of them.")
  endif()
endmacro()
