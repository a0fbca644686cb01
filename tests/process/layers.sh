#!/bin/sh
# scripts/check-layers must catch what it is there for, name the line, and pass a tree that keeps the rules: layers, circles
# inside a folder, and symbols of what was compiled.
. "$SOURCE/tests/process/common"
shown=output
mkdir -p "$work/scripts" "$work/src/base" "$work/src/ops" "$work/models"
cp "$SOURCE/scripts/check-layers" "$work/scripts/"
cp -r "$SOURCE/include" "$work/"
check() { "$work/scripts/check-layers" "$@" >"$work/output" 2>&1; }

printf '#include "tensor/tensor.h"\n#include <trireme/ops.h>\n#include <stdio.h>\n' >"$work/src/ops/good.c"
printf '#include <trireme/trireme.h>\n' >"$work/models/good.c"
check || fail "a tree that keeps the rules was refused"

refuses() { # FILE INCLUDE
    mkdir -p "$(dirname "$work/$1")"
    printf '\n#include %s\n' "$2" >"$work/$1"
    ! check || fail "$1 was let include $2"
    grep -q "^$1:2: " "$work/output" || fail "$1:2 is not named"
    rm "$work/$1"
}
refuses src/base/bad.c '"tensor/tensor.h"'
refuses src/base/bad.c '<trireme/comm.h>'
refuses src/ops/cpu/bad.h '"autograd/engine.h"'
refuses src/ops/bad.c '"family.h"'
refuses src/strange/bad.c '"base/object.h"'
refuses models/bad.c '"base/object.h"'
refuses examples/bad.c '"tensor/tensor.h"'
refuses tools/bad.c '"comm/group/group.h"'
refuses models/bad.c '<trireme/tools.h>'
refuses src/train/bad.c '<trireme/tools.h>'
refuses tests/listings/bad.cc '"net/store/store.h"'

# Headers and folders in a circle. One folder may include another that does not include it.
mkdir -p "$work/src/ops/cpu"
printf '#include "ops/op.h"\n' >"$work/src/ops/cpu/gemm.c"
check || fail "a folder was not let include the one above it in the tree"
printf '#include "ops/cpu/gemm.h"\n' >"$work/src/ops/family.c"
! check || fail "two folders were let include each other"
grep -q 'ops -> ops/cpu at src/ops/family.c:1' "$work/output" && grep -q 'ops/cpu -> ops at src/ops/cpu/gemm.c:1' "$work/output" ||
    fail "the circle of folders is not shown"
rm "$work/src/ops/family.c"

for pair in a:b b:c c:a; do printf '#include "ops/%s.h"\n' "${pair#*:}" >"$work/src/ops/${pair%:*}.h"; done
! check || fail "three headers were let include each other"
grep -q 'ops/c.h -> ops/a.h at src/ops/c.h:1' "$work/output" || fail "the circle of headers is not shown"
rm "$work"/src/ops/[abc].h

# A declaration of one's own instead of an include. An object that is older than its source says nothing.
compile() { "$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$BUILD/CMakeCache.txt")" -c "$work/src/$1.c" -o "$work/built/src/$1.c.o"; }
mkdir -p "$work/built/src/base" "$work/built/src/ops"
echo 'void tr__above(void) {}' >"$work/src/ops/above.c"
echo 'void tr__above(void); void tr__below(void); void tr__below(void) { tr__above(); }' >"$work/src/base/below.c"
compile ops/above
compile base/below
check || fail "objects were looked at without being asked for"
! check "$work/built" || fail "base was let call a function of ops"
grep -q '^src/base/below.c: base may not use tr__above of ops' "$work/output" || fail "the symbol is not named"
touch -d '1 hour' "$work/src/base/below.c"
check "$work/built" || fail "an object that is out of date was looked at"
echo 'void tr__below(void); void tr__above(void) { tr__below(); }' >"$work/src/ops/above.c"
echo 'void tr__below(void) {}' >"$work/src/base/below.c"
compile ops/above
compile base/below
check "$work/built" || fail "ops was not let call a function of base"
