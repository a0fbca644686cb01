#!/bin/sh
# mpirun and the mpi backend, with Open MPI and with MPICH, each if it is installed: every collective on more ranks than
# cores, sends and receives beside them, the native backend under mpirun, calls and messages that differ, a rank, the store and
# a message that stay away, a group that is dropped, and a rank that is killed.
# The library is built with one MPI; for the other, only what stands on MPI is compiled again and linked before it.
# ctest: timeout=600
. "$SOURCE/tests/process/common"
at_end() { # mpirun takes its ranks along when it is asked to end
    [ -z "$job" ] || kill "$job" 2>/dev/null || :
    job=
}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=0" # MPI's own
unset TRIREME_TOKEN RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT

# launch RANKS PROGRAM ARGUMENT…, for $limit seconds at most.
limit=150
launch() {
    ranks=$1
    shift
    case $mpi in
    openmpi) exec timeout -k 5 "$limit" mpirun.openmpi --oversubscribe -n "$ranks" "$@" ;;
    *) exec timeout -k 5 "$limit" mpirun.mpich -n "$ranks" "$@" ;;
    esac
}

# expect RANKS COUNT PATTERN MODE [BACKEND]: so many lines of the output match. After a timeout ranks end without MPI_Finalize(),
# and some runs of Open MPI's mpirun then crash, or wait for a lock for ever, in PMIx_server_finalize().
expect() {
    ranks=$1 count=$2 pattern=$3
    shift 3
    case $1 in
    late | still | vain | dropped) (limit=60 && launch "$ranks" "$program" "$@") >"$work/out" 2>&1 || : ;;
    *) (launch "$ranks" "$program" "$@") >"$work/out" 2>&1 || fail "exit code $?: $*" ;;
    esac
    [ "$(grep -c -e "$pattern" "$work/out")" = "$count" ] || fail "no $count lines with $pattern: -n $ranks $*"
}

# kill_one BACKEND: a rank is killed, and the others end, with the cause named; mpirun as above.
kill_one() {
    : >"$work/out" # what the last job wrote must not pass for this one's
    (limit=60 && launch 3 "$program" forever "$@") >"$work/out" 2>&1 &
    job=$!
    wait_for 3 'is process [0-9]*\.'
    victim=$(sed -n 's/.*rank 1 is process \([0-9]*\)\..*/\1/p' "$work/out")
    kill -9 "$victim" || fail "no process to kill"
    for rank in $(sed -n 's/.* is process \([0-9]*\)\..*/\1/p' "$work/out"); do
        tries=0
        while grep -q '^State:.[^ZX]' "/proc/$rank/status" 2>/dev/null; do
            tries=$((tries + 1))
            [ $tries -lt 1200 ] || fail "process $rank goes on after kill -9 of $victim"
            sleep 0.05
        done
    done
    ! wait "$job" || fail "exit code 0 after kill -9"
    job=
    grep -q -i -e 'killed' -e "rank 1 (pid $victim) died" "$work/out" || fail "the cause is not named"
}

OMPI_CC=$(sed -n 's/^CMAKE_C_COMPILER:.*=//p' "$BUILD/CMakeCache.txt") # the wrappers' compiler: sanitizers do not mix
export OMPI_CC MPICH_CC="$OMPI_CC"
own=$(sed -n 's/^MPI_mpi_LIBRARY:.*=.*/openmpi/p; s/^MPI_mpich_LIBRARY:.*=.*/mpich/p' "$BUILD/CMakeCache.txt" | tail -n 1)
[ -n "$own" ] || { echo "this build has no MPI; scripts/deps --ci installs two"; exit 77; }

compile_for() { # with these flags
    program=$work/collectives.$mpi
    sanitize=$(sed -n 's/^TRIREME_SANITIZE:STRING=\(.\)/-fsanitize=\1/p' "$BUILD/CMakeCache.txt")
    mpicc.$mpi -std=gnu11 -D_GNU_SOURCE= "$@" $sanitize -I"$SOURCE/include" -I"$SOURCE/src" \
        "$SOURCE/tests/process/collectives.c" "$SOURCE/src/comm/backend/mpi.c" "$SOURCE"/src/comm/backend/mpi_[clt]*.c \
        "$BUILD/libtrireme.a" $(pkg-config --libs libuv openssl libcjson zlib) -ldnnl -lm -pthread -ldl \
        -o "$program" >"$work/out" 2>&1 || fail "does not compile"
}

tested=
for mpi in openmpi mpich; do
    echo "with $mpi:"
    command -v mpirun.$mpi >/dev/null && command -v mpicc.$mpi >/dev/null || continue
    if [ $mpi = "$own" ]; then program=$BUILD/process/collectives; else compile_for -O1; fi
    expect 1 1 'rank 0 of 1: all: well' all mpi
    expect 2 2 'of 2: all: well' all mpi
    expect 4 4 'of 4: all: well' all mpi
    expect 4 4 'of 4: every: well' every
    expect 4 4 'rank \([0-3]\) of 4, local rank \1$' where
    expect 3 3 'rank 0 all_reduce #1 (sum of f32\[4\] at .* broadcast #1' mismatch mpi
    expect 3 2 'rank [01] waited 2[.0-9]* s for rank 2' late mpi
    expect 2 1 'rank 1: .*all_reduce #3 .*rank 1 waited [2-9][.0-9]* s for the transfer, and the store does not answer' still mpi
    expect 4 1 'rank 0: .*recv (f32\[1\] from rank 1, tag 3 at .*: rank 0 waited 1[.0-9]* s for rank 1' vain mpi
    expect 2 1 'rank 1: .*recv (f32\[4\] from rank 0, tag 9 .*rank 0 has sent more than the 4 elements' unequal mpi
    expect 2 1 'rank 1: .*recv (f32\[4\] from rank 0, tag 9 .*rank 0 has sent 12 bytes where 16 are' unequal mpi
    expect 2 2 'rank [01]: .*recv (f32\[4\] from .*the program dropped the group' dropped mpi
    kill_one mpi
    kill_one
    # The ranks' store has a secret, by which they encrypt, also where their token is empty; one that is too long is an error.
    export TRIREME_ENCRYPT=1 TRIREME_TOKEN=
    expect 2 2 'of 2: where: well' where
    TRIREME_TOKEN=$(printf %0300d 0)
    ! (launch 2 "$program" where) >"$work/out" 2>&1 || fail "joined with a token of 300 bytes"
    grep -q 'a token has 1 … 256 bytes, not 300' "$work/out" || fail "does not say what a token has"
    unset TRIREME_ENCRYPT TRIREME_TOKEN
    tested="$tested $mpi"
    [ $mpi != "$own" ] || continue
    # Messages of many pieces, and a receive that ends where a piece does.
    compile_for -O1 -DTR__MPI_PIECE_BYTES=16
    expect 2 2 'of 2: all: well' all mpi
    expect 2 1 'rank 1: .*recv (f32\[4\] from rank 0, tag 9 .*rank 0 has sent more than the 4 elements' unequal mpi
    expect 2 1 'rank 1: .*recv (f32\[4\] from rank 0, tag 9 .*rank 0 has sent 12 bytes where 16 are' unequal mpi
done
echo "tested with$tested"

# The command is a rank of its mpirun, and one that MPI did not start has no ranks for MPI.
case $tested in *$own*)
    mpi=$own
    cat "$SOURCE"/include/trireme/*.h >"$work/text"
    (cd "$work" && launch 2 "$TRIREME" train gpt --backend mpi --data text --layers 1 --heads 1 --dim 16 --context 16 \
        --batch 2 --steps 2 --threads 1 --plain --out trained --json trained.json) >"$work/out" 2>&1 ||
        fail "train under mpirun: exit code $?"
    grep -q '"ranks":[[:space:]]*2[^0-9]' "$work/trained.json" || fail "two trainings: $(cat "$work/trained.json")"
    ! "$TRIREME" run -n 2 "$BUILD/process/collectives" where mpi >"$work/out" 2>&1 || fail "took two worlds of one for one"
    grep -q 'started 2 ranks (WORLD_SIZE), and MPI sees 1: for the backend "mpi" start the program with mpirun' "$work/out" ||
        fail "does not say that MPI did not start the ranks"
    ! "$TRIREME" train gpt --backend mpi --data "$work/text" -n 2 >"$work/out" 2>&1 || fail "trained on ranks that MPI does not know"
    grep -q -e '--backend mpi: MPI knows nothing of ranks that --ranks starts: begin with mpirun -n 2' "$work/out" ||
        fail "does not say how to start ranks of MPI"
esac

# A library that was built with one MPI, under the mpirun of the other.
case $tested in *openmpi*mpich*)
    mpi=mpich
    [ "$own" = openmpi ] || mpi=openmpi
    program=$BUILD/process/collectives
    ! (launch 2 "$program" where mpi) >"$work/out" 2>&1 || fail "joined with a library built for another MPI"
    grep -q "which this library was built with, sees 1; start the program with that MPI's own mpirun" "$work/out" ||
        fail "does not say that this is another MPI"
esac
