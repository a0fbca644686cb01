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

# learnt RANKS: what `launch` ends with, whoever started the ranks.
learnt() {
    grep -q "ranks: $1, loss at first: 0\.1.*, at the end: 0\.0[0-2].*, weights differ by 0$" out || fail "launch says: $(cat out)"
}
for ranks in 1 3; do
    "$BUILD/examples/launch" $ranks >out 2>err || fail "launch $ranks: $(cat err)"
    learnt $ranks
done
"$TRIREME" run -n 2 "$BUILD/examples/launch" >out 2>err || fail "trireme run: $(cat err)"
learnt 2
# By hand the ranks meet at the address in the program; in a network of their own, where its port is free.
if unshare -rn true 2>/dev/null; then
    unshare -rn sh -c "ip link set lo up; RANK=0 WORLD_SIZE=2 '$BUILD/examples/launch' &
        RANK=1 WORLD_SIZE=2 '$BUILD/examples/launch' && wait \$!" >out 2>err || fail "ranks by hand: $(cat err)"
    learnt 2
fi

# On this machine alone, and as a hosts file has it.
echo "localhost slots=3" >hosts
for hosts in "" hosts; do
    ranks=${hosts:+3} ranks=${ranks:-2}
    XDG_STATE_HOME=$work PATH=$(dirname "$TRIREME"):$PATH "$BUILD/examples/cluster" $hosts >out 2>err ||
        fail "cluster $hosts: $(cat err)"
    [ "$(grep -c "^\[[0-2]\] rank [0-2] of $ranks: \(9[6-9]\|100\).*the same weights$" out)" = $ranks ] ||
        fail "cluster says: $(cat out)"
done
