#!/bin/sh
# The example programs of model, tensor and sharded parallelism, which check themselves against a twin, of a model with several
# outputs, and of two that train against each other.
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
for ranks in 1 3; do
    "$BUILD/examples/fully_shard" $ranks >out 2>err || fail "fully_shard $ranks: $(cat out err)"
    grep -q 'the same weights and moments as with DDP' out || fail "fully_shard $ranks says: $(cat out)"
done
for ranks in 1 2; do
    "$BUILD/examples/vae" $ranks >out 2>err || fail "vae $ranks: $(cat out err)"
    [ "$(head -c 15 samples.pgm)" = "$(printf 'P5\n224 224\n255')" ] && [ "$(wc -c <samples.pgm)" = 50191 ] || fail "vae writes no image"
    # Patterns, not one grey: black pixels and white ones.
    tail -c 50176 samples.pgm | od -An -v -tu1 -w1 | awk '{ dark += $1 < 30; light += $1 > 225 } END { exit !(dark > 3000 && light > 3000) }' ||
        fail "vae $ranks draws no patterns"
    rm samples.pgm
done
"$BUILD/examples/gan" >out 2>err || fail "gan: $(cat out err)"
grep -q 'like a pattern; [34] patterns are drawn' out || fail "gan says: $(cat out)"
[ "$(wc -c <samples.pgm)" = 50191 ] || fail "gan writes no image"
"$BUILD/examples/hybrid_gpt" >out 2>err || fail "hybrid_gpt: $(cat out err)"
grep -q '^validation loss .* on four ranks, .* on one process' out || fail "hybrid_gpt says: $(cat out)"
if [ -n "${TRIREME_TEST_DATA:-}" ]; then
    "$BUILD/examples/vae" 2 "$TRIREME_TEST_DATA/mnist" >out 2>err || fail "vae on MNIST: $(cat out err)"
    awk '/^epoch 5/ { loss = $NF } END { exit !(loss > 0 && loss < 140) }' out || fail "vae on MNIST says: $(cat out)"
fi
