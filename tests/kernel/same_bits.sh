#!/bin/bash
# same_bits.sh [COMPILER...]: rules, undo, norms and reductions give the same bits, those of
# same_bits.txt, at every SIMD level of this processor, whatever compiler and flags built them. A
# cross-compiler for aarch64 is among the defaults where it and its emulator are installed.
# Two builds at a time.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
if [ $# -eq 0 ]; then
  for compiler in g++ clang++; do command -v "$compiler" >/dev/null && set -- "$@" "$compiler"; done
  if [ "$(uname -m)" != aarch64 ] && command -v qemu-aarch64-static >/dev/null &&
    command -v aarch64-linux-gnu-g++ >/dev/null; then
    set -- "$@" aarch64-linux-gnu-g++
  fi
fi
[ $# -gt 0 ] || { echo "neither g++ nor clang++ is installed"; exit 77; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# check NAME COMPILER FLAGS [EMULATOR]: NAME.levels, or NAME.failed with what is wrong.
check() {
  local out=$work/$1 what="$2 $3"
  {
    "$2" -std=c++20 $3 -pthread -I"$root/include" "$here/programs/same_bits_probe.cpp" \
      -o "$out" || { echo "$what: does not compile"; return; }
    ${4-} "$out" >"$out.lines" || { echo "$what: the probe fails"; tail -n 1 "$out.lines"; return; }
    # The first word is the level; every level must give the golden lines.
    for level in $(cut -d' ' -f1 "$out.lines" | sort -u); do
      sed -n "s/^$level *//p" "$out.lines" | diff "$here/same_bits.txt" - >"$out.diff" ||
        { echo "$what, $level: other bits"; head -n 6 "$out.diff"; return; }
      echo "$level" >>"$out.levels"
    done
  } >"$out.failed" 2>&1
}

builds=0
for compiler; do
  case "$compiler" in
    aarch64-*) all=("-O2 -ffp-contract=fast -static") run=qemu-aarch64-static ;;
    clang++*) all=("-O3 -march=native -ffp-contract=fast") run= ;;
    *) all=("-O3 -march=native -ffp-contract=fast" -O2 -O0) run= ;;
  esac
  for flags in "${all[@]}"; do
    [ "$(jobs -rp | wc -l)" -lt 2 ] || wait -n
    builds=$((builds + 1))
    check $builds "$compiler" "$flags" "$run" &
  done
done
wait
cat "$work"/*.failed
[ "$(cat "$work"/*.failed | wc -c)" -eq 0 ] || exit 1
echo "$builds builds by $*: the same bits at levels" $(sort -u "$work"/*.levels)
