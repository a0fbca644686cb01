#!/bin/sh
# `trireme train` by another optimizer, under bf16 autocast, with activations that are computed again, and with updates in
# backward.
# ctest: timeout=240
. "$SOURCE/tests/process/common"
cd "$work"

cat "$SOURCE"/include/trireme/*.h >text
tiny="--data text --layers 2 --heads 2 --dim 16 --context 16 --batch 4 --threads 1 --plain"
train() { "$TRIREME" train gpt "$@" >out 2>err || fail "exit code $?: train gpt $*: $(cat err)"; }
refuses() { # CODE MESSAGE ARGUMENT…
    want=$1 message=$2 code=0
    shift 2
    "$TRIREME" train "$@" >out 2>err </dev/null || code=$?
    [ $code = "$want" ] || fail "exit code $code instead of $want: train $*"
    grep -qF -e "$message" err || fail "no \"$message\": train $*: $(cat err)"
}
losses() { cut -d , -f 1,4 "$1/metrics.csv"; }

# Recomputed activations are the same ones; those of bf16 differ in their third digit.
train $tiny --steps 8 --out kept
train $tiny --steps 8 --recompute --ranks 2 --out shared
train $tiny --steps 8 --recompute --out again
losses kept >expected
losses again | diff expected - >out || fail "recompute changes the losses: $(cat out)"
train $tiny --steps 8 --dtype bf16 --out low
for other in "shared 0 1e-4" "low 1e-6 0.05"; do
    set -- $other
    losses $1 | paste -d , expected - | awk -F , -v least=$2 -v most=$3 '
        NR > 1 { d = $2 - $4; if (d < 0) d = -d; if (d > worst) worst = d; n++ }
        END { if (n != 8 || worst < least || worst > most) { print n " rows, differing by " worst; exit 1 } }' >out ||
        fail "$1: $(cat out)"
done

# A resumed run has the optimizer, its momentum, the dtype and the rate that it began with, on two ranks as well.
train $tiny --steps 12 --optimizer sgd --lr 0.3 --momentum 0.8 --dtype bf16 --out whole
train $tiny --steps 12 --optimizer sgd --lr 0.3 --momentum 0.8 --dtype bf16 --stop-at 5 --out broken
train --resume --plain --threads 1 --out broken
losses whole >expected
losses broken | diff expected - >out || fail "a resumed run has other losses: $(cat out)"
train $tiny --steps 12 --optimizer lion --ranks 2 --stop-at 3 --out lion
train --resume --plain --threads 1 --ranks 2 --out lion
awk -F , 'NR > 1 { n++; if ($3 > most) most = $3 } END { exit !(n == 12 && most <= 1e-4) }' lion/metrics.csv ||
    fail "not twelve steps at Lion's rate: $(cut -d , -f 3 lion/metrics.csv)"

# The state in bf16 is half of it, in the usual optimizer, which stays what it is but for that; a resumed run has it, too.
train $tiny --steps 12 --out f32
train $tiny --steps 12 --bf16-state --out whole16
train $tiny --steps 12 --bf16-state --stop-at 5 --out broken16
train --resume --plain --threads 1 --out broken16
losses whole16 >expected
losses broken16 | diff expected - >out || fail "a resumed run with its state in bf16 has other losses: $(cat out)"
losses f32 >f32.csv
! cmp -s f32.csv expected || fail "a state in bf16 changes nothing"
paste -d , f32.csv expected | awk -F , 'NR > 1 { n++; d = $2 - $4; if (d < 0) d = -d; if (d > 0.01) far = 1 } END { exit far || n != 12 }' ||
    fail "a state in bf16 learns otherwise: $(paste f32.csv expected)"
refuses 2 "--bf16-state: lamb keeps its state in f32: take sgd, adam, adamw or lion" gpt $tiny --optimizer lamb --bf16-state --out b

# Updates in backward are those after it, which a norm that nothing exceeds asks for, also where a run goes on elsewhere, and
# with blocks that are computed again.
train $tiny --steps 8 --clip 1e9 --out after
train $tiny --steps 8 --clip 0 --step-in-backward --recompute --stop-at 5 --out in
train --resume --plain --threads 1 --out in
train $tiny --steps 8 --clip 0 --out default
losses after >expected
losses in | diff expected - >out || fail "steps in backward change the losses: $(cat out)"
losses default | diff expected - >out || fail "steps without clipping change the losses: $(cat out)"
refuses 2 "--step-in-backward: the norm of all gradients is known when they have been used: give --clip 0" gpt $tiny --step-in-backward
train $tiny --steps 8 --clip 1e9 --ranks 2 --out after2
train $tiny --steps 8 --clip 0 --ranks 2 --step-in-backward --out in2
train $tiny --steps 8 --clip 0 --ranks 2 --out default2
losses after2 >expected
losses default2 | diff expected - >out || fail "two ranks without clipping change the losses: $(cat out)"
losses in2 | diff expected - >out || fail "steps in backward on two ranks change the losses: $(cat out)"
refuses 2 "a spike is known when gradients have been used: leave out --stop-on-spike" gpt $tiny --clip 0 --step-in-backward --stop-on-spike
refuses 1 "cannot be added up: a micro_batch of 4, the whole batch, not 2" gpt $tiny --clip 0 --step-in-backward --micro-batch 2 --out m

refuses 2 "--momentum: adamw has none to set" gpt $tiny --momentum 0.5 --out x
refuses 2 "--optimizer takes one of sgd, adam, adamw, rmsprop, adagrad, lion, lamb, lars, not \"adamax\"" gpt $tiny --optimizer adamax
refuses 2 "--dtype takes one of f32, bf16, not \"f8\"" gpt $tiny --dtype f8
refuses 1 "was started with --optimizer lion: leave --optimizer out" gpt --resume --out lion --optimizer sgd
refuses 1 "was started with --dtype bf16: leave --dtype out" gpt --resume --out whole --dtype f32
refuses 2 "--recompute: lenet has no blocks" lenet --data text --recompute --out x
