#!/bin/sh
# tests/listings/refused.sh CC CXX: compiles the calls in refused.txt, in strict C11 with CC and in C++20 with CXX (which may be
# missing). Each that is there as wrong must be refused, with the words that go with it; each that is right must compile without a
# warning.
set -eu
cc=$1 cxx=${2:-} here=$(cd "$(dirname "$0")" && pwd) failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A function around calls, in which the names of refused.txt are declared.
program() {
    cat <<END
#include <trireme/trireme.h>
void calls(tr_tensor *x, tr_tensor *y, tr_tensor_list *list, tr_module *net, tr_dataset *set, tr_group *group, int n,
    float *floats);
void calls(tr_tensor *x, tr_tensor *y, tr_tensor_list *list, tr_module *net, tr_dataset *set, tr_group *group, int n,
    float *floats)
{
    (void)x, (void)y, (void)list, (void)net, (void)set, (void)group, (void)n, (void)floats;
    $1
}
END
}

compile() { # LANGUAGE FILE, quietly
    case $1 in
    c) "$cc" -std=c11 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I"$here/../../include" -x c "$2" ;;
    c++) "$cxx" -std=c++20 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I"$here/../../include" -x c++ "$2" ;;
    esac >"$work/said" 2>&1
}

grep -v '^#' "$here/refused.txt" | grep -v '^$' >"$work/calls"
for language in c ${cxx:+c++}; do
    right=
    while IFS='|' read -r wrong words good; do
        wrong=$(echo $wrong) words=$(echo $words) # without blanks around
        right="$right
    $good"
        program "$wrong" >"$work/wrong"
        if compile $language "$work/wrong"; then
            echo "$language: this compiles: $wrong" >&2
            failed=1
        elif ! grep -qie "$words" "$work/said"; then
            echo "$language: $wrong is refused without a word of \"$words\":" >&2
            head -n 20 "$work/said" >&2
            failed=1
        fi
    done <"$work/calls"
    program "$right" >"$work/right"
    if ! compile $language "$work/right"; then
        echo "$language: what is right does not compile:" >&2
        head -n 40 "$work/said" >&2
        failed=1
    fi
done
[ $failed -eq 0 ] || exit 1
echo "$(grep -c . "$work/calls") calls are refused as they should be"
