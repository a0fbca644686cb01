#!/bin/sh
# `trireme bench`: its results have every key, and a peer takes turns with it in a clean environment.
. "$SOURCE/tests/process/common"
cd "$work"
bench() {
    timeout 100 "$TRIREME" bench model --model nano --batch 2 --seq 16 --steps 4 --warmup 1 --threads 1 --json r.json \
        "$@" >out 2>err
}
number() { grep -o "\"$1\":[^,}]*" r.json | head -n 1 | sed 's/.*:[[:space:]]*//'; }

# The peer notes its environment and each line that it is sent, and says that its steps take 5 ms.
cat >peer <<'PEER'
env >peer.env
echo importing
echo ready
while read -r line; do
    echo "step" >>peer.steps
    echo 5.000
done
echo bye >>peer.steps
PEER
for ranks in 1 2; do
    rm -f peer.steps
    OPENBLAS_CORETYPE=Prescott MKL_NUM_THREADS=7 OMP_PROC_BIND=true bench --ranks $ranks --peer 'sh peer' || fail "exit code $?"
    for key in step_ms_median tokens_per_s peak_rss_mb peak_own_mb minor_faults_per_step ranks threads batch seq gflops peak_gflops share_of_peak \
        flops_per_step peer_step_ms_median ratio; do
        case $(number $key) in [0-9]*) ;; *) fail "no number $key: $(cat r.json)" ;; esac
    done
    # Another rank's gradients, which this one maps, are not its own memory; after a warm-up a step makes do with the pages it has.
    awk -v own="$(number peak_own_mb)" -v rss="$(number peak_rss_mb)" -v faults="$(number minor_faults_per_step)" -v ranks=$ranks \
        'BEGIN { exit !(own > 0 && (ranks > 1 ? own < rss - 0.5 : own == rss) && faults < 2000) }' || fail "memory: $(cat r.json)"
    [ "$(number ranks)" = $ranks ] && [ "$(number peer_step_ms_median)" = 5 ] || fail "wrong numbers: $(cat r.json)"
    [ "$(grep -c step peer.steps)" = 4 ] && [ "$(tail -n 1 peer.steps)" = bye ] || fail "the peer was not led: $(cat peer.steps)"
    ! grep -oE '^(OPENBLAS_|MKL_|OMP_PROC|RANK|WORLD_|MASTER_|TRIREME_)[^=]*' peer.env >left || fail "left over: $(cat left)"
    grep -q '^OMP_NUM_THREADS=1$' peer.env || fail "the peer was not told its threads"
done
documented r.json 'bench model'

# A process that the peer leaves behind has its stdout open: nobody waits for it, and it is asked to end.
mark=$((2000000 + $$))
bench --peer "sleep $mark & sh peer" || fail "exit code $?"
until_gone "sleep $mark"

# Between turns what a launcher has started is stopped, also in a group of its own, and the launcher is not: mpirun
# reports each SIGCONT. Where the bench is killed nothing is left, as the shell that runs the command is stopped then.
cat >launcher <<'LAUNCHER'
trap 'echo woken >>launcher.woken' CONT
trap 'kill -9 $worker; exit' HUP
exec 3<&0
echo $PPID >shell
setsid sh peer <&3 &
worker=$!
echo $worker >worker
while kill -0 $worker 2>/dev/null; do wait $worker || :; done
LAUNCHER
"$TRIREME" bench model --model nano --steps 100000 --warmup 1 --threads 1 --peer "sh launcher $mark" >out 2>err &
job=$!
tries=0
until [ -s worker ] && grep -q '^State:.T' "/proc/$(cat worker)/status"; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] || fail "the peer's worker is not stopped between turns"
    sleep 0.05
done 2>/dev/null
grep -q '^State:.T' "/proc/$(cat shell)/status" || fail "the worker is stopped before the shell"
[ ! -e launcher.woken ] || fail "the launcher was woken"
kill -9 $job
wait $job 2>/dev/null || :
job=
until_gone "launcher $mark"
tries=0
while grep -q '^State:.[^Z]' "/proc/$(cat worker)/status" 2>/dev/null; do
    tries=$((tries + 1))
    [ $tries -lt 200 ] || fail "the launcher's worker is left behind"
    sleep 0.05
done
for mpirun in "mpirun.openmpi --allow-run-as-root --oversubscribe" mpirun.mpich; do
    command -v ${mpirun%% *} >/dev/null || continue
    bench --peer "$mpirun -n 1 sh peer" || fail "exit code $?: $mpirun"
    [ ! -s err ] || fail "$mpirun is heard: $(cat err)"
done

# Short steps come several in a row, and the peer is told how many.
rm -f peer.steps
sed -i 's/echo "step"/echo "step $line"/' peer
"$TRIREME" bench model --model mlp --batch 4 --steps 2 --warmup 0 --threads 1 --json r.json --peer 'sh peer' >out 2>err ||
    fail "exit code $?"
for key in step_ms_median samples_per_s steps_in_a_row share_of_peak ratio; do
    case $(number $key) in [0-9]*) ;; *) fail "no number $key: $(cat r.json)" ;; esac
done
[ "$(grep -cx "step $(number steps_in_a_row)" peer.steps)" = 2 ] || fail "the peer was told: $(cat peer.steps)"
! grep -q '"seq"\|tokens' r.json || fail "an MLP has no sequences: $(cat r.json)"
documented r.json 'bench model --model mlp'

# refuses MESSAGE ARGUMENT…
refuses() {
    message=$1
    shift
    ! bench "$@" || fail "it took: $*"
    grep -qF -e "$message" err || fail "no \"$message\": $*"
    [ "$(grep -c '^trireme' err)" = 1 ] || fail "not one message: $*"
}
refuses 'it ended before it printed "ready"' --peer 'echo no' --ranks 2
refuses 'it ended before its work was done' --peer 'echo ready; read line; echo 1'
refuses 'it ended before its work was done' --peer "sleep $mark & echo ready; read line; echo 1"
refuses 'not a time' --peer 'echo ready; while read line; do echo fast; done'
# Nobody waits for a peer that failed, nor is it left behind.
refuses 'not a time' --peer "echo ready; read line; echo fast; exec sleep $mark"
until_gone "sleep $mark"
for bench in rpc dist-autograd; do
    ! "$TRIREME" bench $bench --peer "sleep $mark &" >out 2>err || fail "$bench took a peer that ends"
    grep -q 'it ended before it printed "ready"' err || fail "$bench: no word about its peer"
    until_gone "sleep $mark"
done

# What cannot go well is said once, before anything is measured.
refuses 'cannot write nowhere/r.json' --json nowhere/r.json
[ ! -s out ] || fail "it measures what it cannot write"
refuses 'there is no device gpu' --device gpu --ranks 3
refuses '--model takes one of nano, gpt-mini, gpt2, bert-tiny, bert-base, mlp, lenet, resnet18, resnet50, vgg11, not "gpt5"' --model gpt5
refuses '--seq: the samples of mlp are no sequences' --model mlp
"$TRIREME" bench model --model resnet18 --size 32 --batch 2 --steps 1 --warmup 0 --threads 1 --json r.json >out 2>err ||
    fail "exit code $?"
grep -q '"optimizer":.*"momentum"' r.json && [ "$(number size)" = 32 ] || fail "another bench: $(cat r.json)"
documented r.json 'bench model --model resnet18'
# 2 images: 6 times 36.5 million multiplications, but 4 times the first layer's 2.4 million.
awk -v f="$(number flops_per_step)" 'BEGIN { exit !(f > 4.2e8 && f < 4.5e8) }' || fail "it counts $(number flops_per_step)"
! "$TRIREME" bench model --model lenet --size 32 >out 2>err && grep -q 'the samples of lenet are 28 x 28' err ||
    fail "LeNet took another size"

bench && grep -q '"step_in_backward":.*true' r.json && grep -q 'updates in backward' out ||
    fail "no steps in backward: $(cat out err r.json)"
bench --step-after-backward && grep -q '"step_in_backward":.*false' r.json && ! grep -q 'updates in backward' out ||
    fail "no steps after backward: $(cat out err r.json)"

bench --bf16-state && grep -q '"bf16_state":.*true' r.json && grep -q 'state in bf16' out || fail "no state in bf16: $(cat out err r.json)"
bench --ranks 2 --fully-sharded && grep -q '"fully_sharded":.*true' r.json && grep -q 'fully sharded' out || fail "not sharded: $(cat out err r.json)"

# A masked language model, whose samples are sequences, under autocast.
"$TRIREME" bench model --model bert-tiny --batch 1 --seq 8 --dtype bf16 --steps 1 --warmup 0 --threads 1 --json r.json >out 2>err ||
    fail "exit code $?: $(cat err)"
grep -q '"dtype":.*"bf16"' r.json && grep -q '"optimizer":.*"adamw"' r.json && [ "$(number seq)" = 8 ] || fail "bert-tiny: $(cat r.json)"
# 8 tokens: 6 times the layers' 0.4 million weights; 2 that are asked about: the head's 3.9 million; and little for attention.
awk -v f="$(number flops_per_step)" 'BEGIN { exit !(f > 6.4e7 && f < 6.8e7) }' || fail "it counts $(number flops_per_step)"

# A collective, by size: every key for every size, the peer asked for what it is to do.
cat >collective-peer <<'PEER'
echo ready
while read -r line; do
    echo "$line" >>peer.asked
    echo 8.5
done
PEER
"$TRIREME" bench all-reduce --ranks 2 --bytes 4,1K --cold-mb 1 --peer 'sh collective-peer' --json r.json >out 2>err || fail "exit code $?"
for key in bytes median_us algbw_gbps cold_us private_us limit_us share_of_limit peer_us ratio; do
    [ "$(grep -c "\"$key\":" r.json)" = 2 ] || fail "not two of $key: $(cat r.json)"
done
grep -qxE 'all-reduce 1024 [0-9]+' peer.asked || fail "the peer was asked: $(cat peer.asked)"
documented r.json 'bench all-reduce'
for kind in all-reduce rpc; do
    ! "$TRIREME" bench $kind --bytes 4,6 >out 2>err || fail "$kind took a number and a half"
    grep -q -e '--bytes: sizes are multiples of 4 (f32), not 6' err || fail "$kind: no word about 6 bytes"
done
# A launcher's ranks are as many as it says.
launched() { # RANKS MESSAGE ARGUMENT…
    ranks=$1 message=$2
    shift 2
    ! "$TRIREME" run -n $ranks "$TRIREME" bench "$@" >out 2>err || fail "$ranks ranks took: $*"
    grep -q -F -e "$message" err || fail "$ranks ranks do not say \"$message\": $*"
}
launched 2 '--ranks 3, but the launcher has started 2: leave --ranks out' barrier --ranks 3
launched 3 '--workers 2, but the launcher has started 3: leave --workers out' dist-autograd --workers 2
launched 9 'it takes at most 8 ranks, and the launcher has started 9' dist-autograd
launched 3 'it takes at most 2 ranks, and the launcher has started 3' rpc
"$TRIREME" run -n 3 "$TRIREME" bench dist-autograd --json r.json >out 2>err || fail "dist-autograd on 3 ranks"
[ "$(number workers)" = 3 ] || fail "another chain than that of 3 workers: $(cat r.json)"
documented r.json 'bench dist-autograd'
# Remote calls: a peer is asked for an operator's where that is wanted.
rm peer.asked
"$TRIREME" bench rpc --bytes 4 --callers 2 --peer 'sh collective-peer' --json r.json >out 2>err || fail "rpc: $(cat err)"
! grep -q operator peer.asked r.json out || fail "rpc: an operator was asked for: $(cat peer.asked r.json)"
"$TRIREME" bench rpc --bytes 4 --callers 2 --operator --peer 'sh collective-peer' --json r.json >out 2>err || fail "rpc: $(cat err)"
grep -qxE 'operator 4 [0-9]+' peer.asked && grep -q 'add one  *peer  *ratio' out || fail "rpc: $(cat peer.asked out)"
[ "$(number peer_operator_us)" = 8.5 ] && grep -q '"operator_us":' r.json && grep -q '"operator_ratio":' r.json || fail "rpc: $(cat r.json)"
documented r.json 'bench rpc --operator'
for kind in broadcast all-gather reduce-scatter all-to-all send-recv; do
    "$TRIREME" bench $kind --ranks 2 --bytes 64 --cold-mb 1 >out 2>err || fail "$kind"
done

# How ranks meet.
"$TRIREME" bench store --clients 20 --json r.json >out 2>err || fail "store"
[ "$(grep -c '"seconds":' r.json)" = 2 ] && grep -q 'through TLS  *[0-9.]* s' out || fail "store: $(cat r.json out)"
documented r.json 'bench store'
"$TRIREME" bench join --ranks 3 --json r.json >out 2>err || fail "join"
[ "$(number ranks)" = 3 ] || fail "join: $(cat r.json)"
for key in first_s again_s; do
    case $(number $key) in [0-9]*) ;; *) fail "no number $key: $(cat r.json)" ;; esac
done
documented r.json 'bench join'

# Groups within a group take nothing more.
"$TRIREME" bench groups --ranks 3 --groups 20 --json r.json >out 2>err || fail "groups"
case $(number split_us_median) in [0-9]*) ;; *) fail "groups: $(cat r.json)" ;; esac
for key in fds_per_rank threads_per_rank; do
    more=$(($(number $key) - $(number ${key}_with_1))) # a thread of a rank's may be replacing a descriptor that it holds in reserve
    [ $more -ge -1 ] && [ $more -le 1 ] || fail "groups: $more more $key: $(cat r.json)"
done
documented r.json 'bench groups'

# A checkpoint: every key, the peer asked for its part, and nothing left behind.
cat >checkpoint-peer <<'PEER'
echo "$# $*" >peer.told
echo ready
while read -r line; do
    echo "$line" >>peer.saved
    echo 0.25
done
PEER
mkdir 'my saves' # a blank, for the peer's shell
"$TRIREME" bench checkpoint --megabytes 13 --rounds 2 --folder 'my saves' --peer 'sh checkpoint-peer' --json r.json >out 2>err ||
    fail "checkpoint: $(cat err)"
for key in save_gbps load_gbps verify_gbps plain_save_gbps plain_load_gbps save_share load_share verify_share torch_save_gbps \
    torch_save_ratio torch_load_ratio dcp_save_ratio dcp_load_gbps; do
    case $(number $key) in [0-9]*) ;; *) fail "no number $key: $(cat r.json)" ;; esac
done
documented r.json 'bench checkpoint'
awk -v b="$(number bytes)" 'BEGIN { exit !(b > 12.9e6 && b <= 13e6) }' || fail "it saves $(number bytes) bytes"
grep -q '^4 --megabytes 13 --folder my saves/trireme-bench-[^/]*/peer$' peer.told || fail "the peer was told: $(cat peer.told)"
[ "$(grep -cx torch_load peer.saved)" = 3 ] || fail "the peer was asked: $(cat peer.saved)"
[ -z "$(ls 'my saves')" ] || fail "something is left: $(find 'my saves')"
"$TRIREME" bench checkpoint --megabytes 100 --rounds 100 --folder 'my saves' >out 2>err &
job=$!
tries=0
until [ -n "$(ls 'my saves')" ]; do
    tries=$((tries + 1))
    [ $tries -lt 400 ] || fail "it makes no folder"
    sleep 0.05
done
kill -TERM $job
end
[ $code = 143 ] && [ -z "$(ls 'my saves')" ] || fail "after SIGTERM: exit code $code, left: $(find 'my saves')"
! "$TRIREME" bench checkpoint --folder nowhere --megabytes 1 >out 2>err && grep -q 'cannot make a folder in nowhere' err || fail "it saved nowhere"

# Batches, by threads and by processes; the peer is told what to load.
cat >loader-peer <<'PEER'
echo "$*" >peer.told
echo ready
while read -r line; do echo 20; done
PEER
for how in "--workers 0" "--workers 2" "--workers 2 --processes" "--samples rows --workers 1"; do
    "$TRIREME" bench loader $how --count 300 --rounds 2 --peer 'sh loader-peer' --json r.json >out 2>err || fail "loader $how: $(cat err)"
    [ "$(number peer_us_per_sample)" = 20 ] && [ "$(number count)" = 300 ] || fail "loader $how: $(cat r.json)"
done
documented r.json 'bench loader'
grep -qx -e '--samples rows --count 300 --batch 64 --workers 1' peer.told || fail "the peer was told: $(cat peer.told)"
! "$TRIREME" bench loader --samples folder >out 2>err || fail "it took no folder"
grep -q 'belong together' err || fail "no folder: $(cat err)"

! "$TRIREME" bench nonsense >out 2>err || fail "it took nonsense"
grep -q 'there is no "nonsense": there are model, all-reduce, ' err || fail "nonsense"
