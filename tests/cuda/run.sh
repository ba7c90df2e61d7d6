#!/bin/bash
# run.sh [ELEMENTS]: on a machine with a CUDA device, builds the tests of the kernels for it, runs
# them there (host and device must give the same bits), and times the kernels. Prints a line `bar
# NAME VALUE LIMIT ok|short` for each; a bar that is short does not fail. Less than five minutes.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
for nvcc in "${CUDACXX-}" "$(command -v nvcc)" /usr/local/cuda/bin/nvcc; do
  [ ! -x "$nvcc" ] || break
done
[ -x "$nvcc" ] || { echo "skipped: nvcc is not installed"; exit 77; }
nvidia-smi -L >/dev/null 2>&1 || { echo "skipped: there is no CUDA device here"; exit 77; }
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

export nvcc root work
compile='
  name=$(basename "$1" .cpp)
  "$nvcc" -x cu -std=c++20 -O2 -arch=native -I"$root/include" -I"$root/tests" -c "$1" \
    -o "$work/$name.o" || { echo "$name: does not compile"; exit 1; }'
tests=("$root/tests/main.cpp")
for source in "$here"/*.cpp; do
  [ "$source" = "$here/timings.cpp" ] || tests+=("$source")
done
echo '#include <doctest/doctest.h>' | "${CXX:-c++}" -E -x c++ - >/dev/null 2>&1 ||
  { echo "doctest is not installed: timings only"; tests=(); }
printf '%s\0' "${tests[@]}" "$here/timings.cpp" |
  xargs -0 -P "$(nproc)" -n 1 bash -c "$compile" compile || exit 1

if [ ${#tests[@]} -gt 0 ]; then
  objects=()
  for source in "${tests[@]}"; do objects+=("$work/$(basename "$source" .cpp).o"); done
  "$nvcc" -arch=native "${objects[@]}" -o "$work/tests" && "$work/tests" || exit 1
fi
"$nvcc" -arch=native "$work/timings.o" -o "$work/timings" && "$work/timings" "$@"
