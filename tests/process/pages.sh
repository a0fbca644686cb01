#!/bin/sh
# The programs of the documentation's pages: the tutorial learns its spiral, on one process and on two, and goes on from its
# checkpoint with another number of ranks; the cookbook's functions do what they say.
. "$SOURCE/tests/process/common"
cd "$work"

awk '/^```sh$/ { on = 1; next } /^```$/ { on = 0 } on' "$SOURCE/docs/tutorial.md" | sed -n '1,2p' >make-points
sh make-points
[ "$(wc -l <points.csv)" = 3000 ] || fail "the tutorial makes $(wc -l <points.csv) points"
last_score() { sed -n 's/.*epoch 12: \([0-9]*\)\.[0-9] % right$/\1/p' "$work/out"; }

"$BUILD/process/tutorial" >out 2>err || fail "one process ended with $?"
[ "$(last_score)" -ge 95 ] || fail "one process does not learn the spiral"
rm -r run
start -n 2 "$BUILD/process/tutorial"
end
[ $code = 0 ] || fail "two processes ended with $code"
[ "$(last_score)" -ge 95 ] || fail "two processes do not learn the spiral"
rm -r run/checkpoint-600
"$BUILD/process/tutorial" >out 2>err || fail "going on ended with $?"
grep -q '^going on from step 550$' out || fail "one process does not go on where two ended"
[ "$(wc -l <out)" = 2 ] || fail "one epoch was left"

sed '7s/,.*/,oops/' points.csv >bad.csv
mv bad.csv points.csv
"$BUILD/process/tutorial" >out 2>err && fail "a bad line of the data was passed over"
grep -q 'points.csv: line 7 is not x,y,class' err || fail "the message does not name the bad line"

for ranks in 1 2; do
    mkdir "cook-$ranks"
    start -n $ranks "$BUILD/process/cookbook" "$work/cook-$ranks"
    end
    [ $code = 0 ] || fail "the cookbook on $ranks ranks ended with $code"
    grep -q 'matmul: inner sizes differ: \[2, 3\] x \[4, 5\]' out || fail "the message is not the page's"
    [ "$(ls "cook-$ranks/best" | wc -l)" -le 2 ] || fail "more than the newest and the best checkpoint are kept"
done
