#!/bin/sh
# srun on a Slurm of one node, made for this test on loopback: ranks that MPI brings together, and ranks that srun alone
# starts; and a program that a batch script starts without srun is alone.
# ctest: timeout=180
. "$SOURCE/tests/process/common"
for tool in munged slurmctld slurmd srun sbatch; do
    PATH=$PATH:/usr/sbin command -v $tool >/dev/null || { echo "$tool is missing; scripts/deps --ci installs it"; exit 77; }
done
PATH=$PATH:/usr/sbin
[ "$(id -u)" = 0 ] || { echo "starting Slurm needs root"; exit 77; }
[ -n "$(hostname -I)" ] || { echo "Slurm does not start where there is no other network than the loopback"; exit 77; }
shown="out slurmctld.log slurmd.log munge.log"
daemons=
at_end() {
    for pid in $daemons; do kill "$pid" 2>/dev/null || :; done
    for pid in $daemons; do wait "$pid" 2>/dev/null || :; done
}
export ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=0" # MPI's own
unset TRIREME_TOKEN RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
program=$BUILD/process/collectives

# ---- A Slurm -----------------------------------------------------------------------------------------------------------

chmod 755 "$work" # munge's clients must reach its socket
head -c 1024 /dev/urandom >"$work/munge.key"
chmod 400 "$work/munge.key"
host=$(hostname -s)
# taken PORT: something has this port of TCP, as the system says.
taken() { grep -qs ":$(printf %04X "$1") " /proc/net/tcp /proc/net/tcp6; }
first_port=$((20000 + $$ % 9000))
while taken $first_port || taken $((first_port + 1)); do first_port=$((first_port + 2)); done
cat >"$work/slurm.conf" <<END
ClusterName=trireme
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmctldPort=$first_port
SlurmdPort=$((first_port + 1))
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
KillWait=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=test Nodes=$host Default=YES State=UP MaxTime=5
END
export SLURM_CONF="$work/slurm.conf"
mkdir "$work/state" "$work/spool"

munged --foreground --force --key-file="$work/munge.key" --socket="$work/munge.socket" --pid-file="$work/munge.pid" \
    --seed-file="$work/munge.seed" --log-file="$work/munge.log" >"$work/munge.log" 2>&1 &
daemons="$!"
tries=0
until [ -S "$work/munge.socket" ]; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || fail "munged does not start"
    sleep 0.1
done
slurmctld -D >"$work/slurmctld.log" 2>&1 &
daemons="$daemons $!"
slurmd -D -N "$host" >"$work/slurmd.log" 2>&1 &
daemons="$! $daemons"
tries=0
until sinfo -h -o %T 2>/dev/null | grep -q idle; do
    tries=$((tries + 1))
    [ $tries -lt 150 ] || fail "the node does not become idle"
    sleep 0.2
done

# ---- Ranks -------------------------------------------------------------------------------------------------------------

# expect COUNT PATTERN OPTION… -- ARGUMENT…: so many lines of the output of srun match.
expect() {
    count=$1 pattern=$2
    shift 2
    timeout 30 srun --immediate=20 "$@" >"$work/out" 2>&1 || fail "exit code $?: srun $*"
    [ "$(grep -c -e "$pattern" "$work/out")" = "$count" ] || fail "no $count lines with $pattern: srun $*"
}

expect 4 'rank \([0-3]\) of 4, local rank \1$' -n 4 "$program" where
expect 2 'of 2: every: well' -n 2 "$program" every
tested="srun alone"
own=$(sed -n 's/^MPI_mpi_LIBRARY:.*=.*/pmix/p; s/^MPI_mpich_LIBRARY:.*=.*/pmi2/p' "$BUILD/CMakeCache.txt" | tail -n 1)
if [ -n "$own" ] && srun --mpi=list 2>&1 | grep -q "$own"; then
    expect 4 'rank \([0-3]\) of 4, local rank \1$' --mpi="$own" -n 4 "$program" where
    expect 4 'of 4: all: well' --mpi="$own" -n 4 "$program" all mpi
    tested="$tested, srun --mpi=$own"
fi

# The shell of a batch job has Slurm's variables as well, but is no rank.
printf '#!/bin/sh\n"%s" where\n' "$program" >"$work/job.sh"
timeout 60 sbatch --wait -n 4 -o "$work/out" "$work/job.sh" >"$work/sbatch.out" 2>&1 || fail "sbatch"
grep -q 'rank 0 of 1, local rank 0' "$work/out" || fail "a program in a batch script is not alone"
echo "tested with $tested"
