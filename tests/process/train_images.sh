#!/bin/sh
# `trireme train lenet` and its like seen from outside: what they write, that a resumed run is as an unbroken one, that any
# number of ranks learns the same, and what is refused.
# ctest: timeout=240
. "$SOURCE/tests/process/common"
cd "$work"

train() { "$TRIREME" train "$@" --threads 1 --plain >out 2>err || fail "exit code $?: train $*"; }
refuses() { # CODE MESSAGE ARGUMENT…
    want=$1 message=$2 code=0
    shift 2
    "$TRIREME" train "$@" >out 2>err </dev/null || code=$?
    [ $code = "$want" ] || fail "exit code $code instead of $want: train $*"
    grep -qF -e "$message" err || fail "no \"$message\": train $*"
}
number() { grep -o "\"$1\":[^,}]*" "$2" | head -n 1 | sed 's/.*:[[:space:]]*//'; } # KEY FILE
# The metrics that do not depend on time.
results() { cut -d , -f 1-5,9 "$1/metrics.csv"; }
bytes() { head -c "$1" /dev/zero | tr '\000' "$2"; } # COUNT OCTAL

# Digits of two classes, 1: bright above, 0: bright below; 100 to train on and 20 to test.
bytes 392 '\377' >bright
bytes 392 '\003' >dark
digits() { # IMAGES LABELS COUNT OCTAL
    printf '\000\000\010\003\000\000\000\'$4'\000\000\000\034\000\000\000\034' >"$1"
    printf '\000\000\010\001\000\000\000\'$4 >"$2"
    for i in $(seq $(($3 / 2))); do
        cat bright dark dark bright >>"$1"
        printf '\001\000' >>"$2"
    done
}
mkdir digits half
digits digits/train-images-idx3-ubyte digits/train-labels-idx1-ubyte 100 144
digits digits/t10k-images-idx3-ubyte digits/t10k-labels-idx1-ubyte 20 024
cp digits/t10k* half

# Results, and what a checkpoint is called after.
train lenet --data digits --batch 6 --epochs 3 --json one.json --out one
for key in initial_loss final_loss validation_loss validation_accuracy samples_per_s step_ms_median peak_rss_mb parameters \
    classes size samples validation_samples; do
    case $(number $key one.json) in
        [0-9]*) ;;
        *) fail "no number $key in the results: $(cat one.json)" ;;
    esac
done
documented one.json 'train lenet'
[ "$(number steps one.json)" = 48 ] || fail "three epochs of 16 batches are $(number steps one.json) steps"
[ "$(number validation_accuracy one.json)" = 1 ] || fail "it did not learn: $(cat one.json)"
head -n 1 one/metrics.csv | grep -q '^step,samples,.*,validation_accuracy$' || fail "wrong columns: $(head -n 1 one/metrics.csv)"
[ "$(cut -d , -f 9 one/metrics.csv | grep -c '[0-9]')" = 3 ] || fail "not one validation in an epoch"
grep -q '100.00 % right' out || fail "it does not say how well it went"

# Each epoch is validated and saved: as many are kept as asked for, and the best. Where the labels to validate with are the
# wrong ones, that is the first.
train lenet --data digits --batch 6 --epochs 3 --keep 3 --out kept
[ "$(ls -d kept/checkpoint-* | tr '\n' ' ')" = "kept/checkpoint-16 kept/checkpoint-32 kept/checkpoint-48 " ] || fail "wrong: $(ls kept)"
cp -r digits wrong
(head -c 8 digits/t10k-labels-idx1-ubyte && for i in 1 2 3 4 5 6 7 8 9 10; do printf '\000\001'; done) >wrong/t10k-labels-idx1-ubyte
train lenet --data wrong --batch 6 --epochs 3 --keep 1 --keep-best --lr 0.001 --out best
[ "$(ls -d best/checkpoint-* | tr '\n' ' ')" = "best/checkpoint-16 best/checkpoint-48 " ] || fail "the first is not kept: $(ls best)"

# The names that some copies of the files have.
mkdir dotted
for name in train-images-idx3-ubyte train-labels-idx1-ubyte t10k-images-idx3-ubyte t10k-labels-idx1-ubyte; do
    cp "digits/$name" "dotted/$(echo $name | sed 's/-idx/.idx/')"
done
train lenet --data dotted --batch 6 --steps 2 --out dotted-run
grep -q '^dotted (MNIST): 100 to train on, 20 to validate' err || fail "other names of the files: $(cat err)"

# A class that is among those to validate alone.
cp -r digits third
printf '\000\000\010\001\000\000\000\024' >third/t10k-labels-idx1-ubyte
for i in $(seq 10); do printf '\001\002'; done >>third/t10k-labels-idx1-ubyte
train lenet --data third --batch 6 --epochs 1 --out third-run --json third.json
[ "$(number classes third.json)" = 3 ] || fail "not three classes: $(cat third.json)"

# Weights of a training to start another from: it goes on learning where that ended. Those of another model do not fit.
train lenet --data digits --batch 6 --steps 4 --init one/checkpoint-48/model.safetensors --out more --ranks 2 --profile 1
grep -q '^Weights from one/.*: 10 of 10 loaded$' err || fail "it does not say what was loaded: $(cat err)"
awk -F , 'NR == 2 { exit !($4 < 0.1) }' more/metrics.csv || fail "it does not begin with the weights: $(cat more/metrics.csv)"
for rank in 0 1; do
    grep -q '^3 ' more/profile-rank$rank.txt && grep -q ' conv1$' more/profile-rank$rank.txt || fail "no profile of rank $rank"
    grep -q '"cat":"collective"' more/profile-rank$rank.trace.json || fail "no trace of rank $rank"
done
refuses 1 "--init: tr_load_state_dict: nothing was changed" \
    resnet18 --data digits --init one/checkpoint-48/model.safetensors --out x

# And an archive that would unpack to far more than the model is refused before it is.
"$BUILD/process/zeros_npz" zeros.npz 100
refuses 1 "--init: zeros.npz: its" lenet --data digits --init zeros.npz --out x
grep -q 'bytes unpack to 104857728, more than the [0-9]* that' err || fail "it does not say how much: $(cat err)"

# Any number of ranks takes the same batches; a part of the only set is held back.
train lenet --data digits --batch 6 --epochs 3 --ranks 2 --out two
train lenet --data digits --batch 6 --epochs 3 --ranks 3 --micro-batch 1 --workers 2 --out three
for other in two three; do
    paste -d , one/metrics.csv $other/metrics.csv | awk -F , '
        NR > 1 { d = $4 - $13; if (d < 0) d = -d; if (d > most) most = d; n++ }
        END { if (n != 48 || most > 1e-4) { print n " rows, differing by " most; exit 1 } }' >out || fail "$other: $(cat out)"
done
train lenet --data half --batch 6 --steps 2 --validation 0.2 --out held
grep -q '16 to train on, 4 to validate' err || fail "it held back something else: $(cat err)"

# Images of one pixel in a folder for each class; two of them are cut short, the first one among these. That ends the
# training, or is skipped, as often by any number of ranks.
head='\211PNG\015\012\032\012\000\000\000\015IHDR\000\000\000\001\000\000\000\001\010\000\000\000\000:~\233U'
end='\000\000\000\000IEND\256B`\202'
mkdir images images/bright images/dark
for i in 01 02 03 04 05 06 07 08 09 10 11 12; do
    printf "$head"'\000\000\000\012IDATx\332c\370\017\000\001\001\001\000\034\260\214\231'"$end" >images/bright/$i.png
    printf "$head"'\000\000\000\012IDATx\332c`\000\000\000\002\000\001\345\047\336\374'"$end" >images/dark/$i.png
done
for name in bright/01 dark/07; do
    head -c 45 images/$name.png >cut
    mv cut images/$name.png
done
refuses 1 ".png: it is a damaged PNG file" lenet --data images --batch 6 --epochs 4 --threads 1 --out x
for ranks in 1 2; do
    train lenet --data images --batch 6 --epochs 4 --ranks $ranks --on-bad skip --json skipped.json --out skipped$ranks
    grep -q 'skipped sample .* images/bright/01.png: it is a damaged PNG file' err || fail "a bad image is not named"
    [ "$(grep -c 'images/dark/07.png' err)" -le $ranks ] || fail "a bad image is named more than once by a rank"
    [ "$(number steps skipped.json)" = 12 ] || fail "four epochs of 22 images are $(number steps skipped.json) steps"
    cp skipped.json skipped$ranks.json
    grep -q "^Bad samples skipped: $(number skipped skipped.json);" out || fail "it does not count: $(cat out)"
done
[ "$(number skipped skipped1.json)" = "$(number skipped skipped2.json)" ] || fail "two ranks skipped another number"
train lenet --resume --epochs 5 --out skipped1

# A resumed run is as an unbroken one, to the last digit: in the middle of an epoch, with shifted digits, with batch norm.
for options in "lenet --batch 6 --steps 20 --save-every 5" "resnet18 --batch 4 --steps 3 --ranks 2"; do
    rm -rf whole broken
    model=${options%% *}
    train $options --data digits --augment shift --out whole
    train $options --data digits --augment shift --stop-at 2 --out broken
    case $options in *ranks*) ranks="--ranks 2" ;; *) ranks= ;; esac
    train $model --resume $ranks --out broken
    results whole >expected
    results broken | diff expected - >out || fail "a resumed run has other results: $(cat out)"
    last=$(ls whole | grep checkpoint | tail -n 1)
    cmp -s "whole/$last/model.safetensors" "broken/$last/model.safetensors" || fail "and other weights"
done

# Norms over the group's batch: two ranks see what one does.
train resnet18 --data digits --batch 12 --steps 1 --lr 1e-3 --augment shift --out norm1
train resnet18 --data digits --batch 12 --steps 1 --lr 1e-3 --augment shift --batch-norm group --ranks 2 --out norm2
paste -d , norm1/metrics.csv norm2/metrics.csv | awk -F , '
    NR > 1 { d = $4 - $13; if (d < 0) d = -d; if (d > most) most = d; n++ }
    END { if (n != 1 || most > 1e-3) { print n " rows, differing by " most; exit 1 } }' >out || fail "by group: $(cat out)"

# A Vision Transformer.
train vit_nano --data digits --batch 10 --steps 12 --out vit --json vit.json
awk -F , 'NR == 2 { exit !($4 > 0.693 && $4 < 0.694) }' vit/metrics.csv || fail "its first loss is not ln 2"
awk -v right="$(number validation_accuracy vit.json)" 'BEGIN { exit !(right > 0.9) }' || fail "a ViT does not learn"
refuses 1 "vit_h_14 cuts images into patches of 14 pixels a side: 32 is not a multiple" vit_h_14 --data digits --batch 6 --out x

refuses 2 "--data PATH is missing: a folder with MNIST's files" lenet --out x
refuses 1 "nowhere" lenet --data nowhere --out x
refuses 1 "has 100 images to train on, fewer than a batch of 200" lenet --data digits --batch 200 --out x
refuses 1 "--keep-best: half has no images to validate on" lenet --data half --batch 6 --validation 0 --keep-best --out x
refuses 2 "lenet takes images of 28 pixels a side, not --size 32" lenet --data digits --size 32 --out x
refuses 1 "takes images of 32 pixels a side and more, not --size 16" resnet18 --data digits --size 16 --out x
refuses 1 "a batch of 2 images cannot be shared out over 3 ranks" lenet --data digits --batch 2 --ranks 3 --out x
refuses 2 "--epochs and --steps say the same" lenet --data digits --steps 3 --epochs 3 --out x
refuses 1 "was started with --momentum 0.9: leave --momentum out" lenet --resume --out one --momentum 0.5
refuses 1 "is not what the training in one was started with" lenet --resume --out one --data half
refuses 1 "is not what the training in one was started with" lenet --resume --out one --data wrong # as many, with other labels
refuses 1 "was not written by \`trireme train resnet18\`" resnet18 --resume --out one

# Checkpoints once said how many images there are, and not which: these go on, too.
train lenet --data digits --batch 6 --steps 4 --stop-at 2 --out old
(cd old/checkpoint-2 && rm manifest.json && LC_ALL=C sed -i 's/"trireme.save"/"trireme.none"/
    s/\(images of 2 classes, 1x28x28\), [0-9a-f]\{8\} [0-9a-f]\{8\}"/\1"                   /' ./*.safetensors)
grep -q 'images of 2 classes, 1x28x28"' old/checkpoint-2/model.safetensors || fail "the test does not make an old checkpoint"
train lenet --resume --out old
[ -d old/checkpoint-4 ] || fail "an old checkpoint does not go on"

# The command that is printed works for a folder that a shell has to be given in quotes.
train lenet --data digits --batch 6 --steps 4 --stop-at 2 --out "it's \$two words"
next=$(sed -n 's/^Go on with: trireme train lenet //p' out)
eval "train lenet $next"
[ -d "it's \$two words/checkpoint-4" ] || fail "the printed command does not go on: $next"
