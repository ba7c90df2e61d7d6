#!/bin/sh
# install_deps.sh ROOT: cmake/install-deps.sh on machines that this one is not, made of fakes: other
# package managers, missing packages, neither root nor sudo, old compilers.
. "$(dirname "$0")/files.sh"

fake=$(mktemp -d) || exit 1
trap 'rm -rf "$fake"' EXIT
failed=0

# fake NAME BODY: a program NAME on the fake machine.
program() { printf '#!/bin/sh\n%s\n' "$2" >"$fake/$1" && chmod +x "$fake/$1"; }
# run STATUS SENTENCE [ARGUMENT]: the script ends with the status and says the sentence.
run() {
  output=$(PATH="$fake" /bin/sh "$root/cmake/install-deps.sh" ${3+"$3"} 2>&1)
  status=$?
  case "$status $output" in "$1 "*"$2"*) return ;; esac
  printf 'expected status %s and "%s", got status %s:\n%s\n' "$1" "$2" "$status" "$output"
  failed=1
}

for tool in cat sed sort head env; do ln -s "$(command -v $tool)" "$fake/$tool"; done
run 1 "no apt-get, so nothing was installed"
run 2 "usage:" --every

program dpkg-query "echo 'ii '"
program apt-get 'echo "apt-get $*"'
program cmake 'echo "cmake version 3.25.1"'
program g++ 'echo 12.2.0'
program id 'echo 1000'
run 0 "everything is installed"
run 0 "--all adds:" --help

program dpkg-query 'case "$3" in doctest-dev) exit 1 ;; spin) echo "rc " ;; *) echo "ii " ;; esac'
run 1 "as root, run: apt-get install doctest-dev spin"
program sudo 'echo "as root: $*"'
run 0 "as root: env DEBIAN_FRONTEND=noninteractive apt-get"
program id 'echo 0'
run 0 "install -y --no-install-recommends doctest-dev spin"
program apt-get 'case "$*" in *update*) exit 100 ;; esac'
run 0 "apt-get update failed"
program apt-get 'case "$*" in *install*) exit 100 ;; esac'
run 100 "installing doctest-dev spin"

program dpkg-query "echo 'ii '"
program g++ 'echo 10.2.1'
run 1 "here are CMake 3.25.1 and g++ 10.2.1"
program g++ 'echo 12.2.0'
program cmake 'echo "cmake version 3.18.4"'
run 1 "here are CMake 3.18.4"

[ $failed = 0 ] || exit 1
echo "install-deps.sh says what it does, and why it cannot"
