#!/bin/sh
# `trireme train gpt` on tokens of a tokenizer, and from weights that are there already.
# ctest: timeout=240
. "$SOURCE/tests/process/common"
cd "$work"
cat "$SOURCE"/include/trireme/*.h >text
"$TRIREME" tokenizer train --data text --vocab 400 --out own.json >out 2>err || fail "no vocabulary"
tiny="--data text --layers 1 --heads 2 --dim 16 --context 16 --batch 4 --threads 1 --plain --tokenizer $work/own.json"

train() { "$TRIREME" train gpt $tiny "$@" >out 2>err || fail "exit code $?: train gpt $*"; }
losses() { cut -d , -f 1,4 "$1/metrics.csv"; }

# ln 400 at first; a resumed run is as an unbroken one; two ranks learn the same.
train --steps 40 --lr 1e-2 --out whole
awk -F , 'NR == 2 { exit !($4 > 5.8 && $4 < 6.2) }' whole/metrics.csv || fail "the first loss is not ln 400"
grep -q ' tokens to train on' err || fail "it does not count tokens"
train --steps 40 --lr 1e-2 --out broken --stop-at 11
"$TRIREME" train gpt --resume --out broken --plain --threads 1 >out 2>err || fail "it does not go on"
losses whole >expected
losses broken | diff expected - >out || fail "a resumed run has other losses"
train --steps 40 --lr 1e-2 --out two --ranks 2
paste -d , whole/metrics.csv two/metrics.csv | awk -F , '
    NR > 1 { d = $4 - $12; if (d < 0) d = -d; if (d > 1e-3) exit 1 }' || fail "two ranks learn something else"
"$TRIREME" sample --from whole --prompt "static int" --tokens 20 >out 2>err || fail "no sample: exit code $?"
grep -q '^static int' out || fail "the prompt is not there"
if command -v script >/dev/null; then # a terminal, on which no control character acts
    script -qec "'$TRIREME' sample --from whole --tokens 1 --prompt '$(printf 'a\033[2Jb\302\233c\233d\303\251e\305\233f')'" /dev/null >out
    LC_ALL=C grep -q "$(printf 'a?\[2Jb\302?c?d\303\251e\305\233f')" out || fail "control characters reach the terminal: $(od -c out)"
fi

# From those weights the loss begins where it ended, on any number of ranks; weights of another shape are refused.
last=$(tail -n 1 whole/metrics.csv | cut -d , -f 4)
for n in 1 2; do
    train --steps 2 --init whole/checkpoint-40/model.safetensors --out next$n --ranks $n
    sed -n 2p next$n/metrics.csv | awk -F , -v last="$last" '{ exit !($4 < last + 0.5 && $4 < 5.5) }' ||
        fail "it does not begin with the weights: $(sed -n 2p next$n/metrics.csv), $last before"
    grep -q '^Weights from whole.*: 16 of 16 loaded$' err || fail "it does not say what was loaded: $(cat err)"
done
code=0
train2() { "$TRIREME" train gpt $tiny "$@" >out 2>err || code=$?; }
train2 --steps 2 --dim 32 --init whole/checkpoint-40/model.safetensors --out x --ranks 2
[ $code = 1 ] && [ "$(grep -c '^trireme' err)" = 1 ] && grep -q -e '--init: .*of another shape' err || fail "weights of another shape"
code=0
# A file's names are shown without what acts on a terminal, in messages and in what is said of the weights.
header='{"\u001b]0;mine\u0007":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
{ printf "\\$(printf %o ${#header})\0\0\0\0\0\0\0"; printf %s "$header"; } >names.safetensors
train2 --steps 2 --init names.safetensors --out x
[ $code = 1 ] && grep -qF '?]0;mine?' err && ! grep -q "$(printf '\033')" err || fail "escape sequences: $(od -c err)"
code=0
train2 --steps 2 --init nowhere.safetensors --out x
[ $code = 1 ] && grep -q -e '--init: .*nowhere.safetensors' err || fail "no weights at all"
[ ! -e x ] || fail "a folder was made for nothing"
code=0
train2 --steps 2 --tokenizer "$SOURCE/tests/recorded/tokenizers/bert/vocab.txt" --out x
[ $code = 1 ] && grep -q -e '--tokenizer .*vocab.txt: its word pieces' err && [ ! -e x ] || fail "a GPT on word pieces"
