# Sourced by the checks. Enters the checkout that is the script's first argument.
cd "${1:?usage: sh $0 ROOT}" || exit 1
root=$(pwd)
warnings="-Wall -Wextra -Wpedantic -Wshadow -Werror"
# Those of the two that are installed.
compilers=$(for name in g++ clang++; do command -v "$name" >/dev/null && echo "$name"; done)
: "${compilers:?neither g++ nor clang++ is installed}"

# files GLOB...: the checkout's files of that name, tracked or new but not ignored; * spans folders.
files() {
  if [ ! -e .git ] || ! git ls-files --cached --others --exclude-standard -- "$@" 2>/dev/null; then
    for glob; do
      find . \( -path ./.git -o -path ./build \) -prune -o -type f -path "./$glob" -print
    done
  fi | sed 's|^\./||' | sort -u | while read -r file; do [ ! -f "$file" ] || echo "$file"; done
}

# verdict MESSAGES WHAT: fails with the messages if there are any, else says what was checked.
verdict() {
  [ -z "$1" ] || { printf '%s\n' "$1"; exit 1; }
  echo "$2"
}
