#!/bin/bash
# compile.sh: nvcc compiles, without warnings and without special flags, every header of the device
# side by itself, the host's umbrella, programs as users write them, and the tests of the kernels,
# which instantiate all templates. For the oldest device that mend knows and for a newer one,
# and not optimised: only what nvcc says counts.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
for nvcc in "${CUDACXX-}" "$(command -v nvcc)" /usr/local/cuda/bin/nvcc; do
  [ ! -x "$nvcc" ] || break
done
[ -x "$nvcc" ] || { echo "skipped: nvcc is not installed"; exit 77; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

mkdir "$work/sources"
for header in "$root"/include/mend/kernel/cuda/*.cuh "$root"/include/mend/mend*.*; do
  name=${header#"$root"/include/}
  printf '#include "%s"\n#include "%s"\n' "$name" "$name" \
    >"$work/sources/$(echo "$name" | tr / _).cu"
done
for source in "$here"/*.cpp "$root"/tests/face/*.cpp; do
  ln -s "$source" "$work/sources/$(basename "$source" .cpp).cu"
done

export nvcc root work
compile='
  source=$1
  "$nvcc" -std=c++20 -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 \
    -Xcicc -O0 -Xptxas -O0 -Xcompiler=-Wall,-Wextra -Werror all-warnings \
    -I"$root/include" -I"$root/tests" \
    -c "$source" -o "$work/$(basename "$source").o" >"$source.log" 2>&1 ||
    { echo "$(basename "$source"): nvcc refuses it"; head -n 20 "$source.log"; exit 1; }'
ls "$work"/sources/*.cu | xargs -P "${MEND_JOBS:-2}" -n 1 bash -c "$compile" compile || exit 1
echo "$(ls "$work"/sources/*.cu | grep -c '') sources compile for sm_80 and sm_90"
