#!/bin/sh
# Ranks that are processes, each with a GPU of the emulator, over the double of NCCL: the examples learn what they learn over the
# native backend on the CPU. Run with seeds, CUDA_EMULATOR.
# ctest: timeout=200
. "$SOURCE/tests/process/common"
cd "$work"
TRIREME_PLUGINS=$BUILD/tests/cuda/libtrireme-cuda.so
LD_LIBRARY_PATH=$BUILD/tests/cuda/nccl${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
CUDA_EMULATOR="${CUDA_EMULATOR:-} devices=4"
export TRIREME_PLUGINS LD_LIBRARY_PATH CUDA_EMULATOR TRIREME_CPU_DEVICES=2
[ -e "$TRIREME_PLUGINS" ] || { echo "this build has no emulated CUDA plug-in"; exit 77; }
shown="cpu.out cuda.out err"

# both PATTERN NAME ARGUMENT…: an example on the CPU and on cuda over NCCL has the same numbers behind the pattern, to 1e-4
both() {
    pattern=$1 name=$2
    shift 2
    "$BUILD/examples/$name" "$@" >cpu.out 2>err || fail "$name ends with $?"
    "$BUILD/examples/$name" --device cuda --backend nccl "$@" >cuda.out 2>err || fail "$name on cuda ends with $?"
    alike
}
alike() {
    for device in cpu cuda; do sed -n "s/.*$pattern[[:space:]]*\([0-9.]*\).*/\1/p" $device.out >$device.numbers; done
    paste cpu.numbers cuda.numbers | awk '{ bad += NF != 2 || ($1 - $2) ^ 2 > (1e-4 * $1) ^ 2 } END { exit bad || !NR }' ||
        fail "$name learns otherwise over NCCL"
}

both 'sizes:' spawn_ddp --samples 80 2
both loss hybrid_parallel --samples 36
both loss sharded_optimizer --steps 3 3
both loss fully_shard --steps 3 3
both loss tensor_parallel --steps 4
both loss vae --samples 64 2
both workers rpc_model_split --steps 4
"$BUILD/examples/hybrid_rpc" --device cuda --backend nccl --steps 3 2 >out 2>err || fail "hybrid_rpc: $(cat err)" # beside one process

# The commands have the option, too.
yes 'the quick brown fox jumps over the lazy dog' | head -n 100 >text
for backend in native nccl; do
    "$TRIREME" train gpt --data text --layers 1 --heads 2 --dim 16 --context 16 --batch 4 --steps 2 --plain --out over-$backend \
        --json $backend.out --device cuda --backend $backend --ranks 2 >out 2>err || fail "train --backend $backend ends with $?"
    grep -q "\"backend\":[[:space:]]*\"$backend\"" $backend.out || fail "its report names no backend: $(cat $backend.out)"
done
mv native.out cpu.out
mv nccl.out cuda.out
name="trireme train" pattern='"final_loss":'
alike
"$TRIREME" bench model --model lenet --batch 1 --steps 1 --warmup 0 --device cuda --backend nccl --ranks 2 --threads 1 --json r.json \
    >out 2>err || fail "bench model --backend nccl ends with $?"
grep -q 'lenet/cuda/nccl' r.json || fail "its report says: $(cat r.json)"
for command in "train gpt --data text" "bench model"; do
    # shellcheck disable=SC2086
    ! "$TRIREME" $command --backend nccl >out 2>err || fail "$command: NCCL on the CPU"
    grep -q -e '--backend nccl: NCCL is for ranks on GPUs: add --device cuda' err || fail "$command: $(cat err)"
done

# By hand the ranks meet at tcp://localhost:23456; in a network of their own, where that port is free.
if unshare -rn true 2>/dev/null; then
    "$BUILD/examples/hybrid_parallel" --samples 36 >cpu.out 2>err || fail "hybrid_parallel: $(cat err)"
    name=hybrid_parallel pattern=loss
    unshare -rn sh -c "ip link set lo up
        '$BUILD/examples/hybrid_parallel' --device cuda --backend nccl --samples 36 0 2 tcp://localhost:23456 &
        '$BUILD/examples/hybrid_parallel' --device cuda --backend nccl --samples 36 1 2 && wait \$!" >cuda.out 2>err ||
        fail "ranks by hand: $(cat err)"
    alike
fi

! CUDA_EMULATOR="$CUDA_EMULATOR devices=1" "$BUILD/examples/spawn_ddp" --device cuda --backend nccl --samples 80 2 2>err || fail "one GPU suffices"
grep -q 'each rank needs a GPU of its own: ranks 0 and 1 on host .* both have GPU 0; start no more ranks there' err ||
    fail "one GPU: $(cat err)"
