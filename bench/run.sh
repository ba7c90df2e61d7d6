#!/bin/sh
# run.sh BARS PROGRAM...: runs benchmarks one after another and writes their `bar` lines to BARS.
# A bar that is short is reported and does not fail: machines are noisy, and the figure is the news.
# A program that fails, overruns ten minutes or prints no bar does.
set -u
bars=$1
shift
[ $# -gt 0 ] || { echo "no benchmarks"; exit 1; }
all=$(mktemp) && out=$(mktemp) || exit 1
trap 'rm -f "$all" "$out"' EXIT
failed=0
for program in "$@"; do
  echo "--- ${program##*/}"
  { timeout 600 "$program" || echo "$?" >"$out.status"; } | tee "$out"
  if [ -e "$out.status" ]; then
    echo "FAILED: ${program##*/} ended with status $(cat "$out.status")"
    rm -f "$out.status"
    failed=1
  elif ! grep -qE '^bar [^ ]+ [^ ]+ [^ ]+ (ok|short)$' "$out"; then
    echo "FAILED: ${program##*/} printed no line 'bar <name> <value> <limit> ok|short'"
    failed=1
  fi
  grep '^bar ' "$out" >>"$all"
done
cp "$all" "$bars" || failed=1
echo "--- $(grep -c '' "$all") bars, $(grep -c ' short$' "$all") short; also in $bars"
cat "$all"
exit $failed
