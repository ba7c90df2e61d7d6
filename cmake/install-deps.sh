#!/bin/sh
# Installs the Debian packages that mend's demo and tests need. Run as root, or with sudo at hand.
#   sh cmake/install-deps.sh         what the demo and the tests need
#   sh cmake/install-deps.sh --all   the optional engines and tools too
# Safe to run twice: what is installed is left alone, and with nothing missing it ends at once.
set -eu

# Compilers and build. clang is the second compiler of the tests, clang-format their format check.
packages="g++ clang clang-format cmake ninja-build"
# Tests (doctest, the protocol's model checker), tools (fmt, CLI11), examples (Eigen, zlib, data).
packages="$packages doctest-dev spin libfmt-dev libcli11-dev libeigen3-dev zlib1g-dev"
packages="$packages dataset-fashion-mnist"
# References of benchmarks and tests (libtorch-dev needs a BLAS), faster rebuilds, plots, static
# checks, clang's sanitizers and fuzzer, the tests on aarch64.
optional="libgloo-dev libbenchmark-dev libtorch-dev libopenblas0-pthread ccache gnuplot-nox"
optional="$optional clang-tidy libclang-rt-dev git g++-aarch64-linux-gnu qemu-user-static"

usage="usage: sh cmake/install-deps.sh [--all]"
case "${1-}" in
  "") ;;
  --all) packages="$packages $optional" ;;
  -h | --help) echo "$usage"; echo "installs: $packages"; echo "--all adds: $optional"; exit 0 ;;
  *) echo "$usage" >&2; exit 2 ;;
esac

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  cat >&2 <<END
install-deps: this system has no apt-get, so nothing was installed. Install the counterparts of
  $packages
by hand (CMake 3.25 or newer; g++ 12 or clang++ 14 or newer), then run the cmake command alone.
END
  exit 1
fi

missing=""
for package in $packages; do
  case "$(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null || true)" in
    ii*) ;;
    *) missing="$missing $package" ;;
  esac
done

if [ -z "$missing" ]; then
  echo "install-deps: everything is installed"
else
  echo "install-deps: installing$missing"
  if [ "$(id -u)" = 0 ]; then
    as_root=""
  elif command -v sudo >/dev/null; then
    as_root="sudo"
  else
    echo "install-deps: neither root nor sudo; as root, run: apt-get install$missing" >&2
    exit 1
  fi
  apt() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@"; }
  apt update || echo "install-deps: apt-get update failed; trying the lists that are there" >&2
  apt install -y --no-install-recommends $missing
fi

newer() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }
cmake_version=$(cmake --version | sed -n '1s/[^0-9]*//p')
if ! newer 3.25 "$cmake_version" || ! newer 12 "$(g++ -dumpfullversion)"; then
  echo "install-deps: mend needs CMake 3.25 and g++ 12, which Debian 12 has; here are CMake" \
    "$cmake_version and g++ $(g++ -dumpfullversion)" >&2
  exit 1
fi
