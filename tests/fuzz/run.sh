#!/bin/bash
# run.sh: every parser against libFuzzer, from the corpus beside this script, with address and
# undefined-behaviour sanitizers; MEND_FUZZ_SECONDS each (10), two at a time. Long:
#   MEND_FUZZ_SECONDS=3600 bash tests/fuzz/run.sh
# What it finds it keeps as crash-* in the folder that it names.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
command -v clang++ >/dev/null || { echo "skipped: clang++ is not installed"; exit 77; }
work=$(mktemp -d) || exit 1
cd "$work" || exit 1
echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, long) { return 0; }' >probe.cpp
clang++ -fsanitize=fuzzer,address probe.cpp -o probe 2>/dev/null ||
  { echo "skipped: clang++ has no fuzzer here (Debian: libclang-rt-dev)"; exit 77; }

export here root work seconds="${MEND_FUZZ_SECONDS:-10}"
fuzz='
  name=$(basename "$1" .cpp)
  mkdir "$work/$name" && cd "$work/$name" || exit 1
  clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
    -I"$root/include" "$1" -o fuzz >log 2>&1 || { cat log; echo "$name: does not compile"; exit 1; }
  mkdir found
  ./fuzz -max_total_time="$seconds" -rss_limit_mb=512 -timeout=20 found "$here/corpus/$name" \
    >log 2>&1 || { tail -n 40 log; echo "$name: see $PWD"; exit 1; }
  echo "$name: $(grep -oE "Done [0-9]+ runs" log)"'
ls "$here"/*.cpp | xargs -P "${MEND_JOBS:-2}" -n 1 bash -c "$fuzz" fuzz || exit 1
rm -rf "$work"
