#!/bin/sh
# `trireme bench tune` measures a table that jobs take; `trireme algorithms` and `trireme bench predict` show what is in it.
. "$SOURCE/tests/process/common"
cd "$work"

# What is printed can be given back, in every way, and is printed again just so.
"$TRIREME" algorithms >built-in || fail "exit code $?"
[ "$(tail -n 1 built-in | cut -d ' ' -f 1)" = network ] || fail "no network: $(cat built-in)"
! "$TRIREME" algorithms >/dev/full 2>err || fail "a disk is full, and all is well"
grep -q 'cannot write to stdout: No space left' err || fail "no word about the disk"
"$TRIREME" algorithms 'all_reduce ranks 2- bytes 0- ring # only rings' >rows || fail "exit code $?"
[ "$(grep all_reduce rows)" = "all_reduce ranks 2- bytes 0- ring" ] || fail "rows that never count: $(cat rows)"
TRIREME_ALGORITHMS=@rows "$TRIREME" algorithms >again && cmp rows again || fail "not the same again"
"$TRIREME" algorithms "$(cat rows)" >again && cmp rows again || fail "not the same again"
"$TRIREME" algorithms --ranks 32 >some || fail "exit code $?"
[ "$(grep -c all_reduce some)" = 3 ] && ! grep -v 'ranks 32 \|^network' some || fail "not for 32 ranks: $(cat some)"

# refuses MESSAGE COMMAND…
refuses() {
    message=$1
    shift
    ! "$TRIREME" "$@" >out 2>err || fail "it took: $*"
    grep -qF -e "$message" err || fail "no \"$message\": $* says $(cat err)"
    [ "$(grep -c '^trireme' err)" = 1 ] || fail "not one message: $*"
}
printf '# a table\n\nall_reduce ranks 2- bytes 0-64Q ring\n' >bad
refuses "bad, line 3: 'all_reduce ranks 2- bytes 0-64Q ring' is no row: '0-64Q' are no bytes" algorithms @bad
refuses 'the table of algorithms nowhere: No such file' algorithms @nowhere
refuses "there is no barrier by 'tree'" algorithms 'barrier ranks 2- bytes 0- tree'
refuses '--bytes begin at 64, not at 4' bench tune --bytes 4,64
refuses 'cannot write nowhere/table' bench tune --ranks 2 --bytes 64 --budget 0.1 --output nowhere/table
[ ! -s out ] || fail "it measures what it cannot write"
refuses '--ranks go to 4096, not to 8192' bench predict --ranks 2,8K

# A table of what is measured here: for this number of ranks, and for more.
"$TRIREME" bench tune --ranks 2 --bytes 64,16K --budget 0.1 -o table --json r.json >out 2>err || fail "exit code $?"
grep -q '^all_reduce ranks 2 bytes' table && grep -q '^all_reduce ranks .*- bytes' table || fail "$(cat table)"
grep -q 'predictions are off by a factor of' out || fail "no word about predictions"
documented r.json 'bench tune'
for key in kind algorithm bytes median_us predicted_us; do
    [ "$(grep -c "\"$key\":" r.json)" = 40 ] || fail "not 40 of $key: $(cat r.json)"
done
"$TRIREME" algorithms @table >printed || fail "its own table is refused"
grep '^network' table >wanted && grep '^network' printed >got && cmp wanted got || fail "another network"
TRIREME_ALGORITHMS=@table "$TRIREME" run --ranks 2 "$BUILD/process/collectives" >out 2>err || fail "a job does not take it"
TRIREME_ALGORITHMS=@bad "$TRIREME" bench barrier --ranks 2 >out 2>err && fail "a job takes a damaged table"
grep -qF "bad, line 3: 'all_reduce" err || fail "no word about line 3"

"$TRIREME" bench predict --table @table --ranks 2,64 --bytes 64,1M --kind broadcast >out || fail "exit code $?"
[ "$(grep -cE '^ +(2|64) +[0-9.]+ (us|ms|s) +[0-9.]+ (us|ms|s)$' out)" = 2 ] || fail "no predictions"
network='network latency_ns 1000000 overhead_ns 0 mbytes_per_s 1000000 copy_mbytes_per_s 0 fold_mbytes_per_s 0'
"$TRIREME" bench predict --table @table --ranks 2,64 --bytes 64 --json predicted.json >/dev/null || fail "exit code $?"
documented predicted.json 'bench predict'
[ "$(grep -c '"predicted_us":' predicted.json)" = 2 ] || fail "other results than predictions: $(cat predicted.json)"
"$TRIREME" bench predict --algorithm ring --ranks 3 --bytes 64 --table "$network" >out || fail "exit code $?"
grep -qE '^ +3 +4.00 ms$' out || fail "four steps of a millisecond: $(cat out)"
