#!/bin/sh
# The examples that start processes: they learn what they say they learn, whatever the number of ranks.
. "$SOURCE/tests/process/common"
cd "$work"
# Any number of ranks learns the same.
for ranks in 1 2 4; do
    "$BUILD/examples/spawn_ddp" $ranks >out 2>err || fail "spawn_ddp $ranks: $(cat err)"
    grep -q "^accuracy on 400 other images: \(9[6-9]\|100\)" out || fail "spawn_ddp $ranks says: $(cat out)"
    sed -n "s/^sum of the weights' sizes: //p" out >>sums
done
awk '{ if (NR == 1) first = $1; if ($1 < first * 0.999 || $1 > first * 1.001) bad = 1 } END { exit bad || NR != 3 }' sums ||
    fail "other numbers of ranks learn other weights: $(cat sums)"
if [ -n "${TRIREME_TEST_DATA:-}" ]; then
    "$BUILD/examples/spawn_ddp" 2 "$TRIREME_TEST_DATA/mnist" >out 2>err || fail "spawn_ddp on MNIST: $(cat out err)"
fi
! "$BUILD/examples/spawn_ddp" 0 >out 2>err || fail "spawn_ddp takes 0 ranks"
grep -q 'spawn: 0 ranks: it takes 1 to 4096' err || fail "spawn_ddp 0 says: $(cat err)"

"$BUILD/examples/launch" 3 >out 2>err || fail "launch: $(cat err)"
[ "$(grep -c 'the sum of all ranks is 3' out)" = 3 ] || fail "launch says: $(cat out)"
XDG_STATE_HOME=$work PATH=$(dirname "$TRIREME"):$PATH "$BUILD/examples/cluster" >out 2>err || fail "cluster: $(cat err)"
grep -q '^\[0\] rank 0 of 2' out && grep -q '^\[1\] rank 1 of 2' out || fail "cluster says: $(cat out)"
