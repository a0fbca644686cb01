#!/bin/sh
# `trireme why` from outside: it names a stopped rank among three within a second, the job then goes on and ends well; and
# when a rank is killed, the others leave their records behind.
. "$SOURCE/tests/process/common"
shown="out err why"
why() { "$TRIREME" why "$@" >"$work/why" 2>&1; }
# why_says JOB PATTERN…: waits until it says all of that, as its ranks may still be on their way to where they wait.
why_says() {
    asked=$1 tries=0
    shift
    until why "$asked" && says_all "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || fail "trireme why never says all of: $*"
        sleep 0.1
    done
}
says_all() {
    for pattern; do grep -qE -e "$pattern" "$work/why" || return 1; done
}
says() { grep -qE -e "$1" "$work/why" || fail "trireme why does not say \"$1\""; }
stopped() { grep -q '^State:.T' "/proc/$1/status"; }

# Rank 2 stops itself before its call number 18.
start -n 3 --job "why-$$" "$BUILD/process/turns" "$work/over" 18
wait_for 3 'rank . is'
pid=$(number 'rank 2 is')
tries=0
until stopped "$pid"; do
    tries=$((tries + 1))
    [ $tries -lt 1200 ] || fail "rank 2 does not stop"
    sleep 0.05
done
why_says "why-$$" "rank 0 .*, waits for rank 2$" "rank 1 .*, waits for rank 2$" "=> rank 2 \(pid $pid, stopped\) is what ranks 0 and 1 wait for: "
for asked in "why-$$" "$job" "$pid"; do
    why "$asked" || fail "exit code $? for job $asked"
    says "^job why-$$ on host "
    says "rank 0 \(pid [0-9]*\) *in all_reduce #18 \(sum of f32\[1\] at .*turns.c:[0-9]*\) for .* s, waits for rank 2$"
    says "rank 2 \(pid $pid, stopped\) *in no call for .* s; its last was all_reduce #17 "
    says "=> rank 2 \(pid $pid, stopped\) is what ranks 0 and 1 wait for: it has not entered all_reduce #18 \(sum of f32"
done
why || fail "exit code $? without a job"
says "^job why-$$ "
! why no-such-job || fail "a job that is not there was found"
says "trireme why: there is no job 'no-such-job' of this user on this host; there is: .*why-$$"

kill -CONT "$pid"
touch "$work/over"
end
[ $code = 0 ] || fail "exit code $code of a job that was stopped for a while"
[ "$(grep -c 'ended$' "$work/out")" = 3 ] || fail "not all ranks ended well"
! why "why-$$" || fail "a job that is over was found"

# Two groups, in which two ranks call in different orders.
start -n 2 --job "crossed-$$" "$BUILD/process/crossed"
wait_for 2 'rank . is'
zero=$(number 'rank 0 is')
one=$(number 'rank 1 is')
why_says "crossed-$$" "=> rank 0 \(pid $zero\) waits in all_reduce #1 .* of group 'world.1-0' for rank 1 \(pid $one\), which waits in all_reduce #1 .* of group 'world.2-0' for rank 0 \(pid $zero\): ranks must make their calls in groups that they share in one order "
[ "$(grep -c '=>' "$work/why")" = 1 ] || fail "something else is named, too"
kill "$job"
end

# Remote calls: the worker that a distributed step waits for is stopped, then the trainer that the worker's tr_rpc_stop() waits for.
rm "$work/over"
start -n 2 --job "remote-$$" "$BUILD/process/remote" "$work/over"
wait_for 2 'rank . is'
wait_for 1 'rank 0 trains'
pid=$(number 'rank 1 is')
kill -STOP "$pid"
why_says "remote-$$" "^  rpc of 'world' \(native\): 2 of 2 ranks are on this host$" \
    "rank 0 \(pid [0-9]*\) *in (rpc [^ ]* on \"back\"|distributed (backward|step on \"back\")) for .* s, waits for rank 1$" \
    "=> rank 1 \(pid $pid, stopped\) is what rank 0 waits for: "
kill -CONT "$pid"
front=$(number 'rank 0 is')
kill -STOP "$front"
why_says "remote-$$" "rank 1 \(pid $pid\) *in tr_rpc_stop\(\) for .* s, waits for rank 0$" \
    "=> rank 0 \(pid $front, stopped\) is what rank 1 waits for: tr_rpc_stop\(\) needs it "
kill -CONT "$front"
touch "$work/over"
end
[ $code = 0 ] || fail "exit code $code of a job of remote calls"

# A trainer that exits without tr_rpc_stop(), even with 0, is no success.
start -n 2 "$BUILD/process/remote" "$work/over" gone
wait_for 2 'rank . is'
pid=$(number 'rank 0 is')
end
[ $code != 0 ] || fail "exit code 0 without the trainer's end"
grep -q "tr_rpc_stop: worker 0 (\"front\", pid $pid) died, or exited without tr_rpc_stop()" "$work/err" ||
    fail "rank 1 does not say who was lost"

# One is killed: the others write down what they were at.
rm "$work/over"
start -n 3 --job crash --flight-dir "$work/flight" "$BUILD/process/turns" "$work/over"
wait_for 3 'rank . is'
kill -9 "$(number 'rank 1 is')"
end
[ $code = 1 ] || fail "exit code $code of a job with a killed rank"
for rank in 0 2; do
    text=$work/flight/crash-rank$rank-world.txt
    [ -s "$text" ] && [ -s "$work/flight/crash-rank$rank-world.trace.json" ] || fail "rank $rank has left no record"
    grep -q "failed: .*rank 1 (pid [0-9]*) died" "$text" || fail "the record of rank $rank does not say why"
    grep -q 'all_reduce #[0-9]* (sum of f32\[1\] at .*turns.c:' "$text" || fail "no call in the record of rank $rank"
done
[ "$(find "$work/flight" -type f | wc -l)" = 4 ] || fail "other files than the survivors' records"
