#!/bin/sh
# wrong_uses.sh ROOT: no tests/compile_fail/*.cpp compiles, and each says in one sentence why:
#   // expect: <sentence>          begins the file: the compiler's output holds it
#   // expect clang++: <sentence>  follows where clang++ words it differently
# A sentence may go on in the lines of the comment.
# It says little else: at most 3 errors in 40 lines.
. "$(dirname "$0")/files.sh"

cases=$(files 'tests/compile_fail/*.cpp')
[ -n "$cases" ] || verdict "no cases in $root/tests/compile_fail" ""
expected() {  # expected CASE COMPILER: the sentence, on one line
  awk -v compiler="$2" '
    !/^\/\// { exit }
    /^\/\/ expect( [^ ]+)?: / { at = $3; sub(/^\/\/ expect[^:]*: /, ""); sub(/:$/, "", at)
                              if (!("any" in text)) at = "any"; text[at] = $0; next }
    at != "" { text[at] = text[at] substr($0, 3) }
    END { print compiler in text ? text[compiler] : text["any"] }' "$1"
}
check() {  # check CASE COMPILER
  sentence=$(expected "$1" "$2")
  [ -n "$sentence" ] || { echo "$1: the first line is not '// expect: <sentence>'"; return 1; }
  # Without excerpts: a sentence must be in the message, not in a quoted line of source.
  case "$2" in g++) plain=-fno-diagnostics-show-caret ;; *) plain=-fno-caret-diagnostics ;; esac
  if output=$(LC_ALL=C "$2" -std=c++20 -Iinclude -fsyntax-only $plain "$1" 2>&1); then
    echo "$1: $2 compiles it; expected: $sentence"
    return 1
  elif ! printf '%s' "$output" | tr -s '[:space:]' ' ' | grep -qF -- "$sentence"; then
    printf '%s\n' "$output" | head -n 20
    echo "$1: $2 does not say: $sentence"
    return 1
  fi
  errors=$(printf '%s\n' "$output" | grep -c 'error: ')
  lines=$(printf '%s\n' "$output" | grep -c '')
  [ "$errors" -le 3 ] && [ "$lines" -le 40 ] ||
    { echo "$1: $2 says it in $errors errors and $lines lines"; return 1; }
}
failed=0
for compiler in $compilers; do
  for case in $cases; do check "$case" "$compiler" || failed=1; done
done
[ $failed = 0 ] || exit 1
echo "$(echo "$cases" | grep -c '') wrong uses are refused by" $compilers
