#!/bin/sh
# The examples that learn images: those that they draw, and with TRIREME_TEST_DATA, a folder with mnist/t10k-*.gz, real
# digits too. Each exits with 0 only when it gets 96 % of the images right that it has not seen.
# ctest: timeout=400
. "$SOURCE/tests/process/common"
cd "$work"
examples=$BUILD/examples

# runs OUTPUT COMMAND ARGUMENT…
runs() {
    output=$1
    shift
    "$@" >"$output" 2>err || fail "exit code $?: $* says $(tail -n 3 "$output")"
}
# The loss of a program's first epoch.
first_loss() { sed -n 's/^epoch 1 *loss \([0-9.]*\).*/\1/p' "$1"; }

# One device or two: the same training.
runs one env TRIREME_CPU_DEVICES=1 "$examples/data_parallel"
runs two env TRIREME_CPU_DEVICES=2 "$examples/data_parallel"
grep -q '^2 devices' two || fail "it ran on other devices: $(head -n 1 two)"
awk -v a="$(first_loss one)" -v b="$(first_loss two)" 'BEGIN { exit !(a > 0 && (a - b) ^ 2 < (0.01 * a) ^ 2) }' ||
    fail "two devices learn otherwise than one: $(first_loss two), not $(first_loss one)"

# Ranks that are started by hand meet where they are told to; process/loopback tries the address in the program.
"$examples/hybrid_parallel" 0 2 "file://$work/meet" >by_hand 2>err &
job=$!
"$examples/hybrid_parallel" 1 2 "file://$work/meet" >out 2>>err && wait "$job" || fail "ranks by hand: $(cat by_hand)"
job=
runs itself "$examples/hybrid_parallel"
[ "$(first_loss by_hand)" = "$(first_loss itself)" ] || fail "ranks by hand learn otherwise: $(cat by_hand itself)"

digits=${TRIREME_TEST_DATA:+$TRIREME_TEST_DATA/mnist}
if [ -d "$digits" ]; then
    runs out env TRIREME_CPU_DEVICES=2 "$examples/data_parallel" "$digits"
    runs out "$examples/hybrid_parallel" 0 1 tcp://localhost:23456 "$digits"
else
    echo "no real digits: TRIREME_TEST_DATA names no folder with mnist/ in it"
fi
