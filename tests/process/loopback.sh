#!/bin/sh
# The library and its tests need a loopback and nothing else of a network: here they have just that, an empty /etc/hosts and
# no name server, and `localhost` is still this host. ctest: timeout=300
. "$SOURCE/tests/process/common"
cd "$work"
: >empty
# bare COMMAND…: runs it in a network and a mount namespace of its own.
bare() {
    unshare -rmn sh -c 'for file in /etc/hosts /etc/resolv.conf; do
            [ ! -e $file ] || mount --bind empty $file || exit 1
        done
        ip link set lo up && exec "$@"' sh "$@"
}
bare true 2>err || { echo "namespaces cannot be made here: $(cat err)"; exit 77; }
[ "$(bare cat /etc/hosts)" = "" ] || fail "/etc/hosts is not empty"

for test in resolve store comm_init rpc spawn; do
    bare "$BUILD/tests/unit/test_$test" >out 2>err || fail "unit/$test"
done

# Ranks that are started by hand meet at the address in the program, tcp://localhost:23456.
bare sh -c '"$1" 0 2 >first & "$1" 1 2 && wait $!' sh "$BUILD/examples/hybrid_parallel" >out 2>err ||
    fail "hybrid_parallel by hand"
grep -q '^epoch 3 ' first || fail "hybrid_parallel by hand says: $(cat first)"

# Two nodes of a job that meet at localhost, with the environment's MASTER_ADDR.
bare sh -c 'export TRIREME_TOKEN=secret
    "$0" run -n 1 --nnodes 2 --node-rank 1 --rendezvous localhost:29500 "$0" bench all-reduce --bytes 4K --cold-mb 1 >second &
    "$0" run -n 1 --nnodes 2 --node-rank 0 --rendezvous localhost:29500 "$0" bench all-reduce --bytes 4K --cold-mb 1 && wait $!' \
    "$TRIREME" >out 2>err || fail "two nodes at localhost"
