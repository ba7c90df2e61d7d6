#!/bin/sh
# check.sh EXPECTED NAME DEFS...: one exhaustive search of session.pml, one line of result.
#
#   ./check.sh pass mine -DB=3 -DSUSP=0 -DOVERLAP
#   ./check.sh survivor_needs_state_transfer early -DSUSP=0 -DCOARSE -DZCUT -DM_NOBARRIER
#
# EXPECTED is `pass`, or a text that the first violation must contain (`invalid_end_state` is a deadlock). Exit 0: it
# ended as expected; 1: it did not; 77: spin or gcc is not installed. A search that ran out of memory or depth, or
# was cut off, never counts as expected. The verifier, its log and the trail stay in ${TMPDIR:-/tmp}/mend_model/NAME;
# there `spin -t -p -k session.pml.trail DEFS .../session.pml` prints the order of events that led to a violation.
#
# PAN_FLAGS: for gcc (-DCOLLAPSE halves the memory and costs half as much time again); MEGABYTES: limit of one search.
for tool in spin gcc; do
  command -v $tool >/dev/null || { echo "skipped: $tool is not installed (apt-get install spin gcc)"; exit 77; }
done
here=$(cd "$(dirname "$0")" && pwd)
expected=$1 name=$2
shift 2
dir=${TMPDIR:-/tmp}/mend_model/$name
mkdir -p "$dir" && cd "$dir" && rm -f session.pml.trail || exit 1

spin "$@" -a "$here/session.pml" >spin.log 2>&1 &&
  gcc -O2 -w -DSAFETY -DNOREDUCE -DVECTORSZ=512 -DMEMLIM="${MEGABYTES:-3500}" $PAN_FLAGS -o pan pan.c >>spin.log 2>&1 ||
  { cat spin.log; echo "$name: session.pml does not compile with $*"; exit 1; }
cpu=$( (timeout 7200 ./pan -m200000 -w24 -n >pan.log 2>&1; times) |
  awk 'END { for (i = 1; i <= 2; ++i) { split($i, t, "[ms]"); sum += 60 * t[1] + t[2] } print sum }')

if grep -q "^pan:1:" pan.log; then
  seen=$(sed -n '/^pan:1:/{s/^pan:1: //;s/assertion violated //;s/ (at depth.*//;s/ /_/g;p;q}' pan.log)
elif grep -q "errors: 0" pan.log && ! grep -qE "not completed|too small|MEMLIM" pan.log; then
  seen=pass
else
  seen=incomplete
fi
case $seen in
  pass | incomplete) test "$expected" = "$seen" ;;
  *) test "$expected" != pass && printf %s "$seen" | grep -qF -- "$expected" ;;
esac && verdict=ok || verdict=WRONG
states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' pan.log)
printf '%-15s %11s %9.1f  %-34s %-34s %-5s  %s\n' \
  "$name" "${states:--}" "$cpu" "$expected" "$seen" "$verdict" "$*"
test $verdict = ok
