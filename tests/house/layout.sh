#!/bin/sh
# layout.sh ROOT: the tree is as the design draws it. A header has its test, which includes it
# first; the top level holds what it may; no macro of foreign name, no path of a machine, no long
# line, no dead link.
. "$(dirname "$0")/files.sh"

found=$(
  files '*' | sed 's|/.*||' | sort -u | while read -r entry; do
    case "$entry" in
      CMakeLists.txt | CMakePresets.json | README.md | LICENSE | CHANGELOG.md | CONTRIBUTING.md) ;;
      include | tests | examples | bench | docs | cmake | .*) ;;
      *) echo "$entry: the top level has no place for it" ;;
    esac
  done

  files 'include/*.hpp' 'include/*.cuh' | while read -r header; do
    grep -q '^#pragma once' "$header" || echo "$header: no #pragma once"
    case "$header" in include/mend/*/*.hpp) ;; *) continue ;; esac
    case "$header" in */detail/* | */fwd.hpp) continue ;; esac
    name=${header#include/mend/}
    test=tests/${name%.hpp}.cpp
    if [ ! -f "$test" ]; then
      echo "$header: has no test $test"
    else
      first=$(grep -m 1 '^ *# *include' "$test")
      [ "$first" = "#include <mend/$name>" ] || echo "$test: the first include is not <mend/$name>"
    fi
  done

  # A test case in a header belongs to no source, so no ctest entry would run it.
  files 'tests/*.hpp' | xargs -r grep -nE '^ *(TEST_CASE|SCENARIO)' |
    sed 's/$/ (a test case in a header)/'

  code=$(files '*.hpp' '*.inl' '*.cuh' '*.cpp' '*.cu' '*.sh' '*.cmake' '*CMakeLists.txt' \
    CMakePresets.json .ci/run)
  {
    # the model's scripts are tables: one search a line
    LC_ALL=C.UTF-8 grep -nE '^.{101}' $code /dev/null |
      grep -v '^tests/model/' | sed 's/$/ (over 100 columns)/'
    grep -nE "[[:blank:]]$|$(printf '\r')|$(printf '\t')" $code /dev/null |
      sed 's/$/ (a tab, a carriage return or a blank at the end)/'
  }

  files 'include/*' | xargs grep -nE '^ *# *define ' /dev/null | grep -v 'define MEND_' |
    sed 's/$/ (a macro that does not start with MEND_)/'

  # Where this checkout and its user live is nobody's business, nor are homes in general.
  home='(^|[^A-Za-z0-9_.}>/-])/(home|root|Users)/[A-Za-z]'
  files '*' | grep -v '^tests/house/' | xargs -d '\n' grep -nIE "$home" /dev/null |
    sed 's/$/ (path of a machine)/'
  case "$root" in /*/*) files '*' | xargs -d '\n' grep -nIF -- "$root/" /dev/null ;; esac |
    sed 's/$/ (path of a machine)/'

  files '*.md' | while read -r page; do
    sed '/^```/,/^```/d; s/`[^`]*`//g' "$page" | grep -oE '\]\([^)# ]+' | sed 's/^](//' |
      grep -vE '^[a-z]+:' | while read -r link; do
      [ -e "$(dirname "$page")/$link" ] || echo "$page: links to $link, which is not there"
    done
  done
)
verdict "$found" "the tree is in order"
