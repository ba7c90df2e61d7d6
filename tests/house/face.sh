#!/bin/sh
# face.sh ROOT PROGRAM MENDRUN: the program compiles without warnings with what a user types, by g++
# and clang++, and runs to its end, alone and as three workers. Lines that begin with "final" are
# the same in every run and on every rank.
. "$(dirname "$0")/files.sh"

out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT
for compiler in $compilers; do
  $compiler -std=c++20 -Iinclude -pthread $warnings "$2" -o "$out/$compiler" || exit 1
  cd "$out" || exit 1
  timeout 30 "./$compiler" </dev/null >alone ||
    { echo "alone, built by $compiler: status $?"; exit 1; }
  timeout 60 "$3" -n 3 "./$compiler" </dev/null >group ||
    { echo "under mendrun -n 3, built by $compiler: status $?"; exit 1; }
  cat alone group | tee -a all
  cd "$root" || exit 1
done
[ "$(grep -oh 'final .*' "$out/all" | sort -u | grep -c '')" -le 1 ] ||
  { echo "the final lines differ"; exit 1; }
