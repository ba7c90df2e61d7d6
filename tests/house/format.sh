#!/bin/sh
# format.sh ROOT: every C++ and CUDA source is as clang-format 14 leaves it; others differ.
. "$(dirname "$0")/files.sh"

for format in clang-format-14 clang-format ""; do
  [ -n "$format" ] || { echo "skipped: clang-format 14 is not installed"; exit 77; }
  case "$("$format" --version 2>/dev/null)" in *"version 14."*) break ;; esac
done
sources=$(files '*.hpp' '*.inl' '*.cuh' '*.cpp' '*.cu')
[ -n "$sources" ] || verdict "no sources under $root" ""
found=$(for source in $sources; do
  "$format" --dry-run -Werror "$source" 2>/dev/null || echo "$source"
done)
[ -z "$found" ] || { echo "not formatted; run: $format -i" $found; exit 1; }
echo "$(echo "$sources" | grep -c '') sources are formatted"
