#!/bin/sh
# `--device cuda` on the emulated cuda:0 and cuda:1: the examples and `trireme train` learn what they learn on the CPU, and
# `trireme bench model` measures there. A few samples or steps each: kernels that run on the CPU take their time. Run with seeds,
# CUDA_EMULATOR.
# ctest: timeout=600
. "$SOURCE/tests/process/common"
cd "$work"
TRIREME_PLUGINS=$BUILD/tests/cuda/libtrireme-cuda.so
export TRIREME_PLUGINS TRIREME_CPU_DEVICES=2
[ -e "$TRIREME_PLUGINS" ] || { echo "this build has no emulated CUDA plug-in"; exit 77; }
shown="cpu.out cuda.out err"

# both NAME ARGUMENT…: an example on the CPU and on cuda, whose words are then in cpu.out and cuda.out
both() {
    name=$1
    shift
    for device in cpu cuda; do
        "$BUILD/examples/$name" --device $device "$@" >$device.out 2>err || fail "$name on $device ends with $?"
    done
}
# alike PATTERN: both have the same lines, to 1e-4 of each number that follows the pattern
alike() {
    sed -n "s/.*$1[[:space:]]*\([0-9.]*\).*/\1/p" cpu.out >cpu.numbers
    sed -n "s/.*$1[[:space:]]*\([0-9.]*\).*/\1/p" cuda.out >cuda.numbers
    paste cpu.numbers cuda.numbers | awk '{ bad += NF != 2 || ($1 - $2) ^ 2 > (1e-4 * $1) ^ 2 } END { exit bad || !NR }' ||
        fail "$name learns otherwise on cuda"
}

both data_parallel --samples 16
grep -q '^2 devices' cuda.out || fail "it ran on other devices: $(head -n 1 cuda.out)"
alike loss
both hybrid_parallel --samples 36
alike loss
both spawn_ddp --samples 80 2
alike 'sizes:'
both model_split --steps 6 # this and what follows are held against their twins on one device by themselves, too
alike 'on one device'
both tensor_parallel --steps 4
alike loss
both sharded_optimizer --steps 3 2
alike loss
both fully_shard --steps 3 2
alike loss
both vae --samples 64 2
alike loss
both rpc_model_split --steps 4
alike workers
both data_parallel_rpc --steps 3
alike loss
both hybrid_rpc --steps 3 2
both launch 2
alike 'end:'
both gan --steps 1 2
alike generator
both hybrid_gpt --steps 2 # it saves into a folder
alike 'four ranks,'
rm -r hybrid_gpt.run
name=cluster # it looks for the command on the machine
mkdir state
for device in cpu cuda; do
    XDG_STATE_HOME=$work/state PATH=$(dirname "$TRIREME"):$PATH "$BUILD/examples/cluster" --device $device --samples 120 >$device.out \
        2>err || fail "cluster on $device ends with $?"
    sort $device.out >sorted && mv sorted $device.out
done
alike loss
both parameter_server 1 60 # these, too, hold the workers' weights against one process by themselves
alike 'samples:'
both actor_learner 1 40
both rnn_remote_embedding --steps 3
both rpc_pipeline 2
alike loss
both transformer_on_workers --steps 3
alike process
both resnet_on_workers --steps 1
alike process
# None is left out.
for source in "$SOURCE"/examples/*.c; do
    grep -q "^both $(basename "$source" .c)\|examples/$(basename "$source" .c)\"" "$0" || fail "$source is not run here"
done

# A training of two ranks, and one that goes on on another device.
yes 'the quick brown fox jumps over the lazy dog' | head -n 100 >text
name="trireme train"
train() {
    "$TRIREME" train gpt --data text --layers 1 --heads 2 --dim 16 --context 16 --batch 4 --steps 6 --save-every 3 --eval-every 3 \
        --plain "$@" >out 2>err || fail "train $* ends with $?"
}
train --out on-cpu --json cpu.out
train --out on-cuda --json cuda.out --device cuda --ranks 2
grep -q '^2 ranks on cuda' err || fail "it does not say where it ran"
alike '"final_loss":'
alike '"validation_loss":'
rm -r on-cuda/checkpoint-6
train --resume --out on-cuda --json cuda.out --device cuda:1
alike '"final_loss":'

# On a device a step alone would time the host's first op and the wait, also of a model that is not short.
"$TRIREME" bench model --model nano --batch 1 --seq 1 --steps 1 --warmup 0 --device cuda:1 --json cuda.out >out 2>err ||
    fail "bench model ends with $?"
grep -q "1 times 10 steps in a row" out && grep -q "^device's memory  *[0-9]*\.[0-9] MB" out || fail "bench model says: $(cat out)"
"$TRIREME" bench model --model mlp --batch 1 --steps 1 --warmup 0 --device cuda --capture --json captured.out >out 2>err ||
    fail "bench model --capture ends with $?"
grep -q '^captured  *49 steps launched as a graph, 1 op by op' out || fail "bench model --capture says: $(cat out)"
! "$TRIREME" train gpt --data text --device cuda:7 2>err || fail "there is a cuda:7"
grep -q 'train gpt: --device: there is no device cuda:7: this process has cuda:0 to cuda:1' err || fail "cuda:7"
! CUDA_EMULATOR="${CUDA_EMULATOR:-} memory_mb=2" "$TRIREME" train gpt --data text --layers 2 --heads 2 --dim 64 --batch 16 --device cuda --out small \
    >out 2>err || fail "2 MB suffice"
grep -q 'gpt: .*: no memory for [0-9]* bytes on cuda:0: tensors hold [0-9]*, .* a smaller batch takes less' err || fail "2 MB"
! "$BUILD/examples/spawn_ddp" --device cuda:2 2 2>err || fail "there is a cuda:2"
grep -q 'there is no device cuda:2' err || fail "cuda:2"
