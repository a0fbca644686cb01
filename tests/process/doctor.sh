#!/bin/sh
# `trireme doctor`: each part of a sound machine has its line, leftovers in the environment are named, and what does not
# work makes it fail.
set -eu
fail() {
    echo "failed: $*"
    printf '%s\n' "$output"
    exit 1
}
has() { printf '%s\n' "$output" | grep -q -e "$1" || fail "no line with $1"; }

output=$(env -u OMP_PROC_BIND TRIREME_THREADS=1 TRIREME_CHECK=0, OMP_PLACES=cores RANK=1 TRIREME_TOKEN=hush4711 "$TRIREME" doctor) || fail "something is wrong"
for part in cores instructions memory 'matrix engine: oneDNN .* GFLOP/s' 'shared memory: works' 'launcher: 2 ranks' \
    'open files' MPI CUDA; do
    has "^[a-z]*  *$part"
done
has '^warning  environment: OMP_PLACES=cores binds'
has '^         -> unset OMP_PLACES$'
has '^warning  environment: RANK=1 makes'
has '^warning  environment: TRIREME_TOKEN is set; it belongs to a job'
! printf '%s\n' "$output" | grep -q hush4711 || fail "the secret is printed"
has '0 wrong$'

# Settings that make no sense: each is named, and the rest is still looked at.
code=0
output=$(TRIREME_THREADS=-3 TRIREME_CPU_DEVICES=x LOCAL_WORLD_SIZE=0 TRIREME_CHECK=1,NaN TRIREME_ISA=mmx TRIREME_ENCRYPT=yes TRIREME_LOG=loud \
    "$TRIREME" doctor) || code=$?
[ $code = 1 ] || fail "exit code $code with settings that make no sense"
for setting in TRIREME_THREADS=-3 TRIREME_CPU_DEVICES=x LOCAL_WORLD_SIZE=0 TRIREME_CHECK=1,NaN TRIREME_ISA=mmx TRIREME_ENCRYPT=yes TRIREME_LOG=loud; do
    has "^wrong    environment: $setting makes no sense$"
    has "^         -> set it to .*, or unset ${setting%%=*}$"
done
has '^ok       matrix engine: oneDNN'
has '7 wrong$'

# Words that would make sense alone are not a setting together, but for those of TRIREME_CHECK with commas between.
code=0
output=$(TRIREME_CHECK='nan inf' TRIREME_ISA=avx2,avx512 TRIREME_ENCRYPT=0,1 TRIREME_LOG=warn,info "$TRIREME" doctor) || code=$?
[ $code = 1 ] || fail "exit code $code with two words"
for setting in 'TRIREME_CHECK=nan inf' TRIREME_ISA=avx2,avx512 TRIREME_ENCRYPT=0,1 TRIREME_LOG=warn,info; do
    has "^wrong    environment: $setting makes no sense$"
done
has '^ok       matrix engine: oneDNN'
has '4 wrong$'

# An older processor, played by this one.
output=$(TRIREME_ISA=generic "$TRIREME" doctor) || fail "something is wrong with TRIREME_ISA=generic"
[ "$(uname -m)" != x86_64 ] || has '^ok       matrix engine: oneDNN .* with sse41 kernels'

# Too few descriptors for the launcher: said, with what to do, and the rest is still looked at.
code=0
output=$(ulimit -n 14 && "$TRIREME" doctor 2>&1) || code=$?
[ $code = 1 ] || fail "exit code $code with 14 descriptors"
has '^wrong    launcher: .*open files'
has '^         -> ulimit -n 4096$'
has '^[a-z]*  *environment'
