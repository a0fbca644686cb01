#!/bin/sh
# The example of DDP inside RPC: it learns what one process learns, which it checks itself.
. "$SOURCE/tests/process/common"
cd "$work"
for trainers in 1 2 3; do
    "$BUILD/examples/hybrid_rpc" $trainers >out 2>err || fail "hybrid_rpc $trainers: $(cat err)"
    grep -q "^$trainers trainers, 2 servers: weights differ from those of one process by \(0.0e+00\|.*e-0[4-9]\) in all" out ||
        fail "hybrid_rpc says: $(cat out)"
done
