#!/bin/sh
# `trireme cluster`: hosts files, jobs on this machine, and jobs on two hosts that are network namespaces with an ssh server
# each: real ssh, with keys and settings of the test's own. ctest: timeout=300
. "$SOURCE/tests/process/common"
cd "$work"
spaces= servers=
at_end() {
    for pid in $servers; do kill -9 "$pid" 2>/dev/null || :; done
    for space in $spaces; do ip netns delete "$space" 2>/dev/null || :; done
}
cluster() {
    command=$1
    shift
    case $command in check) ;; *) set -- --state "$work/state" "$@" ;; esac
    timeout 120 "$TRIREME" cluster "$command" "$@"
}
# says FILE TEXT
says() { grep -qF -e "$2" "$1" || fail "no \"$2\" in $1"; }
# until_says FILE TEXT
until_says() {
    tries=0
    until grep -qF -e "$2" "$1" 2>/dev/null; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || fail "$1 never says $2"
        sleep 0.05
    done
}
mark=$((2000000 + $$))

# ---- Hosts files ----

# wrong TEXT MESSAGE
wrong() {
    printf -- "$1" >hosts
    ! cluster check --hosts hosts >out 2>err || fail "it took: $1"
    says err "$2"
}
wrong '# two\na slots=2\nb slots=0\n' 'hosts:3: slots=0 is not in 1 … 4096'
wrong 'a slots=2x\n' 'hosts:1: slots=2x is not in 1'
wrong 'a\nb\n\na slots=3\n' 'hosts:4: a stands there twice'
wrong 'a slot=3\n' "hosts:1: 'slot=3' is not known"
wrong '-oProxyCommand=x\n' "hosts:1: '-oProxyCommand=x' is no name of a host"
wrong '# nobody\n' 'hosts names no host'
wrong 'localhost\nb\n' 'the first host is localhost, and the others need an address of it'
for command in check start; do
    code=0
    cluster $command --hosts hosts --slots 2 sh >out 2>err || code=$?
    [ $code = 2 ] || fail "$command took slots of a list of hosts: $code"
    says err "cluster $command: --slots 2, but --hosts hosts says how many ranks each host has"
done
! cluster check --hosts missing >out 2>err || fail "it took a missing file"
says err 'cannot read missing, the list of hosts: No such file'

# ---- This machine ----

cluster check --slots 2 sh >out || fail "check"
says out 'ok      2 slots'
! cluster check no-such-program >out || fail "check finds a program that is not there"
says out 'has no program no-such-program'
! cluster check --slots 2 --trireme /no/such/trireme >out || fail "check finds a command that is not there"
says out 'localhost            failed  localhost has no command /no/such/trireme: '

# A banner, on either stream, before the answer or the reason.
printf '#!/bin/sh\nfor i in $(seq 100); do echo "*****************************************"; done | tee /dev/stderr\n' >banner
cp banner refuses
echo 'shift $(($# - 1)); exec sh -c "$1"' >>banner
echo 'echo "user@far: Permission denied (publickey)." >&2; exit 255' >>refuses
chmod +x banner refuses
echo far >hosts
cluster check --hosts hosts --ssh ./banner sh >out || fail "check behind a banner"
says out 'far                  ok      1 slots'
! cluster check --hosts hosts --ssh ./refuses sh >out || fail "check of a host that refuses"
says out 'far cannot be reached: user@far: Permission denied (publickey).: it would ask for a password'

# A Python program of this folder is run by python3, and so need not be one that can be executed.
echo 'import os; print("python", os.environ["WORLD_SIZE"])' >hello.py
cluster check --slots 2 hello.py >out || fail "check of a Python program"
cluster start --slots 2 hello.py >out 2>err || fail "start of a Python program"
says out '[1] python 2'
! cluster check --slots 2 none.py >out || fail "check finds a Python program that is not there"
says out 'has no program none.py'

cluster start --timeout 77 sh -c 'echo "waits $TRIREME_TIMEOUT"' >out 2>err || fail "start --timeout"
says out 'waits 77'

cluster start --slots 2 --max-restarts 1 sh -c '[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] || exit 3; echo again' >out 2>err ||
    fail "start --max-restarts"
says out '[1] again'
says err ') exited with 3 after'
says err 'exited with 3'
says err 'all ranks are started again, time 1 of 1'
cluster start --slots 3 --max-restarts 1 --min-ranks 2 sh -c '[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] || exit 3; echo "of $WORLD_SIZE"' >out \
    2>err || fail "start --min-ranks"
says out '[1] of 2'
says err '2 of 3 ranks are started again, time 1 of 1'
# What began again is not why it ended.
! cluster start --slots 1 --max-restarts 1 --job lost sh -c '[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] || exit 3; kill -9 $PPID' >out 2>err ||
    fail "a launcher was killed, but not the job"
says err 'trireme cluster start: localhost: its launcher, or ssh, ended with exit code 137'
cluster logs lost >out
says out 'exited with 3'

cluster start --slots 3 --job words sh -c 'echo "$RANK of $WORLD_SIZE: it'\''s \"$0\" $1"' 'a  b' '$HOME' >out 2>err || fail "start"
sort out >sorted
printf "[0] 0 of 3: it's \"a  b\" \$HOME\n[1] 1 of 3: it's \"a  b\" \$HOME\n[2] 2 of 3: it's \"a  b\" \$HOME\n" | cmp -s - sorted ||
    fail "words do not arrive"
cluster logs --rank 1 >out
[ "$(cat out)" = "[1] 1 of 3: it's \"a  b\" \$HOME" ] || fail "logs of a rank"
! cluster logs --rank 3 words >out 2>err || fail "logs of no rank"
says err 'job words has 3 ranks: there is no rank 3'
cluster status words >out
says out '3 ranks on 1 hosts'
says out 'ended: all ranks ended well'
! cluster start --slots 2 sh -c 'echo last words; exit $((RANK * 7))' >out 2>err || fail "a rank failed, but not the job"
says err 'trireme cluster start: rank 1 (pid'
says err 'exited with 7'
! cluster status nothing 2>err || fail "status of nothing"
says err 'no job nothing is known'

# Lines of the launchers' longest length come whole.
cluster start --slots 1 --job long sh -c 'head -c 20000 /dev/zero | tr "\\0" x; echo' >out || fail "long lines"
[ "$(awk '{ print length }' out | tr '\n' ' ')" = "16388 3620 " ] || fail "pieces of $(awk '{ print length }' out)"
cluster logs long | cmp -s - out || fail "logs of long lines"

# In the background, and seen from here.
cluster start --slots 2 --detach --job behind sh -c "trap 'echo bye; exit 143' TERM; echo hello; sleep $mark & wait" >out || fail "detach"
[ "$(cat out)" = behind ] || fail "detach does not name the job"
cluster status >out
says out 'running for'
for how in '' --detach; do
    ! cluster start --slots 1 --job behind $how true 2>err || fail "two jobs of one name"
    says err 'a job behind is running'
done
cluster logs --follow behind >followed & follower=$!
until_says followed '[1] hello'
until_says followed '[0] hello'
cluster stop behind || fail "stop"
wait $follower || fail "following"
says followed '[0] bye'
says followed '[1] bye'
cluster status >out
says out 'stopped by signal 15'
until_gone "sleep $mark"

# Its ranks take no notice.
stubborn="trap 'echo no' TERM; echo hello; while :; do sleep 0.05; done; : $mark"
cluster start --slots 2 --detach --job stubborn sh -c "$stubborn" >out
until_says state/stubborn/log '[0] hello'
until_says state/stubborn/log '[1] hello'
cluster stop --timeout 0.5 stubborn || fail "stop of stubborn ranks"
says state/stubborn/log '[1] no'
! pgrep -f ": $mark" || fail "stop has returned too early"
cluster status stubborn >out
says out 'stopped by signal 15'

# The process that a job is bound to is killed.
cluster start --slots 2 --detach --job orphan sh -c "echo hello; sleep $mark" >out
until_says state/orphan/log '[1] hello'
kill -9 "$(sed 's/.* pid \([0-9]*\) .*/\1/' state/orphan/job)"
until_gone "sleep $mark"
cluster status >out
says out 'was killed'

# ---- Two hosts ----

skip() { echo "jobs on two hosts: skipped: $*"; exit 0; }
sshd=$(PATH=$PATH:/usr/sbin:/sbin command -v sshd) || skip "there is no sshd"
[ "$(id -u)" = 0 ] || skip "only root makes network namespaces"
[ "$(cat /proc/self/setgroups 2>/dev/null)" != deny ] || skip "sshd needs setgroups(), which this user namespace denies"
first=trireme$$a second=trireme$$b
ip netns add $first 2>/dev/null || skip "network namespaces cannot be made here"
ip netns add $second
spaces="$first $second"
ip -n $first link add eth0 type veth peer name eth0 netns $second || skip "network namespaces cannot be joined here"
ip -n $first address add 10.78.0.1/24 dev eth0
ip -n $second address add 10.78.0.2/24 dev eth0
for space in $spaces; do
    ip -n $space link set lo up
    ip -n $space link set eth0 up
done

ssh-keygen -q -t ed25519 -N '' -f host_key
ssh-keygen -q -t ed25519 -N '' -f user_key
ssh-keygen -q -t ed25519 -N '' -f other_key
cp user_key.pub authorized
chmod 600 authorized
chmod 755 "$work"
cat >sshd_config <<END
HostKey $work/host_key
AuthorizedKeysFile $work/authorized
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
END
cat >ssh_config <<END
Host *
    IdentityFile $work/user_key
    IdentitiesOnly yes
    UserKnownHostsFile $work/known
    StrictHostKeyChecking accept-new
    GlobalKnownHostsFile /dev/null
    LogLevel ERROR
Host a
    HostName 10.78.0.1
Host b
    HostName 10.78.0.2
END
mkdir -p /run/sshd
# The server of a host is the first process of a process namespace, so the host can be switched off with all that runs on it.
serve() {
    ip netns exec "$1" unshare --pid --fork --kill-child --mount-proc "$sshd" -D -e -f "$work/sshd_config" \
        -o ListenAddress="$2" 2>>"$work/sshd.log" & servers="$servers $!"
}
unshare --pid --fork --mount-proc true 2>/dev/null || skip "process namespaces cannot be made here"
serve $first 10.78.0.1
serve $second 10.78.0.2
shown="out err sshd.log"
# The jobs are started on the first host.
on() { ip netns exec $first timeout 120 "$TRIREME" cluster "$@"; }
with="--hosts $work/two --ssh"
printf 'a slots=2 address=10.78.0.1\nb slots=3 address=10.78.0.2\n' >two
tries=0
until on check $with "ssh -F $work/ssh_config" >out 2>err; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || fail "the hosts cannot be reached"
    sleep 0.1
done
says out 'b                    ok      3 slots'

sed "s/user_key/other_key/" ssh_config >ssh_other
! on check $with "ssh -F $work/ssh_other" >out 2>err || fail "it got in with another key"
says out 'b cannot be reached: '
says out 'it would ask for a password, which nobody can type here'
! on check $with "ssh -F $work/ssh_config" no-such-program >out 2>err || fail "a missing program"
says out 'b has no program no-such-program in this folder'

# Ranks on both hosts are one group.
run="--state $work/state $with"
on start $run "ssh -F $work/ssh_config" "$BUILD/process/collectives" where >out 2>err || fail "start on two hosts"
for rank in 0 1 2 3 4; do says out "rank $rank of 5"; done

# Hosts that ssh reaches as another user: the address is what follows.
printf 'root@10.78.0.1\nroot@10.78.0.2\n' >users
on start --state "$work/state" --hosts "$work/users" --ssh "ssh -F $work/ssh_config" "$BUILD/process/collectives" where >out 2>err ||
    fail "start as another user"
says out "rank 1 of 2"

# A rank fails, and all ends with its cause.
! on start $run "ssh -F $work/ssh_config" sh -c "[ \$RANK = 3 ] && kill -9 \$\$; sleep $mark" >out 2>err || fail "a killed rank"
says err 'trireme cluster start: node 1'
says err 'rank 3 (pid'
says err 'was killed by signal 9'
until_gone "sleep $mark"

# Stopped from another shell.
on start $run "ssh -F $work/ssh_config" --job both sh -c "echo up; sleep $mark" >out 2>err & started=$!
until_says out '[0] up'
until_says out '[4] up'
cluster stop both || fail "stop"
wait $started && fail "a job that was stopped ended well"
until_gone "sleep $mark"

# So are ranks that take no notice; and when the process that they are bound to is killed.
for how in stop kill; do
    : >out
    on start $run "ssh -F $work/ssh_config" --job $how sh -c "$stubborn" >out 2>err & started=$!
    until_says out '[0] hello'
    until_says out '[4] hello'
    if [ $how = stop ]; then
        cluster stop --timeout 0.5 stop || fail "stop of stubborn ranks"
        ! pgrep -f ": $mark" || fail "stop has returned too early"
    else
        kill -9 "$(sed 's/.* pid \([0-9]*\) .*/\1/' state/kill/job)"
    fi
    wait $started && fail "a job that was stopped ended well"
    until_gone ": $mark"
done

# A host is switched off.
: >out # what the job before has said is not this one's
on start $run "ssh -F $work/ssh_config" sh -c "echo up; sleep $mark" >out 2>err & started=$!
until_says out '[0] up'
until_says out '[4] up'
kill -9 "${servers##* }"
wait $started && fail "a job that lost a host ended well"
says err 'trireme cluster start: '
grep -qE 'node 1 .* is gone|^trireme cluster start: b: its launcher, or ssh, ended' err || fail "the lost host is not named"
until_gone "sleep $mark"
