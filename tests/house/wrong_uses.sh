#!/bin/sh
# wrong_uses.sh ROOT: no tests/compile_fail/*.cpp compiles, and each says in one sentence why:
#   // expect: <sentence>          on the first line: the compiler's output holds it
#   // expect clang++: <sentence>  on the second line, where clang++ words it differently
. "$(dirname "$0")/files.sh"

cases=$(files 'tests/compile_fail/*.cpp')
[ -n "$cases" ] || verdict "no cases in $root/tests/compile_fail" ""
check() {  # check CASE COMPILER
  sentence=$(sed -n '1s|^// expect: ||p' "$1")
  [ -n "$sentence" ] || { echo "$1: the first line is not '// expect: <sentence>'"; return 1; }
  other=$(sed -n "2s|^// expect $2: ||p" "$1")
  sentence=${other:-$sentence}
  # Without excerpts: a sentence must be in the message, not in a quoted line of source.
  case "$2" in g++) plain=-fno-diagnostics-show-caret ;; *) plain=-fno-caret-diagnostics ;; esac
  if output=$("$2" -std=c++20 -Iinclude -fsyntax-only $plain "$1" 2>&1); then
    echo "$1: $2 compiles it; expected: $sentence"
    return 1
  elif ! printf '%s' "$output" | tr -s '[:space:]' ' ' | grep -qF -- "$sentence"; then
    printf '%s\n' "$output" | head -n 20
    echo "$1: $2 does not say: $sentence"
    return 1
  fi
}
failed=0
for compiler in $compilers; do
  for case in $cases; do check "$case" "$compiler" || failed=1; done
done
[ $failed = 0 ] || exit 1
echo "$(echo "$cases" | grep -c '') wrong uses are refused by" $compilers
