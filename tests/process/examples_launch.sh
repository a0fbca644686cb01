#!/bin/sh
# The examples that start processes: they learn what they say they learn, whatever the number of ranks.
. "$SOURCE/tests/process/common"
cd "$work"
for ranks in 1 2 4; do
    "$BUILD/examples/spawn_ddp" $ranks >out 2>err || fail "spawn_ddp $ranks: $(cat err)"
    grep -q '^accuracy on 1000 other samples: 9[6-9]\|: 100' out || fail "spawn_ddp $ranks says: $(cat out)"
done
! "$BUILD/examples/spawn_ddp" 0 >out 2>err || fail "spawn_ddp takes 0 ranks"
grep -q 'spawn: 0 ranks: it takes 1 to 4096' err || fail "spawn_ddp 0 says: $(cat err)"

"$BUILD/examples/launch" 3 >out 2>err || fail "launch: $(cat err)"
[ "$(grep -c 'the sum of all ranks is 3' out)" = 3 ] || fail "launch says: $(cat out)"
XDG_STATE_HOME=$work PATH=$(dirname "$TRIREME"):$PATH "$BUILD/examples/cluster" >out 2>err || fail "cluster: $(cat err)"
grep -q '^\[0\] rank 0 of 2' out && grep -q '^\[1\] rank 1 of 2' out || fail "cluster says: $(cat out)"
