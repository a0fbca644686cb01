#!/bin/sh
# A rank that stands still, seen at the terminal of `trireme run` and `trireme train`: after ten seconds it is said who waits for
# whom, in which call; --timeout says when that is an error, also while ranks join.
# ctest: timeout=240
. "$SOURCE/tests/process/common"
cd "$work"
cat "$SOURCE"/include/trireme/*.h >text
tiny="--data text --layers 1 --heads 2 --dim 16 --context 16 --batch 4 --threads 1 --plain --steps 100000000"

wait_until() { # COMMAND…
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 1200 ] || fail "never: $*"
        sleep 0.05
    done
}
says() { grep -qE -e "$1" err; }
pid_of() { "$TRIREME" why "$job" | sed -n "s/^ *rank $1 (pid \([0-9]*\).*/\1/p"; }
stop_rank() { # RANK: once it trains, in one of the two collectives of a step; its number comes in $pid
    wait_until says '^(\[0\] )?step 1/'
    pid=$(pid_of "$1")
    kill -STOP "$pid"
}
others_wait() { "$TRIREME" why "$job" | grep -q '(pid [0-9]*, stopped) is what ranks 0 and 1 wait for'; }
train() { # ARGUMENT…
    : >err
    env --default-signal=INT "$TRIREME" train gpt $tiny --ranks 2 "$@" >out 2>err &
    job=$!
}

# Rank 2 stops itself before its call number 18, and is continued when that was said: once, and the job goes on. The others are
# stopped, too, as by a debugger, when ten seconds are over: it is said when they wait again.
start -n 3 --job "stalls-$$" "$BUILD/process/turns" "$work/over" 18
wait_for 3 'rank . is'
pid=$(number 'rank 2 is')
wait_until others_wait
others="$(number 'rank 0 is') $(number 'rank 1 is')"
kill -STOP $others
sleep 13
kill -CONT $others
wait_until says '^trireme run: '
says "^trireme run: group 'world': rank 2 \(pid $pid, stopped\) is what (ranks 0 and 1 wait|rank [01] waits) for: it has not entered all_reduce #18 \(sum of f32\[1\] at .*turns.c:[0-9]*\) \(for [0-9.]* s\); .trireme why stalls-$$. tells of every rank$" ||
    fail "something else was said"
kill -CONT "$pid"
touch over
end
[ $code = 0 ] || fail "exit code $code of a job that was stopped for a while"
[ "$(grep -c '^trireme run' err)" = 1 ] || fail "it was said again"

# So it is with remote calls.
rm over
start -n 2 --job "remote-$$" "$BUILD/process/remote" "$work/over"
wait_for 2 'rank . is'
wait_for 1 'rank 0 trains'
pid=$(number 'rank 1 is')
kill -STOP "$pid"
wait_until says '^trireme run: '
says "^trireme run: rpc of 'world': rank 1 \(pid $pid, stopped\) is what rank 0 waits for: .* \(for [0-9.]* s\)" ||
    fail "something else was said"
kill -CONT "$pid"
touch over
end
[ $code = 0 ] || fail "exit code $code of a job of remote calls"

# Training tells the same, by its launcher alone; an interrupt wakes the rank, and what was learned is saved.
train --out woken
stop_rank 1
wait_until says '^trireme train gpt: '
says "^trireme train gpt: group '.*': rank 1 \(pid $pid, stopped\) is what rank 0 waits for: .*all_(reduce|gather) #[0-9]+ \(.*\) \(for [0-9.]* s\)" ||
    fail "something else was said"
kill -INT "$job"
end
[ $code = 130 ] && ls woken | grep -q '^checkpoint-' || fail "exit code $code, $(ls woken)"
[ "$(grep -c 'trireme train' err)" = 1 ] || fail "more was said"

# Where no launcher of ours watches, the rank that waits says it.
: >err
"$TRIREME" run -n 2 --job "alone-$$" env -u TRIREME_LAUNCH "$TRIREME" train gpt $tiny --out alone >out 2>err &
job=$!
stop_rank 1
wait_until says '^\[0\] trireme train gpt: '
says "^\[0\] trireme train gpt: group '.*': rank 0 has waited 10 s in all_(reduce|gather) #[0-9]+ \(.*\) for rank 1 \(pid $pid\)" ||
    fail "something else was said"
kill -KILL "$pid"
end

# The time that a rank waits, in a collective and to join.
train --timeout 5 --out late
stop_rank 1
end
[ $code = 1 ] && says "^trireme train gpt: all_(reduce|gather) .*: rank 0 waited 5 s for rank 1 \(pid $pid\)" || fail "exit code $code with --timeout 5"
start -n 2 --timeout 5 "$BUILD/process/turns" "$work/never" 18
end
[ $code = 1 ] && grep -q 'rank 0 waited 5 s for rank 1' err || fail "exit code $code of run --timeout 5"
start -n 2 --timeout 3 sh -c '[ $RANK = 0 ] || exec sleep 1000; exec "$0" "$1"' "$BUILD/process/turns" "$work/never"
end
[ $code = 1 ] && grep -q 'of 2 ranks, rank 1 did not join within 3 s' err || fail "exit code $code while ranks join"
