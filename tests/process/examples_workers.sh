#!/bin/sh
# The examples whose layers are on different workers: both ways of updating learn what one process learns, and they do learn.
. "$SOURCE/tests/process/common"
cd "$work"
for program in resnet_on_workers transformer_on_workers; do
    "$BUILD/examples/$program" >out 2>err || fail "$program: $(cat err)"
    grep -q '^loss in one process 0\.[0-6].*where they are \(0.0e+00\|.*e-0[4-9]\), by the master \(0.0e+00\|.*e-0[4-9]\)$' out ||
        fail "$program says: $(cat out)"
done
