#!/bin/sh
# `trireme train bert` on bytes and on word pieces: a resumed run is as an unbroken one, any number of ranks learns the same,
# and weights under Hugging Face's names, early ones too, are what training begins with.
# ctest: timeout=240
. "$SOURCE/tests/process/common"
cd "$work"
cat "$SOURCE"/include/trireme/*.h >text
pieces="$SOURCE/tests/recorded/tokenizers/bert/vocab.txt"
tiny="--data text --layers 1 --heads 2 --dim 16 --batch 8 --threads 1 --plain"

train() { "$TRIREME" train bert $tiny "$@" >out 2>err || fail "exit code $?: train bert $*"; }
refuses() { # CODE MESSAGE ARGUMENT…
    expected=$1 message=$2 code=0
    shift 2
    "$TRIREME" train bert $tiny "$@" --out x >out 2>err || code=$?
    [ $code = "$expected" ] && grep -qF -e "$message" err || fail "exit code $code and no \"$message\": train bert $*"
}
losses() { cut -d , -f 1,4,5 "$1/metrics.csv"; }
first_loss() { sed -n 2p "$1/metrics.csv" | cut -d , -f 4; }
near() { awk -v a="$1" -v b="$2" -v e="$3" 'BEGIN { d = a - b; exit !(d <= e && -d <= e) }'; }

# Bytes: ln 259 at first, then less; a resumed run is as an unbroken one; two ranks and small pieces learn the same.
train --context 24 --steps 60 --lr 1e-2 --eval-every 30 --out whole --json whole.json
near "$(first_loss whole)" 5.557 0.2 || fail "the first loss is not ln 259: $(first_loss whole)"
[ "$(tail -n 1 whole/metrics.csv | awk -F , '{ print ($5 < 4) }')" = 1 ] || fail "it does not learn"
grep -q '"parameters":[[:space:]]*8435,' whole.json || fail "another number of parameters: $(cat whole.json)"
train --context 24 --steps 60 --lr 1e-2 --eval-every 30 --out broken --stop-at 41
"$TRIREME" train bert --resume --out broken --plain --threads 1 >out 2>err || fail "it does not go on"
losses whole >expected
losses broken | diff expected - >out || fail "a resumed run has other losses"
cmp -s whole/checkpoint-60/model.safetensors broken/checkpoint-60/model.safetensors || fail "and other weights"
train --context 24 --steps 60 --lr 1e-2 --eval-every 30 --out two --ranks 2 --micro-batch 3
paste -d , whole/metrics.csv two/metrics.csv | awk -F , '
    NR > 1 { d = $4 - $12; if (d < 0) d = -d; if (d > 1e-3) exit 1 }' || fail "two ranks learn something else"

# The weights as the first files have them, with other parts, and places for longer windows.
LC_ALL=C sed -e 's/LayerNorm\.weight":/LayerNorm.gamma": /g' -e 's/LayerNorm\.bias"/LayerNorm.beta"/g' \
    whole/checkpoint-60/model.safetensors >early.safetensors
! cmp -s early.safetensors whole/checkpoint-60/model.safetensors || fail "no early names"
train --context 16 --steps 2 --init early.safetensors --out next
[ "$(first_loss next | cut -c 1)" -lt 5 ] || fail "it does not begin with the weights: $(first_loss next)"
refuses 1 "--init: " --context 16 --init early.safetensors --tokenizer "$pieces"
refuses 1 "of another shape" --context 32 --init early.safetensors

# Word pieces: ln 700 at first.
train --context 16 --steps 3 --tokenizer "$pieces" --out pieces
near "$(first_loss pieces)" 6.551 0.2 || fail "the first loss is not ln 700: $(first_loss pieces)"
grep -q ' tokens to train on' err || fail "it does not count tokens"
refuses 1 "has no [CLS]" --tokenizer "$SOURCE/tests/recorded/tokenizers/gpt2.json"
refuses 2 "--context" --context 2
printf 'short' >short
refuses 1 "short is too short: its 5 bytes leave 5 for training, and a context of 24 takes at least 22" --context 24 --data short

# 25 bytes leave 23 for training, enough for the 22 between a window's first and last token.
printf 'a text of twenty-five byt' >least
train --context 24 --steps 2 --data least --out least-run
