#!/bin/sh
# The example programs of model, tensor and sharded parallelism: each checks itself against its twin.
. "$SOURCE/tests/process/common"
cd "$work"

"$BUILD/examples/model_split" >out 2>err || fail "model_split: $(cat out err)"
grep -q '^weights differ' out || fail "model_split says: $(cat out)"
"$BUILD/examples/tensor_parallel" >out 2>err || fail "tensor_parallel: $(cat out err)"
grep -q 'at the end' out || fail "tensor_parallel says: $(cat out)"
for ranks in 1 4; do
    "$BUILD/examples/sharded_optimizer" $ranks >out 2>err || fail "sharded_optimizer $ranks: $(cat out err)"
    grep -q 'the same weights as without' out || fail "sharded_optimizer $ranks says: $(cat out)"
done
