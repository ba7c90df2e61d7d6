#!/bin/sh
# self_test.sh: the checks of the house, run on a small tree in order and on the same tree with one
# thing wrong at a time. Each must pass the first and find, by its sentence, what is wrong.
house=$(cd "$(dirname "$0")" && pwd)
tree=$(mktemp -d) || exit 1
trap 'rm -rf "$tree"' EXIT
failed=0
arguments=""

# put FILE LINE...: writes a file of the tree.
put() {
  file=$tree/$1
  shift
  mkdir -p "$(dirname "$file")" && printf '%s\n' "$@" >"$file"
}

in_order() {
  rm -rf "${tree:?}"/* "$tree"/.[a-z]*
  put .clang-format 'BasedOnStyle: Google' 'ColumnLimit: 100'
  put .clang-tidy 'Checks: -*,readability-identifier-naming' 'WarningsAsErrors: "*"' \
    'HeaderFilterRegex: include/mend/' 'CheckOptions:' \
    '  - {key: readability-identifier-naming.StructCase, value: CamelCase}'
  put include/mend/mend.hpp '#pragma once' '' '#include "mend/optim/b.hpp"'
  put include/mend/core/a.hpp '#pragma once' '' 'inline int a() { return 1; }'
  put include/mend/optim/b.hpp '#pragma once' '' '#include "mend/core/a.hpp"' '' \
    'template <class T>' 'constexpr void b(T) {' \
    '  static_assert(sizeof(T) > 1, "b needs more than a byte");' '}'
  put tests/core/a.cpp '#include <mend/core/a.hpp>'
  put tests/optim/b.cpp '#include <mend/optim/b.hpp>'
  put tests/compile_fail/byte.cpp '// expect: b needs more than a byte' '#include <mend/mend.hpp>' \
    '' "void wrong() { b('c'); }"
  put README.md 'sh cmake/install-deps.sh && cmake --workflow --preset demo' \
    'sh cmake/install-deps.sh && cmake --workflow --preset test' \
    'See [a](include/mend/core/a.hpp), `[no](link)`.' \
    '```cpp' '#include <mend/mend.hpp>' 'int main() { return a() - 1; }' '```'
}

# passes CHECK: it accepts the tree (or says that it cannot look, with 77).
passes() {
  output=$(sh "$house/$1.sh" "$tree" $arguments 2>&1)
  case $? in 0 | 77) return ;; esac
  printf '%s: refuses a tree in order:\n%s\n' "$1" "$output"
  failed=1
}

# finds CHECK SENTENCE: it refuses the tree and says so.
finds() {
  output=$(sh "$house/$1.sh" "$tree" $arguments 2>&1)
  case "$? $output" in
    1*"$2"*) ;;
    77*) echo "$1: $output" ;;
    *) printf '%s: expected "%s", got status and output: %s\n' "$1" "$2" "$output"; failed=1 ;;
  esac
  in_order
}

in_order
for check in includes headers layout format tidy readme wrong_uses; do passes $check; done

put include/mend/core/a.hpp '#pragma once' '#include "mend/optim/b.hpp"'
finds includes 'include/mend/core/a.hpp:2: core must not include from optim: mend/optim/b.hpp'
put include/mend/core/a.hpp '#pragma once' '#include <mend/core/c.hpp>'
finds includes 'write #include "mend/core/c.hpp"'
put include/mend/core/a.hpp '#pragma once' '#include "c.hpp"'
finds includes 'write the whole path'
put include/mend/core/a.hpp '#pragma once' '#include "mend/mend.hpp"'
finds includes 'a header includes an umbrella'
put include/mend/core/a.hpp '#pragma once' '#include <cuda_runtime.h>'
finds includes 'CUDA named in a .hpp'
put include/mend/core/a.hpp '#pragma once' '#include "mend/core/c.cuh"'
finds includes 'a .hpp includes the device side'
put include/mend/core/a.hpp '#pragma once' '#include <fmt/core.h>'
finds includes 'not in a library header: fmt/core.h'
put include/mend/attic/a.hpp '#pragma once'
finds includes 'no room is named attic'
put include/mend/config.hpp '#pragma once' '#include "mend/core/a.hpp"'
finds includes 'mend/config.hpp must not include from core'
rm -r "$tree/include"
finds includes 'no headers under'

put include/mend/core/a.hpp '#pragma once' 'inline std::string a();'
finds headers 'mend/core/a.hpp does not compile alone'
put include/mend/core/a.hpp 'struct A {};'
finds headers 'mend/core/a.hpp does not compile alone'
put include/mend/core/a.hpp '#pragma once' 'inline int a(int b) { return 1; }'
finds headers 'mend/core/a.hpp does not compile alone'

rm "$tree/tests/core/a.cpp"
finds layout 'include/mend/core/a.hpp: has no test tests/core/a.cpp'
put tests/core/a.cpp '#include <vector>' '#include <mend/core/a.hpp>'
finds layout 'the first include is not <mend/core/a.hpp>'
put include/mend/core/a.hpp 'struct A {};'
finds layout 'include/mend/core/a.hpp: no #pragma once'
put include/mend/core/a.hpp '#pragma once' '#define MENDA 1'
finds layout 'include/mend/core/a.hpp:2:#define MENDA 1 (a macro that does not start with MEND_)'
put src/a.cpp 'int a;'
finds layout 'src: the top level has no place for it'
put tests/core/a.cpp '#include <mend/core/a.hpp>' "// $(printf '%098d' 0)"
finds layout '(over 100 columns)'
put tests/core/a.cpp '#include <mend/core/a.hpp>' 'int a; '
finds layout '(a tab, a carriage return or a blank at the end)'
put docs/a.md "see $tree/x"
finds layout '(path of a machine)'
put docs/a.md 'see /home/somebody/x'
finds layout '(path of a machine)'
put docs/a.md 'see [b](b.md)'
finds layout 'docs/a.md: links to b.md, which is not there'
put tests/support/a.hpp 'TEST_CASE("never run") {}'
finds layout '(a test case in a header)'

put tests/core/a.cpp '#include <mend/core/a.hpp>' 'int  a;'
finds format 'tests/core/a.cpp'

put README.md 'cmake --workflow --preset demo'
finds readme "no line 'sh cmake/install-deps.sh && cmake --workflow --preset demo'"
sed -i 's/int main() {/int main() { b(1)/' "$tree/README.md"
finds readme 'error'
sed -i '/int main/d' "$tree/README.md"
finds readme 'no C++ program'

put tests/compile_fail/byte.cpp '// expect: b needs more than a byte' '#include <mend/mend.hpp>' \
  '' "void wrong() { b(1); }"
finds wrong_uses 'compiles it; expected: b needs more than a byte'
put tests/compile_fail/byte.cpp '// expect: b needs two bytes' '#include <mend/mend.hpp>' \
  '' "void wrong() { b('c'); }"
finds wrong_uses 'does not say: b needs two bytes'
put tests/compile_fail/byte.cpp '// expect: return "never in an excerpt"' \
  'int wrong() { return "never in an excerpt"; }'
finds wrong_uses 'does not say: return "never in an excerpt"'
put tests/compile_fail/byte.cpp '// expect: b needs more than a byte' '#include <mend/mend.hpp>' \
  '' "void wrong() { b('c'); one(); two(); three(); }"
finds wrong_uses 'says it in 4 errors and'
put tests/compile_fail/byte.cpp '#include <mend/mend.hpp>' "void wrong() { b('c'); }"
finds wrong_uses "the first line is not '// expect: <sentence>'"
rm -r "$tree/tests/compile_fail"
finds wrong_uses 'no cases'

put include/mend/core/a.hpp '#pragma once' 'struct lower {};'
finds tidy 'invalid case style for struct'

# The program, and a launcher that runs it once.
arguments="tests/face/loop.cpp $tree/tests/launcher"
launcher() { put tests/launcher '#!/bin/sh' "$1" && chmod +x "$tree/tests/launcher"; }
loop() {
  put tests/face/loop.cpp '#include <mend/mend.hpp>' '#include <cstdio>' \
    "int main(int argc, char**) { $1 }"
  launcher 'shift 2; exec "$@" worker'
}
loop 'return argc - argc;'
passes face
loop 'int argc = 0; return argc;'
finds face 'error'
loop 'return argc == 1 ? 3 : 0;'
finds face 'alone, built by g++: status 3'
loop 'return argc == 2 ? 4 : 0;'
finds face 'under mendrun -n 3, built by g++: status 4'
loop 'return std::printf("final %d\n", argc) > 100;'
finds face 'the final lines differ'

[ $failed = 0 ] || exit 1
echo "every check passes a tree in order and finds what is wrong in the others"
