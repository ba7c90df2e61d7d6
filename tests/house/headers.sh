#!/bin/sh
# headers.sh ROOT: every .hpp compiles alone, twice in a row, without warnings, by g++ and clang++.
. "$(dirname "$0")/files.sh"

headers=$(files 'include/*.hpp' | sed 's|^include/||')
[ -n "$headers" ] || verdict "no headers under $root/include" ""
export warnings
for compiler in $compilers; do
  echo "$headers" | compiler=$compiler xargs -P 2 -I '{}' sh -c '
    printf "#include \"%s\"\n#include \"%s\"\n" {} {} |
      $compiler -std=c++20 -Iinclude $warnings -fsyntax-only -x c++ - ||
      { echo "$compiler: {} does not compile alone"; exit 1; }' || failed=1
done
[ -z "${failed-}" ] || exit 1
echo "$(echo "$headers" | grep -c '') headers compile alone by" $compilers
