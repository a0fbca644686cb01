#!/bin/sh
# Ranks of `trireme train` that were told different things: each is refused on every rank, with what differs, which ranks
# and both values, before anything is trained or written; and --allow-different.
# ctest: timeout=180
. "$SOURCE/tests/process/common"
cd "$work"
cat "$SOURCE"/include/trireme/*.h >text
tr e E <text >other # as long
for name in text other; do
    "$TRIREME" tokenizer train --data $name --vocab 300 --out $name.json >out 2>err || fail "no tokenizer of $name"
done
tiny="--data text --layers 1 --heads 2 --dim 16 --context 16 --batch 4 --steps 6 --lr 0.01 --min-lr 0 --warmup 0"
tiny="$tiny --threads 1 --plain --timeout 60"
export TRIREME tiny TRIREME_TEST="$$-$(date +%s%N)"

# train_each MODEL OPTIONS OPTIONS: rank 0 with the first ones, rank 1 with the others; the exit code comes in $code. Of an
# option that is given twice the second counts.
train_each() {
    code=0
    model=$1 own0=$2 own1=$3 "$TRIREME" run -n 2 sh -c \
        'if [ "$RANK" = 0 ]; then own=$own0; else own=$own1; fi; exec "$TRIREME" train $model $tiny $own --out run' \
        >out 2>err </dev/null || code=$?
}

# differs OPTIONS OPTIONS MESSAGE…: refused by both ranks, with these words.
differs() {
    train_each gpt "$1" "$2"
    case="$1 | $2"
    shift 2
    [ $code = 1 ] || fail "exit code $code instead of 1: $case"
    for message in "$@"; do
        for rank in 0 1; do
            LC_ALL=C grep -q "^\[$rank\] trireme train [a-z0-9]*: .*ranks differ: .*$message" err || fail "no \"$message\" of rank $rank: $case"
        done
    done
    [ -z "$(find run -type f 2>/dev/null)" ] || fail "something was written: $(find run -type f)"
    ! grep -lzs "^TRIREME_TEST=$TRIREME_TEST$" /proc/[0-9]*/environ >processes 2>/dev/null ||
        [ "$(grep -v -e "/$$/" -e /self/ processes | while read -r p; do
            case $(tr '\0' ' ' <"${p%environ}cmdline" 2>/dev/null) in *"trireme train"*) echo "$p" ;; esac
        done)" = "" ] || fail "a process is left: $case"
}

bytes=$(wc -c <text) sum='CRC-32C [0-9a-f]\{8\}'
differs "" "--data other" "data is $bytes bytes ([0-9]* to train on, $sum) on rank 0, $bytes bytes ([0-9]* to train on, $sum) on rank 1"
differs "--lr 0.01" "--lr 0.1" "lr is 0.01 on rank 0, 0.1 on rank 1"
differs "--min-lr 1e-3" "" "min_lr is 0.001 on rank 0, 0 on rank 1"
differs "--seed 7" "--seed 8" "seed is 7 on rank 0, 8 on rank 1"
differs "" "--optimizer lion" "optimizer is adamw on rank 0, lion on rank 1"
differs "--clip 1" "--clip 0.5" "clip is 1 on rank 0, 0.5 on rank 1"
differs "" "--weight-decay 0.2" "optimizer.weight_decay is 0.1 on rank 0, 0.2 on rank 1"
differs "" "--dtype bf16" "autocast is f32 on rank 0, bf16 on rank 1"
differs "--batch 4" "--batch 8" "global_batch is 4 on rank 0, 8 on rank 1"
differs "" "--warmup 2" "warmup_steps is 0 on rank 0, 2 on rank 1"
differs "--steps 6" "--steps 7" "steps is 6 on rank 0, 7 on rank 1"
differs "" "--dim 32" "model is gpt of [0-9]* elements in 16 tensors on rank 0, gpt of [0-9]* elements" \
    "model.wte.weight is f32 \[256, 16\] on rank 0, f32 \[256, 32\] on rank 1"
differs "" "--heads 1" "model.h.0.attn is attention (heads 2) on rank 0, attention (heads 1) on rank 1"
differs "" "--dropout 0.1" "model.drop is dropout (p 0) on rank 0, dropout (p 0.1) on rank 1"
differs "--context 16" "--context 8" "model.wpe.weight is f32 \[16, 16\] on rank 0, f32 \[8, 16\] on rank 1"
differs "--tokenizer text.json" "--tokenizer other.json" "tokenizer is 300 tokens ($sum) on rank 0, 300 tokens ($sum) on rank 1"
differs "" "--tokenizer text.json" "tokenizer is none on rank 0, 300 tokens ($sum) on rank 1"
differs "--eval-every 2" "--eval-every 3" "validate_every is 2 on rank 0, 3 on rank 1"
differs "--stop-at 2" "--stop-at 3" "stop_at is 2 on rank 0, 3 on rank 1"
differs "--allow-different lr" "" "allow_different is lr on rank 0, nothing on rank 1"

# More than three: the first ones, and that there are others.
differs "" "--lr 0.1 --seed 2 --clip 0 --warmup 1" "warmup_steps is .*; lr is .*; clip is [^;]*; …"

# What is meant to differ.
train_each gpt "--lr 0.01 --allow-different min-lr,lr --check-replicas 0" "--lr 0.1 --allow-different min-lr,lr --check-replicas 0"
[ $code = 0 ] && [ -f run/checkpoint-6/model.safetensors ] || fail "what is allowed is refused: $(cat err)"
rm -r run
train_each gpt "--allow-different data --micro-batch 1" "--data other --allow-different data --micro-batch 2"
[ $code = 0 ] || fail "other data is refused, though it is allowed: $(cat err)"

# Processors with other instructions round otherwise: rank 0 says so, once, and they train.
if [ "$(uname -m)" = x86_64 ]; then
    rm -r run
    code=0
    "$TRIREME" run -n 2 sh -c '[ "$RANK" = 0 ] || export ONEDNN_MAX_CPU_ISA=SSE41
        exec "$TRIREME" train gpt $tiny --out run' >out 2>err </dev/null || code=$?
    [ $code = 0 ] && [ "$(grep -c 'ranks differ' err)" = 1 ] && grep -q '^\[0\] .*kernels is .* on rank 0, .*sse41 on rank 1' err ||
        fail "other instructions: $(cat err)"
fi

# Alike: a checkpoint says by the same hash what it was trained with, also a resumed one; with a different one, it does not.
settings() { grep -o '"settings": "[0-9a-f]*"' "$1/manifest.json"; }
rm -r run
train_each gpt "--stop-at 3" "--stop-at 3"
train_each gpt --resume --resume
[ $code = 0 ] || fail "what is alike is refused: $(cat err)"
"$TRIREME" train gpt $tiny --out alone >out 2>err || fail "no training"
"$TRIREME" train gpt $tiny --lr 0.02 --out otherwise >out 2>err || fail "no training"
[ -n "$(settings run/checkpoint-3)" ] && [ "$(settings run/checkpoint-3)" = "$(settings run/checkpoint-6)" ] &&
    [ "$(settings run/checkpoint-3)" = "$(settings alone/checkpoint-6)" ] || fail "the same settings have another hash"
[ "$(settings alone/checkpoint-6)" != "$(settings otherwise/checkpoint-6)" ] || fail "another rate has the same hash"

# One rank goes on from a checkpoint, the other begins.
code=0
"$TRIREME" run -n 2 sh -c 'if [ "$RANK" = 0 ]; then own=--resume; else own=; rm -rf none; fi
    exec "$TRIREME" train gpt $tiny $own --steps 6 --out $([ "$RANK" = 0 ] && echo run || echo none)' >out 2>err </dev/null || code=$?
[ $code = 1 ] && [ "$(grep -c '^\[[01]\] .*resume is from a checkpoint on rank 0, not from a checkpoint on rank 1' err)" = 2 ] ||
    fail "one rank resumes alone: $(cat err)"

# A name that no setting has.
code=0
"$TRIREME" train gpt $tiny --allow-different lr,rate --out none >out 2>err || code=$?
[ $code = 2 ] && grep -q 'there is no setting "rate" that ranks compare: there are .*model, tokenizer, data, .*optimizer, .*lr, ' err ||
    fail "an unknown name: $(cat err)"

# Images in folders: the names, sizes and classes of the files, and what a function makes of them.
head='\211PNG\015\012\032\012\000\000\000\015IHDR\000\000\000\001\000\000\000\001\010\000\000\000\000:~\233U'
end='\000\000\000\000IEND\256B`\202'
mkdir -p images/bright images/dark
for i in 1 2 3 4 5 6; do
    printf "$head"'\000\000\000\012IDATx\332c\370\017\000\001\001\001\000\034\260\214\231'"$end" >images/bright/$i.png
    printf "$head"'\000\000\000\012IDATx\332c`\000\000\000\002\000\001\345\047\336\374'"$end" >images/dark/$i.png
done
cp -r images renamed && mv renamed/bright/1.png renamed/bright/7.png
cp -r images larger && printf ' ' >>larger/dark/2.png
tiny="--data images --batch 4 --steps 2 --threads 1 --plain --timeout 60"
rm -r run
differs_images() {
    train_each lenet "$1" "$2"
    [ $code = 1 ] && [ "$(grep -c "^\[[01]\] trireme train lenet: .*ranks differ: .*$3" err)" = 2 ] || fail "no \"$3\": $1 | $2"
}
samples="[0-9]* samples ($sum) on rank"
differs_images "" "--data renamed" "data is $samples 0, $samples 1"
differs_images "" "--data larger" "data is $samples 0, $samples 1"
differs_images "" "--validation 0" "validation is $samples 0, none on rank 1"
differs_images "" "--augment shift" "data.samples is $sum of samples .* on rank 0, $sum of samples .* on rank 1"
differs_images "" "--momentum 0.8" "optimizer.momentum is 0.9 on rank 0, 0.8 on rank 1"
differs_images "" "--on-bad skip" "on_bad is fail on rank 0, skip on rank 1"
cp -r images elsewhere
train_each lenet "" "--data elsewhere"
[ $code = 0 ] || fail "the same images in another folder are refused: $(cat err)"
