#!/bin/sh
# tidy.sh ROOT: clang-tidy 14 finds nothing in the headers.
. "$(dirname "$0")/files.sh"

case "$(clang-tidy --version 2>/dev/null)" in
  *"version 14."*) ;;
  *) echo "skipped: clang-tidy 14 is not installed"; exit 77 ;;
esac
headers=$(files 'include/*.hpp' | sed 's|^include/||')
[ -n "$headers" ] || verdict "no headers under $root/include" ""
all=$(mktemp --suffix .cpp) || exit 1
trap 'rm -f "$all"' EXIT
echo "$headers" | sed 's|.*|#include <&>|' >"$all"
clang-tidy --quiet --config-file=.clang-tidy "$all" -- -std=c++20 -Iinclude || exit 1
echo "clang-tidy finds nothing in $(echo "$headers" | grep -c '') headers"
