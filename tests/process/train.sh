#!/bin/sh
# `trireme train gpt` and `sample` seen from outside: what they write, that a resumed run is as an unbroken one, that any
# number of ranks learns the same, that ^C saves, and that a killed rank ends the job.
# ctest: timeout=240
. "$SOURCE/tests/process/common"
cd "$work"

# A text, and a model so small that a step takes a millisecond.
cat "$SOURCE"/include/trireme/*.h >text
tiny="--data text --layers 1 --heads 2 --dim 16 --context 16 --batch 4 --threads 1 --plain"

train() { "$TRIREME" train gpt $tiny "$@" >out 2>err || fail "exit code $?: train gpt $*"; }
start() {
    : >err
    "$TRIREME" train gpt $tiny "$@" >out 2>err &
    job=$!
}
wait_for() { # PATTERN in err
    tries=0
    until grep -q "$1" err; do
        tries=$((tries + 1))
        [ $tries -lt 1200 ] || fail "no line with $1"
        sleep 0.05
    done
}
number() { grep -o "\"$1\":[^,}]*" "$2" | head -n 1 | sed 's/.*:[[:space:]]*//'; } # KEY FILE
close_to() { awk -v a="$1" -v b="$2" -v e="$3" 'BEGIN { d = a - b; exit !(d <= e && -d <= e) }'; }
# The metrics that do not depend on time.
results() { cut -d , -f 1-5,7 "$1/metrics.csv"; }

# What is written: the results, with every key; the metrics; the chart; the newest two checkpoints.
train --steps 20 --save-every 5 --eval-every 10 --out whole --json whole.json
for key in initial_loss final_loss validation_loss tokens_per_s step_ms_median peak_rss_mb peak_rss_mb_sum ranks \
    parameters steps threads seconds startup_ms batch context; do
    case $(number $key whole.json) in
        [0-9]*) ;;
        *) fail "no number $key in the results: $(cat whole.json)" ;;
    esac
done
documented whole.json 'train gpt'
[ "$(number ranks whole.json)" = 1 ] && [ "$(number steps whole.json)" = 20 ] || fail "wrong numbers: $(cat whole.json)"
close_to "$(number initial_loss whole.json)" 5.545 0.2 || fail "the first loss is not ln 256"
close_to "$(number final_loss whole.json)" "$(tail -n 1 whole/metrics.csv | cut -d , -f 4)" 1e-6 || fail "wrong last loss"
[ "$(wc -l <whole/metrics.csv)" = 21 ] || fail "not a row for each step"
[ "$(ls whole | tr '\n' ' ')" = "checkpoint-15 checkpoint-20 loss.svg metrics.csv " ] || fail "wrong files: $(ls whole)"
grep -q '^</svg>' whole/loss.svg || fail "the chart is not whole"
grep -q 'validation loss' out || fail "no chart in the output"

# More checkpoints are kept when asked to, also by a resumed run, which is not asked again; and the best one: at a rate that
# rises until it ruins the model that is an early one.
train --steps 20 --save-every 5 --eval-every 10 --out kept --keep 3 --stop-at 15
train --resume --out kept --ranks 2
[ "$(ls kept | tr '\n' ' ')" = "checkpoint-10 checkpoint-15 checkpoint-20 loss.svg metrics.csv " ] || fail "wrong files: $(ls kept)"
train --steps 24 --save-every 4 --eval-every 4 --out best --keep 1 --keep-best --stop-at 12 --lr 3 --min-lr 3 --warmup 24
train --resume --out best --ranks 2
best=$(awk -F , 'NR > 1 && $5 != "" && (least == "" || $5 < least) { least = $5; step = $1 } END { print step }' best/metrics.csv)
[ "$best" -lt 24 ] || fail "the last step is the best: $(cat best/metrics.csv)"
[ "$(ls -d best/checkpoint-* | tr '\n' ' ')" = "$(printf '%s\n' 24 "$best" | sort | sed 's:^:best/checkpoint-:' | tr '\n' ' ')" ] ||
    fail "the best, $best, is not kept: $(ls best)"
code=0
"$TRIREME" train gpt $tiny --steps 20 --save-every 3 --eval-every 7 --keep-best --out never >out 2>err || code=$?
[ $code = 2 ] && grep -q -e '--keep-best: validations every 7 steps and checkpoints every 3 never' err || fail "a best that never is"

# Under another launcher every rank writes its profile into --out, which it makes where nobody else does.
code=0
"$TRIREME" run -n 2 "$TRIREME" train gpt $tiny --steps 4 --profile 1 >out 2>err || code=$?
[ $code = 1 ] && grep -q -e '--profile: give --out FOLDER, which every rank writes into' err || fail "a profile into nothing"
! ls -d gpt* >/dev/null 2>&1 || fail "a folder was made for nothing"
"$TRIREME" run -n 2 "$TRIREME" train gpt $tiny --steps 4 --profile 1 --out profiled/deep >out 2>err || fail "no profile"
[ -s profiled/deep/profile-rank0.txt ] && [ -s profiled/deep/profile-rank1.txt ] || fail "no profiles: $(ls profiled/deep)"
"$TRIREME" run -n 2 sh -c 'cd "$(mktemp -d other-XXXXXX)" && exec "$@"' sh \
    "$TRIREME" train gpt $tiny --data "$work/text" --steps 4 --profile 1 --out apart >out 2>err || fail "no profile elsewhere"
[ "$(ls other-*/apart/profile-rank*.txt | wc -l)" = 2 ] || fail "a rank has no profile: $(ls other-*/apart)"

# A resumed run is as an unbroken one, to the last digit, with one rank and with two.
train --steps 20 --save-every 5 --eval-every 10 --out broken --stop-at 7
train --resume --out broken --stop-at 12
train --resume --out broken
results whole >expected
results broken | diff expected - >out || fail "a resumed run has other results"
cmp -s whole/checkpoint-20/model.safetensors broken/checkpoint-20/model.safetensors || fail "and other weights"
train --resume --out broken
grep -q 'nothing was left to do; validation loss [0-9]' out || fail "a finished run goes on"

# One that lost the validation of its last step makes up for it, and says it in the results.
for n in 1 2; do
    train --steps 20 --eval-every 5 --out short$n --stop-at 7 --ranks $n
    train --resume --steps 7 --eval-every 100 --out short$n --ranks $n --json short.json
    grep -q 'nothing was left to do; validation loss [0-9]' out || fail "no validation: $(cat out)"
    [ "$(ls short$n/checkpoint-7 | tr '\n' ' ')" = "history.safetensors manifest.json model.safetensors state.safetensors " ] || fail "wrong files"
    close_to "$(number validation_loss short.json)" "$(tail -n 1 short$n/metrics.csv | cut -d , -f 5)" 1e-6 ||
        fail "the validation of the last step is not in the results: $(cat short.json), $(tail -n 1 short$n/metrics.csv)"
done
train --steps 20 --save-every 5 --eval-every 10 --out broken2 --ranks 2 --stop-at 9
train --resume --out broken2 --ranks 2
train --steps 20 --save-every 5 --eval-every 10 --out whole2 --ranks 2 --json whole2.json
results whole2 >expected
results broken2 | diff expected - >out || fail "a resumed run of two ranks has other results"
[ "$(number ranks whole2.json)" = 2 ] || fail "not two ranks"

# Names that look like options reach the ranks as they are.
cp text ./--odd.txt
"$TRIREME" train gpt $tiny --data=--odd.txt --steps 2 --ranks 2 --out=--odd --json=--odd.json >out 2>err || fail "exit code $?: odd names"
[ -d ./--odd/checkpoint-2 ] && [ -s ./--odd.json ] || fail "no results under odd names"

# The same batch on any number of ranks: the same losses, and in as many pieces as memory asks for.
train --steps 50 --out one
train --steps 50 --ranks 2 --out two
train --steps 50 --ranks 3 --out three
train --steps 50 --micro-batch 1 --out pieces
for other in two three pieces; do
    paste -d , one/metrics.csv $other/metrics.csv | awk -F , '
        NR > 1 { d = $4 - $12; if (d < 0) d = -d; if (d > most) most = d; n++ }
        END { if (n != 50 || most > 1e-4) { print n " rows, differing by " most; exit 1 } }' >out || fail "$other: $(cat out)"
done

# ^C: every rank stops after the same step, rank 0 saves, and the run can go on as if nothing had been.
start --steps 1000000 --save-every 1000000 --ranks 2 --out stopped
wait_for '^step 1/'
kill -INT "$job"
end
[ $code = 130 ] || fail "exit code $code after an interrupt"
step=$(ls stopped | sed -n 's/^checkpoint-//p')
[ "$(tail -n 1 stopped/metrics.csv | cut -d , -f 1)" = "$step" ] || fail "no checkpoint of the last step: $(ls stopped)"
grep -q "^Saved in stopped/checkpoint-$step" out || fail "it does not say where it has saved"
start --steps 1000000 --out alone
wait_for '^step 1/'
kill -TERM "$job"
end
[ $code = 143 ] && ls alone | grep -q '^checkpoint-' || fail "exit code $code after SIGTERM, and $(ls alone)"

# A folder that is removed or moved: the job ends, and does not go on in another one of that name.
for what in "rm -rf gone" "mv gone elsewhere"; do
    rm -rf gone elsewhere
    start --steps 1000000 --save-every 50 --ranks 2 --out gone
    wait_for '^step 1/'
    until $what; do sleep 0.01; done 2>/dev/null # the training may just be making a file in it
    end
    [ $code = 1 ] && [ ! -e gone ] || fail "exit code $code after $what, and $(ls gone)"
    [ "$(grep -c '^trireme' err)" = 1 ] || fail "not one message after $what"
done

# A killed rank: the job ends at once and names it, and nothing is left.
ranks_of() { # PID: its children that are ranks, as "RANK PID"
    for status in /proc/[0-9]*/status; do
        process=${status%/status}
        grep -q "^PPid:[[:space:]]*$1$" "$status" 2>/dev/null || continue
        rank=$(tr '\0' '\n' <"$process/environ" 2>/dev/null | sed -n 's/^RANK=//p') || :
        [ -z "$rank" ] || echo "$rank ${process#/proc/}"
    done
}
alive() { [ -r "/proc/$1/stat" ] && ! sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | grep -q '^[ZX]'; }
for victim in 1 0; do
    start --steps 1000000 --save-every 50 --ranks 2 --out killed$victim
    wait_for '^step 1/'
    sleep 0.3
    ranks=$(ranks_of "$job")
    pid=$(echo "$ranks" | sed -n "s/^$victim //p")
    before=$(date +%s%N)
    kill -9 "$pid"
    end
    took=$((($(date +%s%N) - before) / 1000000))
    [ $code = 1 ] || fail "exit code $code for a killed rank"
    [ $took -lt 30000 ] || fail "the job took $took ms to end" # and not until its last step
    grep -q "^trireme train gpt: rank $victim (pid $pid) was killed by signal 9" err || fail "rank $victim is not named"
    [ "$(grep -c '^trireme' err)" = 1 ] || fail "more than one message"
    for pid in $(echo "$ranks" | sed 's/.* //'); do
        ! alive "$pid" || fail "rank $pid is still there"
    done
done
# What was saved before is good.
train --resume --out killed1 --stop-at 1

# Writing: the same text for the same seed, of the length that was asked for.
sample() { "$TRIREME" sample --from whole --prompt "static " "$@" >out 2>err || fail "exit code $?: sample $*"; }
sample --tokens 50
[ "$(wc -c <out)" = 58 ] && grep -q '^static ' out || fail "not 50 bytes after the prompt"
cp out expected
sample --tokens 50
cmp -s out expected || fail "another text for the same seed"
sample --tokens 5 --temperature 0 --top-k 3
"$TRIREME" sample --from whole/checkpoint-15 --tokens 5 >out 2>err || fail "no sample from a checkpoint's own folder"
