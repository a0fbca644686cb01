#!/bin/sh
# The examples whose processes call each other: they learn what they say they learn.
. "$SOURCE/tests/process/common"
cd "$work"
for trainers in 1 2; do
    "$BUILD/examples/parameter_server" $trainers >out 2>err || fail "parameter_server $trainers: $(cat err)"
    [ "$(grep -c 'accuracy on 1000 other samples: 9[6-9]\|: 100' out)" = $trainers ] || fail "parameter_server says: $(cat out)"
done
