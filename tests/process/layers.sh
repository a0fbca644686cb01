#!/bin/sh
# scripts/check-layers must catch what it is there for, name the line, and pass a tree that keeps the rules.
. "$SOURCE/tests/process/common"
shown=output
mkdir -p "$work/scripts" "$work/src/base" "$work/src/ops" "$work/models"
cp "$SOURCE/scripts/check-layers" "$work/scripts/"
cp -r "$SOURCE/include" "$work/"
check() { "$work/scripts/check-layers" >"$work/output" 2>&1; }

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
refuses tests/listings/bad.cc '"net/store/store.h"'
