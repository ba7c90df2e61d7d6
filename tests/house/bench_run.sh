#!/bin/sh
# bench_run.sh ROOT: bench/run.sh keeps the bars, and fails for a program that failed or had none.
. "$(dirname "$0")/files.sh"

fake=$(mktemp -d) || exit 1
trap 'rm -rf "$fake"' EXIT
program() { printf '#!/bin/sh\n%s\n' "$2" >"$fake/$1" && chmod +x "$fake/$1"; }
# run STATUS SENTENCE PROGRAM...: the script ends with the status and says the sentence.
run() {
  status=$1 sentence=$2
  shift 2
  output=$(cd "$fake" && sh "$root/bench/run.sh" "$fake/bars.txt" "$@" 2>&1)
  case "$? $output" in "$status "*"$sentence"*) return ;; esac
  printf 'expected status %s and "%s", got:\n%s\n' "$status" "$sentence" "$output"
  exit 1
}

program good 'echo "some text"; echo "bar speed 1.20 1.00 ok"; echo "bar memory 0.02 0.01 short"'
program fails 'echo "bar speed 1.20 1.00 ok"; exit 3'
program silent 'echo "some text"'
run 0 "2 bars, 1 short" ./good
[ "$(grep -c '' "$fake/bars.txt")" = 2 ] || verdict "bars.txt: $(cat "$fake/bars.txt")" ""
run 1 "FAILED: fails ended with status 3" ./good ./fails
run 1 "FAILED: silent printed no line" ./silent ./good
run 1 "no benchmarks"
echo "run.sh keeps the bars and tells what failed"
