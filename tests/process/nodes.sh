#!/bin/sh
# `trireme run` on several nodes, which here are all this machine: who is who, that all tell the same first cause, and that
# a job which cannot come about says why. ctest: timeout=240
. "$SOURCE/tests/process/common"
cd "$work"
port=$((20000 + $$ % 10000))
while grep -q "$(printf ':%04X ' $port)" /proc/net/tcp /proc/net/tcp6 2>/dev/null; do port=$((port + 1)); done
at=127.0.0.1:$port nodes=2 pids=
at_end() { for pid in $pids; do kill -9 "$pid" 2>/dev/null || :; done; }
shown="out0 out1 err0 err1"
TRIREME_TOKEN=a-secret-of-the-tests
export TRIREME_TOKEN

# node RANK ARGUMENT…: a launcher in the background, with outRANK and errRANK. codes: waits for all, in their order.
node() {
    rank=$1
    shift
    : >"out$rank" # what the job before has said is not this one's
    "$TRIREME" run --nnodes $nodes --node-rank "$rank" --rendezvous $at --rendezvous-timeout 60 "$@" >"out$rank" 2>"err$rank" </dev/null &
    pids="$pids $!"
}
codes() {
    said=
    for pid in $pids; do
        code=0
        wait "$pid" || code=$?
        said="$said $code"
    done
    pids=
}
# expect CODES: of the launchers.
expect() {
    codes
    [ "$said" = " $1" ] || fail "exit codes$said, not $1"
}
# lines FILE COUNT: waits until it has so many.
lines() {
    tries=0
    until [ "$(wc -l <"$1")" -ge "$2" ]; do
        tries=$((tries + 1))
        [ $tries -lt 1200 ] || fail "$1 never has $2 lines"
        sleep 0.05
    done
}
# gone MARK: no process that was started with this argument is left.
gone() {
    ! pgrep -f "$1" >left || fail "left behind: $(cat left)"
}

# Ranks of node 0 come first; nodes may have different numbers of them.
show='echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR:$MASTER_PORT $TRIREME_STORE'
node 0 -n 2 sh -c "$show"
node 1 -n 3 --log-dir logs/new sh -c "$show; echo again >&2"
expect "0 0"
printf '[0] 0/5 0/2 0 %s 1\n[1] 1/5 1/2 0 %s 1\n' $at $at >want
sort out0 | cmp -s - want || fail "node 0 said $(cat out0)"
printf '[2] 2/5 0/3 1 %s 1\n[3] 3/5 1/3 1 %s 1\n[4] 4/5 2/3 1 %s 1\n' $at $at $at >want
sort out1 | cmp -s - want || fail "node 1 said $(cat out1)"
for rank in 2 3 4; do
    sort logs/new/rank-$rank.log >log
    printf '%s/5 %s/3 1 %s 1\nagain\n' $rank $((rank - 2)) $at >want
    cmp -s log want || fail "the log of rank $rank: $(cat log)"
done

# The ranks are one group, whichever launcher comes first, and the secret may come from a file or from stdin.
node 1 -n 2 sh -c 'exec "$0" where' "$BUILD/process/collectives"
(umask 077 && echo "$TRIREME_TOKEN" >secret)
{ echo "$TRIREME_TOKEN"; echo "for rank 0"; } >stdin
env -u TRIREME_TOKEN "$TRIREME" run -n 2 --nnodes 2 --rendezvous $at --token-file - \
    sh -c '[ $RANK = 1 ] || cat; exec "$0" where' "$BUILD/process/collectives" <stdin >out0 2>err0 & pids="$pids $!"
expect "0 0"
grep -q 'for rank 0' out0 || fail "rank 0 did not get the rest of stdin"
grep -q 'rank 3 of 4' out1 || fail "no rank 3 of 4"

# A rank that cannot be started is counted among those of all nodes.
node 0 -n 2 sh -c 'sleep 60'
(ulimit -n 48 && exec "$TRIREME" run --nnodes 2 --node-rank 1 --rendezvous $at -n 40 sh -c 'sleep 60') >out1 2>err1 </dev/null & pids="$pids $!"
expect "1 1"
grep -q 'trireme run: node 1 (.*): launch: rank [0-9]* of 42: .*ulimit -n' err0 || fail "node 0 does not say which rank"

# A rank that is killed is the first cause on both nodes, and nothing is left.
mark=$((1000000 + $$))
node 0 -n 2 sh -c "sleep $mark"
node 1 -n 2 sh -c "echo last words; [ \$RANK = 2 ] || kill -9 \$\$; sleep $mark"
expect "1 1"
for k in 0 1; do
    grep -q 'trireme run: node 1 (.*): rank 3 (pid .*) was killed by signal 9 (Killed)' err$k || fail "node $k"
    grep -q 'last words' err$k || fail "node $k does not have the last lines"
done
gone "sleep $mark"

# Rank 0 fails by itself after rank 1's death: that is a consequence.
node 0 sh -c "until grep -qs '^State:.Z' /proc/\$(cat dead 2>/dev/null)/status; do sleep 0.02; done; sleep 0.2; exit 5"
node 1 sh -c "echo \$\$ >new; mv new dead; kill -SEGV \$\$"
expect "1 1"
for k in 0 1; do grep -q 'node 1 (.*): rank 1 (pid .*) was killed by signal 11' err$k || fail "node $k"; done

# Rank 1 has lost rank 0, who fails after it.
node 0 sh -c "until [ -e lost ]; do sleep 0.02; done; exit 5"
node 1 sh -c "touch lost; exit 69"
expect "1 1"
for k in 0 1; do grep -q 'node 0 (.*): rank 0 (pid .*) exited with 5' err$k || fail "node $k names the rank that lost another"; done

# Rank 2 exits with 0 while all others need it.
node 0 -n 2 sh -c 'echo "rank 2 is gone"; exit 69'
node 1 -n 2 sh -c '[ $RANK = 2 ] || exit 69'
expect "1 1"
for k in 0 1; do
    grep -q 'node 1 (.*): rank 2 exited with 0, though others still needed it: node [01] .* exited with 69' err$k ||
        fail "node $k does not name the rank that exited with 0"
done

# All nodes start their ranks again after one has failed, though these have met at the same store before. It fails when all have said
# that they met: soon after that the others are ended.
for k in 0 1; do
    node $k -n 2 --max-restarts 2 sh -c '"$0" where; touch met$RANK; [ $RANK != 3 ] || [ $TORCHELASTIC_RESTART_COUNT = 1 ] ||
        { until [ -e met0 ] && [ -e met1 ] && [ -e met2 ]; do sleep 0.02; done; exit 5; }' "$BUILD/process/collectives"
done
expect "0 0"
for k in 0 1; do
    [ "$(grep -c "rank $((2 * k)) of 4, local" out$k)" = 2 ] || fail "rank $((2 * k)) did not meet the others twice: $(cat out$k err$k)"
    grep -q 'node 1 (.*): rank 3 (pid .*) exited with 5' err$k || fail "node $k does not say why it starts again"
    grep -q 'all ranks are started again, time 1 of 2' err$k || fail "node $k does not say that it starts again"
done
for k in 0 1; do node $k --max-restarts 1 sh -c '[ $RANK = 0 ] || exit 5; exec sleep 1000'; done
expect "1 1"
for k in 0 1; do [ "$(grep -c 'rank 1 (pid .*) exited with 5' err$k)" = 2 ] || fail "node $k: $(cat err$k)"; done
# With one rank fewer on the node where one failed, but not without a node.
for k in 0 1; do
    node $k -n 2 --max-restarts 3 --min-ranks 1 sh -c '"$0" where; [ $GROUP_RANK = 0 ] || [ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 5' \
        "$BUILD/process/collectives"
done
expect "0 0"
for k in 0 1; do
    grep -q '3 of 4 ranks are started again, time 1 of 3' err$k || fail "node $k does not shrink: $(cat err$k)"
    grep -q 'all ranks are started again, time 2 of 3' err$k || fail "node $k: $(cat err$k)"
    grep -q "rank $((2 * k)) of 3, local" out$k || fail "node $k: other ranks: $(cat out$k)"
done
node 0 --max-restarts 1 --min-ranks 1 true
node 1 --max-restarts 1 --min-ranks 2 true
expect "1 1"
for k in 0 1; do grep -q 'the nodes disagree: node 1 (.*):.*, .min_ranks 2,.*; node 0 (.*):.*, .min_ranks 1,' err$k || fail "node $k: $(cat err$k)"; done
node 0 --max-restarts 2 true
node 1 --max-restarts 3 true
expect "1 1"
for k in 0 1; do grep -q 'the nodes disagree: node 1 (.*):.*, .max_restarts 3,.*; node 0 (.*):.*, .max_restarts 2,' err$k || fail "node $k: $(cat err$k)"; done
node 0 --max-restarts 2 sh -c "sleep $mark"
node 1 --max-restarts 2 ./missing
expect "1 1"
! grep -q 'started again' err0 err1 || fail "ranks that cannot be started are started again"
gone "sleep $mark"

# A launcher is killed.
for victim in 1 0; do
    node 0 sh -c "echo up; sleep $mark"
    node 1 sh -c "echo up; sleep $mark"
    lines out0 1
    lines out1 1
    # shellcheck disable=SC2086
    set -- $pids
    eval "kill -9 \$$((victim + 1))"
    codes
    other=$((1 - victim))
    grep -q "node $victim (.*) is gone" err$other || fail "the launcher of node $victim was killed"
    until_gone "sleep $mark"
done

# A signal to one launcher stops the ranks of all.
node 0 sh -c "trap 'echo bye; exit 143' TERM; echo up; sleep $mark & wait"
node 1 sh -c "trap 'echo bye; exit 143' TERM; echo up; sleep $mark & wait"
lines out0 1
lines out1 1
kill -TERM "${pids##* }"
expect "143 143"
for k in 0 1; do
    grep -q bye out$k && grep -q 'stopped by signal 15' err$k || fail "node $k was not asked to stop"
done
gone "sleep $mark"

# One that comes to both, by whichever way first, is one.
rm -f save
for k in 0 1; do
    node $k sh -c "trap 'echo asked; until [ -e save ]; do sleep 0.05; done; echo saved; exit 0' TERM; echo up; sleep $mark & wait"
done
lines out0 1
lines out1 1
kill -TERM "${pids##* }"
lines out0 2
lines out1 2
# shellcheck disable=SC2086
set -- $pids
kill -TERM "$1"
sleep 0.3
touch save
expect "0 0"
for k in 0 1; do grep -q saved out$k || fail "node $k was killed"; done
gone "sleep $mark"

# One node cannot run the program.
node 0 sh -c "sleep $mark"
node 1 ./missing
expect "1 1"
for k in 0 1; do grep -q 'node 1 (.*): cannot run ./missing: No such file' err$k || fail "node $k"; done
gone "sleep $mark"

# ---- Jobs that cannot come about ----

# refuses MESSAGE ARGUMENT…: a launcher alone.
refuses() {
    message=$1
    shift
    ! "$TRIREME" run "$@" true >out0 2>err0 || fail "it took: $*"
    grep -qF -e "$message" err0 || fail "no \"$message\": $*"
}
refuses 'a .node_rank of 2 is not in 0 … 1' --nnodes 2 --node-rank 2 --rendezvous $at
refuses "meet at a .rendezvous of host:port, not at 'nowhere'" --nnodes 2 --rendezvous nowhere
refuses '--nnodes says how many' --rendezvous $at
refuses 'node 0 of 3 at 127.0.0.1:' --nnodes 3 --rendezvous $at --rendezvous-timeout 0.5
refuses 'of 3 nodes, nodes 1 and 2 did not come within 0.5 s' --nnodes 3 --rendezvous $at --rendezvous-timeout 0.5
refuses "node 0, whose launcher serves there, did not come within 0.5 s" --nnodes 2 --node-rank 1 --rendezvous $at --rendezvous-timeout 0.5
chmod 644 secret
refuses 'others may read the secret' --nnodes 2 --rendezvous $at --token-file secret
(unset TRIREME_TOKEN; refuses 'needs a secret' --nnodes 2 --rendezvous $at)

node 0 true
TRIREME_TOKEN=another node 1 true
set -- $pids
wait "$2" && fail "a wrong token ended well"
kill "$1"
codes
grep -q "token" err1 || fail "a wrong token"

# Whoever cannot take part says why, and nobody waits for it.
listening() { # until node 0 does
    tries=0
    until grep -q "$(printf ':%04X 00000000:0000 0A' "${at##*:}")" /proc/net/tcp; do
        tries=$((tries + 1))
        [ $tries -lt 1200 ] || fail "node 0 never listens"
        sleep 0.05
    done
}
nodes=3
node 0 true
nodes=2
listening
node 1 true
expect "1 1"
for k in 0 1; do grep -q 'the nodes disagree: node 1 (.*): 2 nodes, .*; node 0 (.*): 3 nodes, ' err$k || fail "other numbers of nodes"; done
nodes=3
shown="out0 out1 out3 err0 err1 err3"
for wrong in "3 true" "2 -n 2 --job a/b true"; do
    node 0 true
    node 1 true
    listening
    # shellcheck disable=SC2086
    "$TRIREME" run --nnodes 3 --rendezvous $at --node-rank $wrong >out3 2>err3 </dev/null && fail "it took --node-rank $wrong"
    expect "1 1"
    for k in 0 1; do
        grep -q "node ${wrong%% *} (.*) cannot take part: launch: a" err$k || fail "node $k does not know why --node-rank $wrong fails"
    done
done
nodes=2

node 0 true
node 1 /bin/sh -c true
codes
for k in 0 1; do
    grep -q 'the nodes disagree: node 1 (.*): a program of [0-9]* bytes; node 0 (.*): a program of [0-9]* bytes' err$k || fail "other programs: $k"
done

nodes=3
node 0 true
node 1 true
! "$TRIREME" run --nnodes 3 --node-rank 1 --rendezvous $at --rendezvous-timeout 60 true >out 2>err || fail "two of one rank"
codes
cat err err1 >both
grep -q 'node 1 is taken: process' both || fail "two nodes of one rank: $(cat both)"
grep -q 'node 1 is taken: process' err0 || fail "node 0 does not know that two have one rank: $(cat err0)"
