#!/bin/sh
# A bit that flips in the weights of one of several processes ends the training, or takes it back to a checkpoint, after which it ends
# with the bits of one that nothing happened to.
. "$SOURCE/tests/process/common"
cd "$work"
flips=$BUILD/process/flips

# flips RANKS ARGUMENT…: with its exit code in $code.
flips() {
    code=0
    "$TRIREME" run -n "$1" "$flips" "$2" "$3" "$4" ${5:-} >out 2>err || code=$?
}

# What a run of the training leaves: the numbers of each step but for rate and time.
rows() { cut -d, -f1-5,7 "$1/metrics.csv"; }

for ranks in 2 3; do
    flips $ranks whole$ranks 0 0
    [ $code = 0 ] || fail "the training failed: $code"
    weights=$(sed -n 's/.*weights \([0-9a-f]*\), went back 0 times.*/\1/p' out)
    [ -n "$weights" ] || fail "it does not say its weights"

    flips $ranks flipped$ranks 1 13
    [ $code != 0 ] || fail "nobody noticed"
    grep -q 'replicas were alike after step 10 and differ after step 15: rank 1 ' out err || fail "it does not name the steps and the rank"
    grep -q '"2.weight"' out err || fail "it does not name the tensor"
    [ $ranks = 2 ] || grep -q 'from the other 2 ranks' out err || fail "there was a majority"

    for rank in 0 1; do
        flips $ranks back$ranks$rank $rank 13 roll-back
        [ $code = 0 ] || fail "it did not go back: $code"
        grep -q 'going back from step 15 to the checkpoint of step 10' out err || fail "it does not say that it went back"
        grep -q "weights $weights, went back 1 times" out || fail "the weights are not those of a run without damage, $weights"
        rows whole$ranks >expected
        rows back$ranks$rank | cmp -s - expected || fail "the metrics are not those of a run without damage"
    done
done

TRIREME_CHECK=replicas
export TRIREME_CHECK
flips 3 every 2 13
grep -q 'alike after step 13 and differ after step 14: rank 2 differs from the other 2 ranks in' out err || fail "TRIREME_CHECK=replicas compares at every step"
unset TRIREME_CHECK

echo "a text, a text, a text that says nothing at all, but says it again and again and again" >text
! "$TRIREME" train gpt --data text --check-replicas 0 --roll-back --out refused >out 2>err || fail "it goes back without knowing when"
grep -q -e '--roll-back: nothing ever finds that ranks differ with --check-replicas 0' err || fail "it does not say why"
