#!/bin/sh
# `trireme train` and signals: one that comes while ranks join ends it at once, two of different kinds do so at any time, what
# timeout(1) sends twice is one, and a worker that hangs keeps it from stopping for some seconds only.
# ctest: timeout=240
. "$SOURCE/tests/process/common"
cd "$work"

cat "$SOURCE"/include/trireme/*.h >text
tiny="--data text --layers 1 --heads 2 --dim 16 --context 16 --batch 4 --threads 1 --plain"

# A shell without job control lets its background jobs ignore the interrupt.
background() { # COMMAND…
    : >err
    env --default-signal=INT,QUIT "$@" >out 2>err &
    job=$!
}
wait_until() { # COMMAND…
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 1200 ] || fail "never: $*"
        sleep 0.05
    done
}
joins() { "$TRIREME" why "$job" 2>/dev/null | grep -q 'rank 0 (pid [0-9]*) *joining'; }
rank0() { "$TRIREME" why "$job" | sed -n 's/^ *rank 0 (pid \([0-9]*\)).*/\1/p'; }

# While rank 0 waits for rank 1 to join, for up to ten minutes: a signal to the launcher, and one to the rank itself.
for sig in 1 2 15; do
    for whom in launcher rank; do
        background "$TRIREME" run -n 2 sh -c '[ $RANK = 0 ] || exec sleep 1000; exec "$0" train gpt "$@"' "$TRIREME" $tiny \
            --out "joining-$sig-$whom"
        wait_until joins
        pid=$job want=$((128 + sig))
        [ $whom = launcher ] || pid=$(rank0) want=1
        kill -$sig "$pid"
        end
        [ $code = $want ] || fail "exit code $code after signal $sig to the $whom while ranks join"
        [ $whom = launcher ] || grep -q "rank 0 (pid $pid) was killed by signal $sig " err || fail "another end of rank 0"
    done
done

# timeout(1) sends its signal to the launcher and to its group. That asks once, and what was learned is saved; but where the
# system lets a tenth of a second pass between the two, they are two: then once more.
first_step() { grep -q '^step 1/' err; }
saved=0
for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do
    background timeout 1000 "$TRIREME" train gpt $tiny --steps 100000000 --save-every 100000000 --ranks 2 --out asked-$try
    wait_until first_step
    kill -TERM "$job"
    end
    [ $code = 143 ] || fail "exit code $code after SIGTERM to timeout"
    [ ! -e asked-$try/loss.svg ] || saved=$((saved + 1))
    [ $saved -lt 3 ] || break
done
[ $saved = 3 ] || fail "only $saved of 16 have saved"

# A worker that hangs: a library that is loaded before reads no image of that name while there is a file of that name.
if ldd "$TRIREME" | grep -qE 'lib[atlu]*san' || ! command -v cc >/dev/null; then
    echo "no hanging workers: sanitizers take no library before theirs, and without cc there is none"
    exit 0
fi
cat >hang.c <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
ssize_t read(int fd, void *bytes, size_t count)
{
    static ssize_t (*real)(int, void *, size_t);
    char link[64], path[4096] = "";
    if (!real) real = (ssize_t (*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) > 0 && strstr(path, "/slow.png"))
        for (int hung = 0; access(getenv("HANG"), F_OK) == 0; hung = 1) {
            if (!hung) close(creat(getenv("HUNG"), 0600));
            sleep(1);
        }
    return real(fd, bytes, count);
}
END
cc -shared -fPIC -o hang.so hang.c -ldl 2>err || fail "no library"
for class in a b; do
    mkdir -p images/$class
    echo iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg== | base64 -d >images/$class/0.png
    for i in 1 2 3 4 5 6 7 8 9; do cp images/$class/0.png images/$class/$i.png; done
done
cp images/a/0.png images/a/slow.png
export HANG="$work/hang" HUNG="$work/hung"
learn() { # ARGUMENT…
    rm -f "$HANG" "$HUNG"
    background env LD_PRELOAD="$work/hang.so" "$TRIREME" train lenet --data images --validation 0 --batch 8 --threads 1 --plain \
        --steps 100000000 --save-every 100000000 "$@"
}
steps() { [ -e "$1/metrics.csv" ] && [ "$(wc -l <"$1/metrics.csv")" -gt 3 ]; }
stands() { # until no step has come for a second
    was=$(wc -l <"$1/metrics.csv")
    sleep 1
    [ "$(wc -l <"$1/metrics.csv")" = "$was" ]
}
hang() {
    wait_until steps "$1"
    touch "$HANG"
    wait_until test -e "$HUNG"
    wait_until stands "$1"
}

# One signal ends it, and saves; another run, two signals of different kinds end it at once.
learn --out hangs
hang hangs
kill -TERM "$job"
end
[ $code = 143 ] || fail "exit code $code after SIGTERM while a worker hangs"
[ -d "hangs/checkpoint-$(tail -n 1 hangs/metrics.csv | cut -d , -f 1)" ] || fail "the last step was not saved: $(ls hangs)"
learn --out twice
hang twice
kill -INT "$job"
sleep 0.2
alive_after_one=$(kill -0 "$job" && echo yes)
kill -TERM "$job"
end
[ "$alive_after_one" = yes ] && [ $code = 143 ] || fail "exit code $code after an interrupt and SIGTERM while a worker hangs"
[ ! -d twice/checkpoint-* ] || fail "it took its time to save"

# With ranks: the others wait for the one whose worker hangs, and are let go.
learn --ranks 2 --out both
hang both
kill -INT "$job"
end
[ $code = 130 ] || fail "exit code $code after an interrupt while a worker of a rank hangs"
grep -q 'begun no sample of .* for 5 s: one of them hangs' err || fail "it does not say why"
