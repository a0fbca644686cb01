#!/bin/sh
# `trireme train gpt` when it cannot work: one clear message, an exit code that is not 0, no process left, nothing lost.
# ctest: timeout=180
. "$SOURCE/tests/process/common"
mounted=
at_end() {
    [ -z "$mounted" ] || umount "$work/small" 2>/dev/null || :
    chmod -R u+w "$work"
}
cd "$work"
cat "$SOURCE"/include/trireme/*.h >text
sizes="--layers 1 --heads 2 --dim 16 --context 16 --batch 4 --threads 1 --plain"
export TRIREME_TEST="$$-$(date +%s%N)"

# refuses CODE MESSAGE ARGUMENT…: ends with that code and one message, and leaves no process.
refuses() {
    want=$1 message=$2 code=0
    shift 2
    "$TRIREME" "$@" >out 2>err </dev/null || code=$?
    [ $code = "$want" ] || fail "exit code $code instead of $want: trireme $*"
    LC_ALL=C grep -qF -e "$message" err || fail "no \"$message\": trireme $*"
    [ "$(grep -c '^\(\[[0-9]*\] \)*trireme' err)" = 1 ] || fail "not one message: trireme $*"
    ! grep -lzs "^TRIREME_TEST=$TRIREME_TEST$" /proc/[0-9]*/environ >processes 2>/dev/null ||
        [ "$(grep -v -e "/$$/" -e /self/ processes | while read -r p; do
            case $(tr '\0' ' ' <"${p%environ}cmdline" 2>/dev/null) in *trireme*) echo "$p" ;; esac
        done)" = "" ] || fail "a process is left: $(cat processes)"
}
# The same with one rank and with two.
refuses_train() {
    want=$1 message=$2
    shift 2
    refuses "$want" "$message" train gpt $sizes --steps 5 "$@"
    refuses "$want" "$message" train gpt $sizes --steps 5 --ranks 2 "$@"
}

# The text.
refuses_train 2 "--data PATH is missing" --out x
refuses_train 1 "nowhere" --data nowhere --out x
: >empty
refuses_train 1 "empty is empty" --data empty --out x
printf 'short' >short
refuses_train 1 "short is too short: its 5 bytes leave 5 for training, and a context of 16 takes at least 17" --data short --out x
head -c 100 text >little
refuses_train 1 "--keep-best: nothing is validated, as little leaves 10 bytes for that" --data little --keep-best --out x
mkdir folder
refuses_train 1 "there is no text in the folder folder" --data folder --out x
[ ! -e x ] || fail "a folder was made for nothing"

# A pipe, which another process would find empty.
mkfifo pipe
refuses 1 "pipe is a pipe, which can be read once, by one rank" train gpt $sizes --data pipe --ranks 2 --out x
refuses 1 "pipe is a pipe, which can be read once, by one rank" train gpt $sizes --data pipe --max-restarts 1 --out x
for launch in '-n 2' '--max-restarts 1'; do
    code=0
    # shellcheck disable=SC2086
    timeout 60 "$TRIREME" run $launch "$TRIREME" train gpt $sizes --data pipe --out x >out 2>err || code=$?
    [ $code = 1 ] && grep -qF 'pipe is a pipe, which can be read once, by one rank' err ||
        fail "ranks of run $launch read a pipe: $(cat err)"
done
[ ! -e x ] || fail "a folder was made for nothing"

# Names in other encodings, which a checkpoint and results cannot say.
latin=$(printf 'f\374r')
cp text "$latin"
cp "$SOURCE/tests/recorded/tokenizers/gpt2.json" "$latin.json"
refuses_train 1 "--data: \"$latin\" is not UTF-8" --data "$latin" --out x
refuses_train 1 "--init: \"$latin\" is not UTF-8" --data text --init "$latin" --out x
refuses 1 "$latin.json\" is not UTF-8" train gpt $sizes --data text --tokenizer "$latin.json" --out x
refuses 1 "--out: \"$latin-x\" is not UTF-8" train gpt $sizes --data text --out "$latin-x"
[ ! -e x ] && [ ! -e "$latin-x" ] || fail "a folder was made for nothing"
cp text "$(printf 'f\303\274r')"
"$TRIREME" train gpt $sizes --steps 2 --data "$(printf 'f\303\274r')" --out "$(printf '\342\202\254\360\237\230\200')" >out 2>err ||
    fail "names in UTF-8 are refused"

# The folder.
refuses_train 1 "cannot make the folder text/x: Not a directory" --data text --out text/x
refuses_train 1 "text is no folder" --data text --out text
refuses_train 1 "cannot write nowhere/x.json: No such file or directory" --data text --out x --json nowhere/x.json
echo old >old.json
for json in new old; do
    (trap '' XFSZ && ulimit -f 0 && exec "$TRIREME" train gpt $sizes --steps 2 --data text --out full --json $json.json) 2>&1 |
        cat >out
    grep -q 'cannot write full/metrics.csv: File too large' out || fail "it has room"
done
[ ! -e new.json ] && [ "$(cat old.json)" = old ] || fail "there are results of no training"
"$TRIREME" train gpt $sizes --steps 2 --data text --out made --json made/r.json >out 2>err ||
    fail "no results in the folder that it makes"
[ -s made/r.json ] || fail "empty results"
ln -s linked.json to.json
"$TRIREME" train gpt $sizes --steps 2 --data text --out linked --json to.json >out 2>err || fail "no results behind a link: $(cat err)"
[ -h to.json ] && [ -s linked.json ] || fail "the results have taken the place of a link"
if [ "$(id -u)" != 0 ]; then
    mkdir readonly && chmod 500 readonly
    refuses_train 1 "cannot write into readonly: Permission denied" --data text --out readonly
fi

refuses_train 2 '--allow-different: there is no setting "colour" that ranks compare: there are ' --data text --allow-different lr,colour --out x

# Sizes.
refuses_train 2 "--dim must be a multiple of --heads: 17 is not one of 2" --data text --dim 17 --out x
refuses 1 "a batch of 4 windows cannot be shared out over 8 ranks" train gpt $sizes --data text --ranks 8 --out x
refuses 1 "too little memory: 64 ranks of " train gpt --data text --preset gpt2 --layers 200 --batch 64 --ranks 64 --out x
# The gradients of 3.2 trillion parameters take 12,000 GiB, where they are kept.
huge="train gpt --data text --preset nano --dim 16384 --heads 128 --layers 1000 --batch 1 --out x"
refuses 1 "parameters with gradients and moments, activations of 1 window) takes 48042." $huge
refuses 1 "parameters with moments, activations of 1 window) takes 36041." $huge --clip 0
refuses 1 "parameters with gradients and moments, activations of 1 window) takes 48042." $huge --clip 0 --stop-on-spike

# Flags.
refuses 2 "unknown option --step: did you mean --steps?" train gpt --data text --step 5
refuses 2 "--lr takes a number from 1e-12 to 1000, not \"fast\"" train gpt --data text --lr fast
refuses 2 "--preset takes one of nano, mini, gpt2, gpt2-medium, gpt2-large, gpt2-xl, not \"large\"" train gpt --data text --preset large
refuses 2 "no model is named \"gtp\": there are gpt, bert, lenet" train gtp
refuses 2 "--out FOLDER is missing" train gpt --data text --resume


# No default is told twice, and none that cannot be given.
for command in "train gpt" "train bert" "train resnet18" sample "tokenizer train" "bench model" "bench loader" "bench rpc" \
    "bench dist-autograd" "cluster logs"; do
    # shellcheck disable=SC2086
    "$TRIREME" $command --help >out
    ! grep -e '(\([^()]*\)).*(default \1)' -e '(default -' out >twice || fail "$command: a default is told twice, or cannot be given: $(cat twice)"
done

# Or else it would be ignored.
refuses_train 2 "--min-ranks 2, but without --max-restarts no ranks are started again" --data text --min-ranks 2 --out x

# Under a launcher, by either name of the option.
export RANK=0 WORLD_SIZE=1
for ranks in "--ranks 3" "--ranks=3" "-n 3" -n3; do
    refuses 2 "--ranks 3, but the launcher has started 1: leave --ranks out" train gpt $sizes --data text $ranks --out x
done
refuses 2 "--max-restarts 3, but the launcher starts ranks again 0 times" train gpt $sizes --data text --max-restarts 3 --out x
refuses 2 "--min-ranks 2, but it is the launcher that starts ranks again" train gpt $sizes --data text --min-ranks 2 --out x
unset RANK WORLD_SIZE

# Resuming: other options, another text, no checkpoint, damage. A training is never written over.
"$TRIREME" train gpt $sizes --steps 20 --stop-at 6 --save-every 3 --data text --out good >out 2>err || fail "no training"
refuses 1 "good holds a training at step 6: go on with --resume" train gpt $sizes --steps 20 --data text --out good
refuses 1 "the training in good was started with --batch 4: leave --batch out" train gpt --resume --out good --batch 8
refuses 1 "the training in good was started with --preset nano" train gpt --resume --out good --preset mini --ranks 2
refuses 1 "was started without --suffixes" train gpt --resume --out good --suffixes .c
head -c 5000 text >other
refuses 1 "other is not what the training in good was started with" train gpt --resume --out good --data other
refuses 1 "nothing to resume: cannot read nowhere" train gpt --resume --out nowhere
refuses 1 "nothing to resume: folder has no checkpoint" train gpt --resume --out folder
refuses 1 "good/checkpoint-6 is a checkpoint: give the folder that it is in" train gpt --resume --out good/checkpoint-6
[ "$(ls good | tr '\n' ' ')" = "checkpoint-3 checkpoint-6 loss.svg metrics.csv " ] || fail "something was lost: $(ls good)"

damage() { # FILE: cut in half, it is passed over for the checkpoint before, and set aside
    for n in 1 2; do
        rm -rf bad && cp -r good bad
        size=$(wc -c <"bad/checkpoint-6/$1")
        head -c $((size / 2)) "good/checkpoint-6/$1" >"bad/checkpoint-6/$1"
        "$TRIREME" train gpt --resume --out bad --stop-at 7 --ranks $n --threads 1 >out 2>err || fail "it does not go on: $(cat err)"
        grep -q "bad/checkpoint-6 is damaged (bad/checkpoint-6/$1: .*): going on from bad/checkpoint-3" err || fail "$1: $(cat err)"
        [ -d bad/damaged-checkpoint-6 ] && [ -d bad/checkpoint-7 ] || fail "$1: wrong files: $(ls bad)"
        head -n 7 bad/metrics.csv | cut -d , -f 1-5,7 >results
        head -n 7 good/metrics.csv | cut -d , -f 1-5,7 | cmp -s - results || [ $n = 2 ] || fail "$1: other results"
    done
    rm -rf bad && cp -r good bad && rm -r bad/checkpoint-3
    head -c $((size / 2)) "good/checkpoint-6/$1" >"bad/checkpoint-6/$1"
    refuses 1 "bad/checkpoint-6/$1: " train gpt --resume --out bad --ranks 2
}
for file in model.safetensors state.safetensors history.safetensors manifest.json; do damage $file; done
# Text is drawn from the checkpoint before a damaged one, too, unless that one was asked for.
rm -rf bad && cp -r good bad
(head -c $(($(wc -c <good/checkpoint-6/model.safetensors) - 4)) good/checkpoint-6/model.safetensors && printf 'abcd') \
    >bad/checkpoint-6/model.safetensors
"$TRIREME" sample --from bad --tokens 5 >out 2>err || fail "no text from the checkpoint before: $(cat err)"
grep -q 'bad/checkpoint-6 is damaged (.*): going on from bad/checkpoint-' err || fail "the damage is not said: $(cat err)"
refuses 1 "bad/checkpoint-6/model.safetensors: is damaged in tensor" sample --from bad/checkpoint-6
change() { # SED-COMMAND MESSAGE: with what a checkpoint without a manifest says of itself changed, as long as before
    rm -rf bad && cp -r good bad && rm bad/checkpoint-6/manifest.json
    LC_ALL=C sed -i 's/"trireme.save"/"trireme.none"/' bad/checkpoint-6/*.safetensors
    cp bad/checkpoint-6/model.safetensors before
    LC_ALL=C sed "$1" before >bad/checkpoint-6/model.safetensors
    ! cmp -s before bad/checkpoint-6/model.safetensors || fail "nothing was changed: $1"
    [ -z "$2" ] || refuses 1 "$2" train gpt --resume --out bad
}
change 's/"nano"/"nino"/' "bad/checkpoint-6: --preset takes one of nano, mini, gpt2, gpt2-medium, gpt2-large, gpt2-xl, not \"nino\""
change 's/"adamw"/"adamx"/' "bad/checkpoint-6: --optimizer takes one of "
change 's/\("trireme.layers":[ ]*\)"1"/\1"0"/' "bad/checkpoint-6: --layers takes a whole number from 1 to 1000, not \"0\""
change 's/\("trireme.heads":[ ]*\)"2"/\1"x"/' "bad/checkpoint-6: --heads takes a whole number from 1 to 1000, not \"x\""
# A model that is not the file's is not built, whatever it would take.
change 's/\("trireme.dim":[ ]*\)"16"/\1"96"/' ""
refuses 1 "bad/checkpoint-6 is damaged: it has" sample --from bad
# Weights that are not finite are named, write no text, and nothing is trained with them: here the last number is NaN.
change 's/"trireme.none"/"trireme.nan_"/' ""
size=$(wc -c <before)
(head -c $((size - 4)) before && printf '\000\000\300\177') >bad/checkpoint-6/model.safetensors
ruined='tensor "ln_f.bias", [16] of f32, has numbers that are not finite: 1 NaN and 0 infinite of 16 values, the first at [15]'
refuses 1 "bad/checkpoint-6: $ruined. Its training has diverged" sample --from bad
[ ! -s out ] || fail "a text was written"
refuses 1 "--resume: bad/checkpoint-6: $ruined" train gpt --resume --out bad
mkdir there
for out in "begun/for/nothing" "there" "there/too --ranks 2"; do
    refuses 1 "--init bad/checkpoint-6/model.safetensors: $ruined" train gpt $sizes --data text --steps 20 --out $out \
        --init bad/checkpoint-6/model.safetensors
done
[ ! -e begun ] && [ "$(ls -A there)" = "" ] || fail "a folder was made for nothing"
# Nor do weights write that are finite, and too large: here all are 8.5e37.
header=$((8 + $(od -An -tu8 -N8 before)))
(head -c $header before && head -c $((size - header)) /dev/zero | tr '\000' '\176') >bad/checkpoint-6/model.safetensors
refuses 1 "its weights are finite, and too large to compute with" sample --from bad --tokens 5
rm -rf bad && cp -r good bad
rm bad/checkpoint-6/state.safetensors
"$TRIREME" train gpt --resume --out bad --threads 1 >out 2>err || fail "no resuming from the checkpoint before"
[ -d bad/checkpoint-20 ] || fail "it did not go on"
mkdir -p foreign/checkpoint-1
cp "$SOURCE/tests/recorded/gpt.safetensors" foreign/checkpoint-1/model.safetensors
refuses 1 "foreign/checkpoint-1/state.safetensors: No such file" train gpt --resume --out foreign
refuses 1 "was not written by" sample --from foreign
refuses 1 "cannot read nowhere" sample --from nowhere
refuses 1 "is cut short or no safetensors file" sample --from "$(mkdir -p text1 && cp text text1/model.safetensors && echo text1)"
rm -rf bad && cp -r good bad
echo x >bad/metrics.csv
"$TRIREME" train gpt --resume --out bad --stop-at 7 --threads 1 >out 2>err || fail "no resuming with damaged metrics"
head -n 7 bad/metrics.csv | cmp -s - good/metrics.csv && [ "$(wc -l <bad/metrics.csv)" = 8 ] || fail "the metrics are not the checkpoint's"

# Two trainings do not write into one folder. (The first one is stopped again.)
"$TRIREME" train gpt --resume --out good --steps 1000000 --plain --threads 1 >out2 2>err2 &
first=$!
tries=0
until grep -q '^step' err2; do
    tries=$((tries + 1))
    [ $tries -lt 1200 ] || fail "the first training does not start"
    sleep 0.05
done
code=0
"$TRIREME" train gpt --resume --out good --steps 1000000 --threads 1 >out 2>err || code=$?
kill -TERM $first
wait $first || :
[ $code = 1 ] && grep -q "another training is writing into good" err || fail "two trainings in one folder"

# A loss that is no number ends training, and says so once.
refuses 1 "training has diverged" train gpt $sizes --data text --steps 200 --lr 1000 --warmup 0 --clip 0 --out wild
refuses 1 "training has diverged" train gpt $sizes --data text --steps 200 --lr 1000 --warmup 0 --clip 0 --out wild2 --ranks 2

# A disk that is full in the middle of a checkpoint: the ones before are good, and nothing is left over.
mkdir small
if [ "$(id -u)" = 0 ] && mount -t tmpfs -o size=256k tmpfs small 2>/dev/null; then
    mounted=yes
    for n in 1 2; do
        refuses 1 "No space left on device" train gpt $sizes --data text --steps 100 --save-every 3 --ranks $n --out small/$n
        "$TRIREME" sample --from small/$n --tokens 5 >out 2>err || fail "the checkpoint before is not good"
        [ -z "$(find small -name '*.tmp')" ] || fail "something is left over: $(find small)"
        rm -r small/$n
    done
else
    echo "No disk was filled: that takes root and a mount."
fi
