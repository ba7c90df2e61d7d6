#!/bin/sh
# readme.sh ROOT: README gives the two commands, and its C++ programs compile as they stand,
# as C++20 and, in one sentence, as nothing older.
. "$(dirname "$0")/files.sh"

for preset in demo test; do
  grep -q "^sh cmake/install-deps.sh && cmake --workflow --preset $preset\$" README.md ||
    verdict "README.md: no line 'sh cmake/install-deps.sh && cmake --workflow --preset $preset'" ""
done

out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT
awk -v out="$out" '
  /^```cpp$/ { inside = 1; name = out "/README_" FNR ".cpp"; next }
  /^```$/ { inside = 0 }
  inside { print >name }' README.md
count=0
for program in $(grep -ls 'int main(' "$out"/*.cpp); do
  for compiler in $compilers; do
    $compiler -std=c++20 -Iinclude $warnings -fsyntax-only "$program" || exit 1
  done
  # What a compiler says that was not told of C++20.
  for compiler in $compilers; do
    [ -f include/mend/config.hpp ] || continue
    $compiler -std=c++17 -Iinclude -fsyntax-only "$program" 2>&1 | grep -m 1 'error: ' |
      grep -q 'mend needs C++20: compile with -std=c++20' ||
      verdict "$program: $compiler -std=c++17 does not begin with: mend needs C++20" ""
  done
  count=$((count + 1))
done
[ "$count" -gt 0 ] || verdict "README.md: no C++ program" ""
echo "README.md gives both commands; $count program(s) compile"
