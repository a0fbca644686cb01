#!/bin/sh
# `trireme train --max-restarts`, and under `trireme run --max-restarts`: a rank is killed in the middle, all start again, and the
# training ends with the weights of one that nothing disturbed. ctest: timeout=240
. "$SOURCE/tests/process/common"
cd "$work"

cat "$SOURCE"/include/trireme/*.h >text
options="--data text --layers 1 --heads 2 --dim 16 --context 16 --batch 4 --threads 1 --plain --steps 3000 --save-every 100"

# kill_one COMMAND…: kills its rank 1 when a checkpoint is there, and waits for its end. $again ranks are to start again.
again=all
kill_one() {
    : >err
    "$@" >out 2>err &
    job=$!
    tries=0
    until ls disturbed 2>/dev/null | grep -q '^checkpoint-'; do
        tries=$((tries + 1))
        [ $tries -lt 1200 ] || fail "never a checkpoint: $(cat err)"
        sleep 0.02
    done
    kill -9 "$("$TRIREME" why "$job" | sed -n 's/^ *rank 1 (pid \([0-9]*\)).*/\1/p')"
    end
    [ $code = 0 ] || fail "exit code $code: $(cat err)"
    grep -q 'rank 1 (pid [0-9]*) was killed by signal 9' err || fail "the first cause is not said"
    grep -q "$again ranks are started again, time 1 of 3" err || fail "the ranks did not start again: $(cat err)"
    [ "$again" != all ] || cmp -s disturbed/checkpoint-3000/model.safetensors quiet/checkpoint-3000/model.safetensors ||
        fail "other weights than undisturbed"
    [ "$(wc -l <disturbed/metrics.csv)" = "$(wc -l <quiet/metrics.csv)" ] || fail "other rows in metrics.csv"
    rm -r disturbed
}

# shellcheck disable=SC2086
"$TRIREME" train gpt $options --ranks 2 --out quiet >out 2>err || fail "undisturbed: $(cat err)"
# shellcheck disable=SC2086
kill_one "$TRIREME" train gpt $options --ranks 2 --max-restarts 3 --out disturbed
# shellcheck disable=SC2086
kill_one "$TRIREME" run -n 2 --max-restarts 3 "$TRIREME" train gpt $options --out disturbed

# One rank fewer goes on from the checkpoint; the global batch, and so the rows of the metrics, stay.
again='1 of 2'
# shellcheck disable=SC2086
kill_one "$TRIREME" train gpt $options --ranks 2 --max-restarts 3 --min-ranks 1 --out disturbed
# shellcheck disable=SC2016,SC2086
"$TRIREME" run -n 3 --max-restarts 1 --min-ranks 2 \
    sh -c '[ $TORCHELASTIC_RESTART_COUNT = 1 ] || { "$0" "$@" --stop-at 10; exit 1; }; exec "$0" "$@"' \
    "$TRIREME" train gpt $options --steps 20 --out shrunk >out 2>err || fail "shrunk: $(cat err)"
[ -d shrunk/checkpoint-20 ] && grep -q 'Going on from step 10' err || fail "fewer ranks did not go on: $(cat err)"
grep -q '2 of 3 ranks are started again' err || fail "the job did not shrink: $(cat err)"

# The checkpoint has the full path of a tokenizer that was named by another one.
"$TRIREME" tokenizer train --data text --vocab 300 --out own.json >out 2>err || fail "no vocabulary: $(cat err)"
# shellcheck disable=SC2016,SC2086
"$TRIREME" run --max-restarts 1 sh -c '[ $TORCHELASTIC_RESTART_COUNT = 1 ] || { "$0" "$@" --stop-at 10; exit 1; }; exec "$0" "$@"' \
    "$TRIREME" train gpt $options --steps 20 --tokenizer own.json --out tokens >out 2>err || fail "with a tokenizer: $(cat err)"
[ -d tokens/checkpoint-20 ] && grep -q 'Going on from step 10' err || fail "it did not go on with its tokenizer: $(cat err)"

# What another training has saved is not gone on from: the first start refuses it, and so do the others.
# shellcheck disable=SC2086
if "$TRIREME" run -n 2 --max-restarts 1 "$TRIREME" train gpt $options --steps 3100 --out quiet >out 2>err; then
    fail "it went on from another training"
fi
grep -q 'quiet holds a training at step 3000' err || fail "the refusal is not said: $(cat err)"
[ -d quiet/checkpoint-3000 ] && [ ! -e quiet/checkpoint-3100 ] || fail "another training's folder was used"
# shellcheck disable=SC2086
if "$TRIREME" run --max-restarts 1 "$TRIREME" train gpt $options >out 2>err; then fail "it took no --out"; fi
grep -q 'give --out FOLDER' err || fail "the missing folder is not said: $(cat err)"

# Before there is a checkpoint the training begins anew.
# shellcheck disable=SC2086
"$TRIREME" run -n 2 --max-restarts 1 sh -c '[ $RANK = 0 ] || [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 1; exec "$0" "$@"' \
    "$TRIREME" train gpt $options --steps 20 --out anew >out 2>err || fail "anew: $(cat err)"
[ -d anew/checkpoint-20 ] || fail "it did not train"
