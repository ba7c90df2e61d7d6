#!/bin/bash
# same_bits.sh [COMPILER...]: rules and reductions give the same bits, those of same_bits.txt, at
# every SIMD level of this processor, whatever compiler and flags built them. A cross-compiler for
# aarch64 is among the defaults where it and its emulator are installed.
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

failed=0 builds=0 levels=
for compiler; do
  for flags in -O0 -O2 "-O3 -march=native -ffp-contract=fast"; do
    run=
    case "$compiler $flags" in
      aarch64-*\ -O2) flags="-O2 -ffp-contract=fast -static" run=qemu-aarch64-static ;;
      aarch64-*) continue ;;
      clang++*\ -O0) continue ;;
    esac
    what="$compiler $flags"
    "$compiler" -std=c++20 $flags -pthread -I"$root/include" \
      "$here/programs/same_bits_probe.cpp" -o "$work/probe" ||
      { echo "$what: does not compile"; failed=1; continue; }
    $run "$work/probe" >"$work/lines" || { echo "$what: the probe fails"; failed=1; continue; }
    # The first word is the level; every level must give the golden lines.
    for level in $(cut -d' ' -f1 "$work/lines" | sort -u); do
      sed -n "s/^$level *//p" "$work/lines" | diff "$here/same_bits.txt" - >"$work/diff" ||
        { echo "$what, $level: other bits"; head -n 6 "$work/diff"; failed=1; }
      case " $levels " in *" $level "*) ;; *) levels="$levels $level" ;; esac
    done
    builds=$((builds + 1))
  done
done
[ $failed = 0 ] || exit 1
echo "$builds builds by $*: the same bits at levels$levels"
