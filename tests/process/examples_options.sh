#!/bin/sh
# The examples do not take a word that they do not know for another one, nor leave it out.
. "$SOURCE/tests/process/common"
cd "$work"

# refuses MESSAGE PROGRAM ARGUMENT…: wrong usage, and nothing is trained
refuses() {
    message=$1 code=0
    shift
    timeout 60 "$BUILD/examples/$@" >out 2>err || code=$?
    [ $code = 2 ] && [ ! -s out ] || fail "exit code $code: $*"
    grep -qF -e "$message" err || fail "no \"$message\": $*"
}
for program in model_split resnet_on_workers rnn_remote_embedding rpc_model_split tensor_parallel transformer_on_workers; do
    for words in "--stpes 1" "--steps" "--help" "5"; do
        # shellcheck disable=SC2086
        refuses "usage: $program [--device NAME]" $program $words
    done
done
for program in cluster data_parallel_rpc fully_shard gan hybrid_gpt hybrid_parallel hybrid_rpc sharded_optimizer spawn_ddp vae; do
    refuses 'there is no option --stpes' $program --stpes 1
done
refuses 'usage: data_parallel' data_parallel --stpes 1
refuses '1 trainer or more, not 0' hybrid_rpc 0
refuses '1 to 8 actors' actor_learner 0
refuses '1 to 16 trainers' parameter_server 0
refuses '1 to 8 stages' rpc_pipeline 0
