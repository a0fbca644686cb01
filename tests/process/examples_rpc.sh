#!/bin/sh
# The examples whose processes call each other: they learn what they say they learn, and what one process learns.
. "$SOURCE/tests/process/common"
cd "$work"

# says PROGRAM [ARGUMENT…]: runs an example, whose words are then in `out`
says() {
    "$BUILD/examples/$@" >out 2>err || fail "$*: $(cat out err)"
}
# differ MOST: the distance of weights that the example told is a number, at most this
differ() {
    awk -v most="$1" '/^weights differ/ { n++; bad += !($NF ~ /^[0-9.]+e[-+][0-9]+$/ && $NF + 0 <= most) }
        END { exit !(n && !bad) }' out || fail "weights differ: $(cat out)"
}

for trainers in 1 3; do
    says parameter_server $trainers
    differ 1e-4
    [ "$(grep -c 'Hogwild.*accuracy on 1000 other samples: \(9[6-9]\|100\)' out)" = $trainers ] ||
        fail "parameter_server says: $(cat out)"
done
for program in rpc_model_split rnn_remote_embedding "rpc_pipeline 1" "rpc_pipeline 3"; do
    says $program
    differ 1e-3
done
for devices in 1 2; do
    says data_parallel_rpc $devices
    differ 1e-4
    grep -q "^devices of each worker: $devices," out || fail "data_parallel_rpc says: $(cat out)"
done
for actors in 1 2; do
    says actor_learner $actors
    differ 1e-4
    grep -q "rounds of $((16 * actors)) episodes to a mean of 190 points" out || fail "actor_learner says: $(cat out)"
done
