#!/bin/sh
# `trireme run --nnodes MIN:MAX`: nodes that are lost, that come late and that come back; the others go on without them from the
# last checkpoint, as long as there are enough. ctest: timeout=800
. "$SOURCE/tests/process/common"
cd "$work"
port=$((20000 + $$ % 10000))
while grep -q "$(printf ':%04X ' $port)" /proc/net/tcp /proc/net/tcp6 2>/dev/null; do port=$((port + 1)); done
at=127.0.0.1:$port pids= spaces=
at_end() {
    for pid in $pids; do kill -9 "$pid" 2>/dev/null || :; done
    for space in $spaces; do ip netns del "$space" 2>/dev/null || :; done
}
shown="out0 out1 out2 err0 err1 err2"
TRIREME_TOKEN=a-secret-of-the-tests
export TRIREME_TOKEN
mark=$((3000000 + $$))
where=$BUILD/process/collectives

# node RANK ARGUMENT…: a launcher in the background, with outRANK and errRANK; $in is what it is started by, in a namespace say.
in=
node() {
    rank=$1
    shift
    : >"out$rank"
    : >"err$rank"
    # shellcheck disable=SC2086
    $in "$TRIREME" run --node-rank "$rank" --rendezvous $at "$@" >"out$rank" 2>"err$rank" </dev/null &
    pids="$pids $!"
}
# launcher N: the process of the launcher that was started as the N-th, from 1.
launcher() {
    # shellcheck disable=SC2086
    set -- "$1" $pids
    eval "echo \$$(($1 + 1))"
}
# expect CODES: of the launchers, in their order; nothing of the job is left.
expect() {
    said=
    for pid in $pids; do
        code=0
        wait "$pid" || code=$?
        said="$said $code"
    done
    pids=
    [ "$said" = " $1" ] || fail "exit codes$said, not $1"
    until_gone "sleep $mark"
}
# says FILE PATTERN: at once. until_says: at some time.
says() { grep -q "$2" "$1" || fail "no '$2' in $1"; }
until_says() {
    tries=0
    until grep -q "$2" "$1"; do
        tries=$((tries + 1))
        [ $tries -lt 1200 ] || fail "never '$2' in $1"
        sleep 0.05
    done
}

# ---- Launchers that are killed ----

# job NODES RESTARTS: three nodes with two ranks each, which sleep until the ranks were started so often.
job() {
    for k in 0 1 2; do
        node $k -n 2 --nnodes "$1" --max-restarts 2 \
            sh -c "\"\$0\" where && echo \"node \$GROUP_RANK\"; [ \$TORCHELASTIC_RESTART_COUNT = $2 ] || exec sleep $mark" "$where"
    done
    for k in 0 1 2; do until_says out$k "\[$((2 * k + 1))\] node $k"; done
}

job 2:3 1
kill -9 "$(launcher 2)"
expect "0 137 0"
for k in 0 2; do
    says err$k 'node 1 (.*) is gone, and all its ranks: '
    says err$k '4 of 6 ranks are started again, on nodes 0 and 2, time 1 of 2'
done
says out0 'rank 1 of 4, local rank 1'
says out2 'rank 2 of 4, local rank 0'
says out2 '\[3\] node 1'

# Twice in a row, until one node is left.
job 1:3 2
kill -9 "$(launcher 3)"
until_says out0 'rank 1 of 4,'
until_says out1 'rank 3 of 4,'
kill -9 "$(launcher 2)"
expect "0 137 137"
says err0 'node 2 (.*) is gone, and all its ranks: '
says err0 '4 of 6 ranks are started again, on nodes 0 and 1, time 1 of 2'
says err0 'node 1 (.*) is gone, and all its ranks: '
says err0 '2 of 4 ranks are started again, on node 0, time 2 of 2'
says out0 'rank 1 of 2,'

# Too few are left; and node 0, which serves the store, cannot be done without.
job 3 1
kill -9 "$(launcher 2)"
expect "1 137 1"
for k in 0 2; do says err$k 'trireme run: node 1 (.*) is gone, and all its ranks: '; done
job 2:3 2
kill -9 "$(launcher 3)"
until_says out1 'rank 3 of 4,'
kill -9 "$(launcher 2)"
expect "1 137 137"
says err0 'trireme run: node 1 (.*) is gone, and all its ranks; node 0 is left, and 2 are needed: '
job 1:3 2
kill -9 "$(launcher 1)"
expect "137 1 1"
for k in 1 2; do
    says err$k "trireme run: node 0 (.*) is gone, and all its ranks and the job's store, without which no node goes on: "
done

# No restarts are left.
for k in 0 1; do node $k --nnodes 1:2 sh -c "echo up; exec sleep $mark"; done
until_says out0 up
until_says out1 up
kill -9 "$(launcher 2)"
expect "1 137"
says err0 'trireme run: node 1 (.*) is gone, and all its ranks: '

# A launcher and its ranks are killed, in whichever order. The group of node 1's ranks is broken, and so is that of its launcher.
job 2:3 1
# shellcheck disable=SC2046
kill -9 $(pgrep -P "$(launcher 2)") "$(launcher 2)"
expect "0 137 0"
says err0 '4 of 6 ranks are started again, on nodes 0 and 2, time 1 of 2'

# A signal stops all nodes: no ranks are started again.
job 1:3 1
kill -TERM "$(launcher 2)"
expect "143 143 143"
! grep -q 'started again' err0 err1 err2 || fail "ranks that were stopped are started again"

# ---- Launchers that are stopped, and go on ----

# Node 1 is given up as if it were lost, and finds that out. It may take part again.
for k in 0 1 2; do
    node $k --nnodes 2:3 --max-restarts 2 \
        sh -c "\"\$0\" where; [ \$TORCHELASTIC_RESTART_COUNT = 1 ] || exec sleep $mark; until [ -e done ]; do sleep 0.1; done" \
        "$where"
done
for k in 0 1 2; do until_says out$k "rank $k of 3: where: well"; done
kill -STOP "$(launcher 2)"
for k in 0 2; do
    until_says err$k 'node 1 (.*) is gone, and all its ranks: .* waited 30 s for rank 1 '
    until_says err$k '2 of 3 ranks are started again, on nodes 0 and 2, time 1 of 2'
done
until_says out2 'rank 1 of 2: where: well'
kill -CONT "$(launcher 2)"
until_says err1 'node 1 (.*) said nothing for so long that the others have given it up: '
until_says err1 'the job has begun without node 1, which waits until the ranks are started again'
touch done
expect "0 1 0"
says err1 'trireme run: .* is gone, or the job has ended'
rm done

# Without node 0 no node goes on, not even itself.
job 1:3 1
kill -STOP "$(launcher 1)"
for k in 1 2; do until_says err$k 'node 0 (.*) is gone, and all its ranks and the job.s store, without which no node goes on'; done
kill -CONT "$(launcher 1)"
expect "1 1 1"
says err0 'trireme run: node 0 (.*) said nothing for so long that the others have given it up and the job.s store, without which '

# ---- While the nodes meet ----

# Node 1 goes again, and another launcher takes its place; node 2 is needed, and comes later.
node 0 --nnodes 3:4 --rendezvous-timeout 100 true
node 1 --nnodes 3:4 --rendezvous-timeout 100 true
tries=0
until grep -q "$(printf ':%04X 00000000:0000 0A' $port)" /proc/net/tcp; do
    tries=$((tries + 1))
    [ $tries -lt 1200 ] || fail "node 0 never listens"
    sleep 0.05
done
kill -9 "$(launcher 2)"
node 1 --nnodes 3:4 --rendezvous-timeout 100 true
node 2 --nnodes 3:4 --rendezvous-timeout 100 true
node 3 --nnodes 3:4 --rendezvous-timeout 100 true
expect "0 137 0 0 0"

# Two of three are enough once node 0's time is up. The third comes later, and takes part from the next restart on.
for k in 1 0; do
    node $k --nnodes 2:3 --max-restarts 40 --rendezvous-timeout $((k * 100 + 20)) \
        sh -c 'echo "rank $RANK of $WORLD_SIZE"; [ $WORLD_SIZE = 3 ] || { until [ -e fail ]; do sleep 0.05; done; exit 5; }'
done
until_says err0 '2 ranks are started, on nodes 0 and 1, of up to 3 nodes'
node 2 --nnodes 2:3 --max-restarts 40 --rendezvous-timeout 100 sh -c 'echo "rank $RANK of $WORLD_SIZE"'
until_says err2 'the job has begun without node 2, which waits until the ranks are started again'
touch fail
expect "0 0 0"
says err0 '3 ranks are started again, on nodes 0, 1 and 2, time '
says out2 'rank 2 of 3'
rm fail

# Without restarts it is not waited for, and says so. Nor is anybody beyond a fixed number of nodes.
for late in 2 1; do
    nodes=2:3
    [ $late = 2 ] || nodes=2
    for k in 1 0; do
        node $k --nnodes $nodes --rendezvous-timeout $((k * 100 + 20)) sh -c 'echo up; until [ -e done ]; do sleep 0.05; done'
    done
    until_says out0 up
    until_says out1 up
    "$TRIREME" run --nnodes $nodes --node-rank $late --rendezvous $at sh -c true >out2 2>err2 && fail "it came too late, and ended well"
    says err2 "node $late comes too late: the job has begun, and takes no more nodes"
    touch done
    expect "0 0"
    rm done
done

# Too few have come.
node 0 --nnodes 3:4 --rendezvous-timeout 1 true
expect 1
says err0 'of 4 nodes, of which 3 are needed, nodes 1, 2 and 3 did not come within 1 s'

# What MIN and MAX are.
wrong() {
    code=0
    "$TRIREME" run --node-rank 0 --rendezvous $at --nnodes "$1" true >out0 2>err0 || code=$?
    [ $code = 2 ] || fail "--nnodes $1: exit code $code"
    grep -qF -e "$2" err0 || fail "--nnodes $1: no '$2'"
}
wrong 3:2 'trireme run: --nnodes 3:2: MIN is above MAX'
wrong 0:2 'trireme run: --nnodes takes a whole number from 1 to 65536, not "0"'
wrong :2 'trireme run: --nnodes takes a whole number from 1 to 65536, not ""'
wrong 2: 'trireme run: --nnodes takes a whole number from 1 to 65536, not ""'
wrong 1:2:3 'trireme run: --nnodes takes a whole number from 1 to 65536, not "2:3"'
wrong many 'trireme run: --nnodes takes a whole number from 1 to 65536, not "many"'
node 0 --nnodes 2:3 --rendezvous-timeout 60 true
node 1 --nnodes 1:3 --rendezvous-timeout 60 true
expect "1 1"
for k in 0 1; do says err$k 'the nodes disagree: node 1 (.*): 1 to 3 nodes, .*; node 0 (.*): 2 to 3 nodes, '; done

# ---- A training ----

# Node 1 is lost while a checkpoint is written, as far as that can be seen. What comes out is what a training on two ranks makes of
# the checkpoint that was there.
cat "$SOURCE"/include/trireme/*.h >text
options="--data text --layers 1 --heads 2 --dim 16 --context 16 --batch 6 --threads 1 --plain --steps 10000 --save-every 20"
# shellcheck disable=SC2016,SC2086
for k in 0 1 2; do
    node $k --nnodes 2:3 --max-restarts 1 \
        sh -c '[ $RANK$TORCHELASTIC_RESTART_COUNT != 01 ] || cp -r trained fresh; exec "$0" "$@"' "$TRIREME" train gpt $options --out trained
done
tries=0
until ls trained 2>/dev/null | grep -q '^checkpoint-'; do
    tries=$((tries + 1))
    [ $tries -lt 1200 ] || fail "never a checkpoint"
    sleep 0.05
done
tries=0
until [ -e trained/.checkpoint.tmp ] || [ $tries = 200 ]; do tries=$((tries + 1)); done
kill -9 "$(launcher 2)"
expect "0 137 0"
says err0 '2 of 3 ranks are started again, on nodes 0 and 2, time 1 of 1'
step=$(sed -n 's/.*Going on from step \([0-9]*\).*/\1/p' err0)
[ -n "$step" ] && [ "$step" -lt 10000 ] || fail "it did not go on from a checkpoint: $(cat err0)"
"$TRIREME" run -n 2 "$TRIREME" train gpt --resume --out fresh >out 2>err || fail "a fresh training: $(cat err)"
grep -q "Going on from step $step" err || fail "a fresh training began elsewhere: $(cat err)"
cmp -s fresh/checkpoint-10000/model.safetensors trained/checkpoint-10000/model.safetensors ||
    fail "other weights than of a training on two ranks from step $step"

# ---- Hosts that vanish ----

skip() { echo "hosts that vanish: skipped: $*"; exit 0; }
[ "$(id -u)" = 0 ] || skip "only root makes network namespaces"
bridge=trireme$$s
ip netns add $bridge 2>/dev/null || skip "network namespaces cannot be made here"
spaces=$bridge
ip -n $bridge link add bridge type bridge && ip -n $bridge link set bridge up || skip "there are no bridges"
for k in 0 1 2; do
    host=trireme$$h$k
    ip netns add $host
    spaces="$spaces $host"
    ip -n $host link add veth0 type veth peer name to$k netns $bridge
    ip -n $bridge link set to$k master bridge up
    ip -n $host addr add 10.79.0.$((k + 1))/24 dev veth0
    ip -n $host link set veth0 up
    ip -n $host link set lo up
done
at=10.79.0.1:29500

# Node 1 can reach nobody, and nobody says goodbye: all notice, and the ranks on both sides end. Node 1's launcher may take 80 s, if
# it misses node 2 first: 15 s for that, 5 s to ask node 0's store how the nodes meet, and 20 s each to ask how the job has ended, to
# say that it has come, and why it cannot take part.
for k in 0 1 2; do
    in="ip netns exec trireme$$h$k"
    node $k --nnodes 2:3 --max-restarts 1 sh -c "\"\$0\" where; [ \$TORCHELASTIC_RESTART_COUNT = 1 ] || exec sleep $mark" "$where"
done
for k in 0 1 2; do until_says out$k "rank $k of 3: where: well"; done
ip -n $bridge link set to1 nomaster
expect "0 1 0"
for k in 0 2; do
    says err$k 'node 1 (.*) is gone, and all its ranks: '
    says err$k '2 of 3 ranks are started again, on nodes 0 and 2, time 1 of 1'
done
says out2 'rank 1 of 2,'
