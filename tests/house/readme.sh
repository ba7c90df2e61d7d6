#!/bin/sh
# readme.sh ROOT: README gives the two commands, and its C++ programs compile as they stand.
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
  count=$((count + 1))
done
[ "$count" -gt 0 ] || verdict "README.md: no C++ program" ""
echo "README.md gives both commands; $count program(s) compile"
