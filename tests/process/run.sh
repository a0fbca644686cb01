#!/bin/sh
# `trireme run` seen from outside: a killed rank ends the job and is named, a killed launcher leaves nothing behind, ^C is
# passed on once, and wrong usage is told from failure.
. "$SOURCE/tests/process/common"

# alive PID: is there such a process, zombies apart?
alive() { [ -r "/proc/$1/stat" ] && ! sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | grep -q '^[ZX]'; }

# all_gone PID…: waits for that.
all_gone() {
    for pid; do
        tries=0
        while alive "$pid"; do
            tries=$((tries + 1))
            [ $tries -lt 1200 ] || fail "process $pid is still there"
            sleep 0.05
        done
    done
}

milliseconds() { echo $(($(date +%s%N) / 1000000)); }

forever='sleep 1000 & echo child $!; echo rank $$; wait; while :; do sleep 0.1; done'

# A rank is killed; the others take no notice, neither of that nor of SIGTERM.
start -n 3 sh -c "trap '' TERM; $forever"
wait_for 3 rank
victim=$(number '^\[1\] rank')
everyone="$(number 'rank') $(number 'child')"
before=$(milliseconds)
kill -9 "$victim"
end
took=$(($(milliseconds) - before))
[ $code = 1 ] || fail "exit code $code for a killed rank"
[ $took -lt 30000 ] || fail "the job took $took ms to end" # not the 1000 s of its ranks
grep -q "^trireme run: rank 1 (pid $victim) was killed by signal 9 (Killed) after [0-9.]* s; its last lines:$" "$work/err" ||
    fail "the report does not name the rank and the signal"
all_gone $everyone

# The launcher is killed: the ranks go, and what they have started, in their groups or in sessions of its own.
guard_of() { grep -l "(trireme-guard) [^ZX] $1 " /proc/[0-9]*/stat 2>/dev/null | cut -d / -f 3; }
apart='setsid sh -c "echo child \$\$; setsid sleep 1000 & echo child \$!; wait" &'
start -n 2 sh -c "$apart $forever"
wait_for 2 rank
wait_for 6 child
everyone="$(number 'rank') $(number 'child')"
guard=$(guard_of "$job")
kill -9 "$job"
end
all_gone $everyone $guard

# The same after the guard was killed, twice: each time another one takes its place, and says so.
start -n 2 sh -c "$apart $forever"
wait_for 2 rank
wait_for 6 child
everyone="$(number 'rank') $(number 'child')"
for killed in 1 2; do
    old=$(guard_of "$job")
    kill -9 "$old"
    tries=0
    while guard=$(guard_of "$job"); [ -z "$guard" ] || [ "$guard" = "$old" ]; do
        tries=$((tries + 1))
        [ $tries -lt 1200 ] || fail "nobody takes the place of the guard"
        sleep 0.05
    done
done
kill -9 "$job"
end
all_gone $everyone $guard

# An interrupt is passed on once, to process groups that the terminal's own ^C does not reach.
start -n 2 sh -c 'n=0; trap "n=\$((n+1))" INT; echo rank $$; while [ $n = 0 ]; do sleep 0.05; done; sleep 0.3; echo got $n'
wait_for 2 rank
for pid in $(number rank); do
    [ "$(sed 's/.*) //' "/proc/$pid/stat" | cut -d ' ' -f 3)" = "$pid" ] || fail "rank $pid has no group of its own"
done
kill -INT "$job"
end
[ $code = 0 ] || fail "exit code $code after a clean stop"
[ "$(grep -c 'got 1$' "$work/out")" = 2 ] || fail "not each rank got one interrupt"

# Ranks that do not handle it die of it; a second one kills those that ignore it.
start -n 2 sh -c 'echo ready; exec sleep 1000'
wait_for 2 ready
kill -TERM "$job"
end
[ $code = 143 ] || fail "exit code $code after SIGTERM"
start -n 2 sh -c 'trap "echo no" INT; echo ready; while :; do sleep 0.05; done'
wait_for 2 ready
kill -INT "$job"
wait_for 2 no
sleep 0.3 # two at once from one process are one
kill -INT "$job"
end
[ $code = 130 ] || fail "exit code $code after two interrupts"

# One that is stopped gets it, too.
for sig in 1 2 3 15; do
    start -n 2 sh -c 'echo rank $$; exec sleep 1000'
    wait_for 2 rank
    pid=$(number '^.1. rank')
    kill -STOP "$pid"
    until grep -q '^State:.T' "/proc/$pid/status"; do sleep 0.01; done
    kill -$sig "$job"
    end
    [ $code = $((128 + sig)) ] || fail "exit code $code after signal $sig, with a rank that is stopped"
done

# One of them exits with a code of its own, before or after the other dies of the signal: stopped. Another signal: failed.
for order in 0 1; do
    for how in 'exit 1' 'kill -SEGV $$'; do
        rm -f "$work/ended"
        start -n 2 sh -c 'last=$0 work=$1
            finish() { [ "$RANK" != "$last" ] || until [ -e "$work/ended" ]; do sleep 0.02; done; }
            if [ $RANK = 0 ]; then trap "finish; $2" TERM; else trap "finish; trap - TERM; kill \$\$" TERM; fi
            echo "rank $$"
            while :; do sleep 0.02; done' $order "$work" "$how"
        wait_for 2 rank
        first=$(number "^.$((1 - order)). rank")
        kill -TERM "$job"
        all_gone "$first"
        sleep 0.1 # until the launcher has seen it, too
        touch "$work/ended"
        end
        [ "$how$code" = 'exit 1143' ] || [ "$how$code" = 'kill -SEGV $$1' ] || fail "exit code $code after SIGTERM and $how"
    done
done

# A rank is a launcher in its turn, and is killed: what its own ranks have started goes, too, also when its guard is too slow.
cat >"$work/nest.sh" <<'END'
trap "" TERM
sleep 1000 & echo "child $!"
sleep 1000 & echo "child $!"
wait
END
start -n 2 sh -c 'echo "rank$RANK $$"
    [ "$RANK" = 0 ] || exec "$0" run -n 2 sh "$1"
    until [ -e "$2" ]; do sleep 0.05; done; exit 5' "$TRIREME" "$work/nest.sh" "$work/go"
wait_for 4 child
inner=$(number 'rank1')
guard=$(guard_of "$inner")
kill -STOP "$guard"
touch "$work/go"
end
[ $code = 1 ] || fail "exit code $code for a failed rank beside a launcher"
all_gone $(number child) $guard

# The end of stdin stops, and kills those that take no notice; ^C in it stops, and waits for them.
stubborn='trap "echo asked" TERM; echo "rank $$"; until [ -e "$0" ]; do sleep 0.05; done; echo saved'
mkfifo "$work/stdin" # read from last: it opens when the output of before is gone
"$TRIREME" run --stop-on-eof --grace 2 -n 1 sh -c "$stubborn" "$work/never" >"$work/out" 2>"$work/err" <"$work/stdin" &
job=$!
exec 3>"$work/stdin"
wait_for 1 rank
exec 3>&-
end
[ $code = 143 ] && grep -q asked "$work/out" || fail "exit code $code after the end of stdin"
all_gone $(number rank)
"$TRIREME" run --stop-on-eof --grace 0.1 -n 1 sh -c "$stubborn" "$work/save" >"$work/out" 2>"$work/err" <"$work/stdin" &
job=$!
exec 3>"$work/stdin"
wait_for 1 rank
printf '\003' >&3
wait_for 1 asked
sleep 0.5
touch "$work/save"
end
exec 3>&-
[ $code = 0 ] && grep -q saved "$work/out" || fail "exit code $code after ^C from stdin"

# Its second signal must not be taken for the first: with a short grace, and when stdin ends right behind a ^C.
for stdin in 0.05: 0.3:'\003'; do
    { sleep 0.5; printf "${stdin#*:}"; } | timeout 60 "$TRIREME" run --stop-on-eof --grace "${stdin%%:*}" -n 1 sh -c "$stubborn" \
        "$work/never" >"$work/out" 2>&1 && fail "it ended well" || code=$?
    [ $code = 143 ] || fail "exit code $code after $stdin and the end of stdin: the rank was not killed"
    all_gone $(number rank)
done

# A stdout that does not block, as dd leaves it, loses nothing when its reader is slow.
{ dd if=/dev/null oflag=nonblock 2>/dev/null && "$TRIREME" run -n 1 seq 100000; } | { sleep 0.5; wc -l; } >"$work/out"
[ "$(cat "$work/out")" = 100000 ] || fail "only $(cat "$work/out") of 100000 lines arrived"

# Without a stdin of its own it gives its ranks an empty one.
"$TRIREME" run -n 2 sh -c '[ -e /proc/$$/fd/0 ] && cat' <&- >"$work/out" 2>&1 || fail "no stdin in a rank of a launcher without"

# Whoever reads the output goes away.
"$TRIREME" run -n 2 sh -c 'echo "rank $$"; yes' 2>/dev/null | head -n 1 >"$work/out"
all_gone $(number rank)

# A Python program is run by the first python3 of PATH, unless it can be executed itself.
echo 'import os, sys; print("rank", os.environ["RANK"], sys.argv[1:])' >"$work/train.py"
"$TRIREME" run -n 2 "$work/train.py" -n 'two words' >"$work/out" || fail "a Python program did not run"
grep -qxF "[1] rank 1 ['-n', 'two words']" "$work/out" || fail "a Python program did not get its arguments"
printf '#!/bin/sh\necho "itself $1"\n' >"$work/train.py"
chmod +x "$work/train.py"
"$TRIREME" run "$work/train.py" word | grep -qxF '[0] itself word' || fail "an executable .py was not executed"

# Exit codes: 0, 1 for a job that failed, 2 for wrong usage.
expect() { # CODE MESSAGE ARGUMENT…
    want=$1 message=$2
    shift 2
    code=0
    "$TRIREME" "$@" >"$work/out" 2>"$work/err" || code=$?
    [ $code = "$want" ] || fail "exit code $code instead of $want: trireme $*"
    cat "$work/out" "$work/err" | grep -qF -e "$message" || fail "no \"$message\": trireme $*"
}
expect 0 "[1] hello" run -n 2 echo hello
expect 0 "hello" run --no-prefix -- echo hello
expect 0 "Usage: trireme run [OPTION…] PROGRAM [ARGUMENT…]" run --help
expect 0 "trireme 0." --version
expect 1 "trireme run: rank 1 (pid " run -n 2 sh -c '[ $RANK = 0 ] || exit 3'
expect 1 "trireme run: cannot run ./prgram: No such file or directory" run -n 2 ./prgram
expect 1 "trireme run: cannot run ./none.py: No such file or directory" run -n 2 ./none.py
expect 2 "trireme run: --node-rank and --rendezvous are for jobs on several machines" run --node-rank 1 echo
expect 2 "trireme run: --nnodes 3:2: MIN is above MAX" run --nnodes 3:2 echo
expect 2 "trireme run: --min-ranks 2, but without --max-restarts no ranks are started again" run -n 3 --min-ranks 2 echo
expect 2 "trireme cluster start: --min-ranks 2, but without --max-restarts" cluster start --slots 3 --min-ranks 2 echo
expect 2 "trireme: say what to do: run, cluster, train, "
expect 2 "did you mean run?" rnu
expect 2 "trireme run: unknown option --rank: did you mean --ranks?" run --rank 2 echo
expect 2 "trireme run: -n takes a whole number from 1 to 4096, not \"many\"" run -n many echo
expect 2 "trireme run: something is missing: trireme run PROGRAM [ARGUMENT…]" run -n 2
