#!/bin/sh
# `trireme checkpoint`: what a checkpoint is, whether it is whole, and how two of them differ.
. "$SOURCE/tests/process/common"
cd "$work"
i=0
while [ $i -lt 200 ]; do echo "line $i of a text"; i=$((i + 1)); done >text
train() { # FOLDER ARGUMENT…
    folder=$1
    shift
    "$TRIREME" train gpt --data text --layers 1 --heads 2 --dim 16 --context 16 --batch 4 --steps 6 --save-every 3 --threads 1 \
        --out "$folder" "$@" >out 2>err || fail "exit code $? of a training"
}
train a
train b
train c --seed 2

expect() { # CODE PATTERN ARGUMENT…: standard output or error has a line with the pattern
    want=$1 pattern=$2 code=0
    shift 2
    "$TRIREME" checkpoint "$@" >out 2>err || code=$?
    [ $code = "$want" ] || fail "exit code $code instead of $want: checkpoint $*"
    cat out err | grep -qe "$pattern" || fail "no '$pattern': checkpoint $*"
}
says() { grep -qe "$1" "${2:-out}" || fail "no '$1'"; }

# What is whole, in each of the three forms of a path.
expect 0 '^a/checkpoint-3: whole: 3 files by SHA-256, 73 tensors by CRC-32C' verify a --json json
says '^a/checkpoint-6: whole'
says '"fine":	true' json
expect 0 '^a/checkpoint-6: whole' verify a/checkpoint-6
expect 0 '^a/checkpoint-6/model.safetensors: whole: 1 file ' verify a/checkpoint-6/model.safetensors
cp a/checkpoint-6/model.safetensors alone.safetensors
expect 0 '^alone.safetensors: readable, not verified: no manifest' verify alone.safetensors

# What it is.
expect 0 '^  step      6$' show a --json json
says '^  loss      [0-9]'
says "^  saved by  $("$TRIREME" --version | sed 's/trireme/Trireme/')$"
says '^  save      [0-9a-f]\{32\}$'
says '^  settings  [0-9a-f]\{64\}$'
says '^  verified  whole: 3 files'
says '^  trireme.preset  *nano$'
says '^model.safetensors, 16 tensors, [0-9]* bytes$'
says '^  wte.weight  *f32   \[256, 16\]$'
says '^state.safetensors, 48 tensors'
says '^history.safetensors, 9 tensors'
says '"trireme.preset":	"nano"' json
sed '/"metadata":/,$d' json >known # whose keys are the checkpoint's
documented known 'checkpoint show'
expect 0 '^  step      3$' show a/checkpoint-3

# How two differ.
expect 0 '^the same: 64 tensors, bit for bit, and their metadata$' diff a b --json json
says '"same":	true' json
expect 1 '^different: 64 tensors, by up to ' diff a/checkpoint-3 c --json json
says '^  trireme.seed: 1 | 2$'
says '^  wte.weight: [0-9]* of 4096 values differ, the first at index [0-9]*; by up to [0-9.e-]*, relative [0-9.e-]*$'
says '"max_absolute":	0\.' json
documented json 'checkpoint diff'
expect 0 '^the same: 16 tensors' diff a alone.safetensors
train wide --dim 24
expect 1 'wte.weight: f32 \[256, 16\] | f32 \[256, 24\]$' diff a wide
train deep --layers 2
expect 1 'h.1.ln_1.weight: only in deep, f32 \[16\]$' diff a deep --json json
documented json 'checkpoint diff'

# What is damaged is named, in the other checkpoints' company, and is not compared.
cp -r a damaged
printf 'XYZ' | dd of=damaged/checkpoint-6/state.safetensors bs=1 seek=9000 conv=notrunc 2>dd || fail "cannot damage a file"
expect 1 '^damaged/checkpoint-6: DAMAGED in 1 part$' verify damaged --json json
says '^damaged/checkpoint-3: whole'
says 'state.safetensors: is damaged in tensor "wte.weight.exp_avg", bytes [0-9]* to [0-9]*: CRC-32C'
says '"tensor":	"wte.weight.exp_avg"' json
documented json 'checkpoint verify'
expect 1 'DAMAGED in 1 part' show damaged
expect 1 'is damaged in tensor "wte.weight.exp_avg"' diff a damaged

# A power cut may leave a folder without its files.
mkdir damaged/checkpoint-9
expect 1 '^damaged/checkpoint-9: DAMAGED in 1 part$' verify damaged
says '^  damaged/checkpoint-9/model.safetensors: is missing$'

# One that a new one was to replace counts until that is there.
cp -r a replaced
mv replaced/checkpoint-6 replaced/.checkpoint-6
expect 0 '^replaced/.checkpoint-6: whole' verify replaced
says '^replaced/checkpoint-3: whole'
cp -r a/checkpoint-6 replaced
printf 'XYZ' | dd of=replaced/.checkpoint-6/state.safetensors bs=1 seek=9000 conv=notrunc 2>dd || fail "cannot damage a file"
expect 0 '^replaced/checkpoint-6: whole' verify replaced
rm -r replaced/checkpoint-6 replaced/checkpoint-3
expect 1 '^replaced/.checkpoint-6: DAMAGED in 1 part$' verify replaced

# Results replace a file whole or not at all, also where a link leads to it; they are written into what is no file.
mkdir elsewhere
ln -s elsewhere/kept link
echo old >elsewhere/kept
(trap '' XFSZ && ulimit -f 0 && exec "$TRIREME" checkpoint verify a --json link) 2>&1 | cat >out # nor can the shell write
says 'cannot write .*/elsewhere/kept: File too large'
[ "$(cat elsewhere/kept)" = old ] || fail "the results of before are gone: $(cat elsewhere/kept)"
expect 0 '^a/checkpoint-6: whole' verify a --json link
says '"fine":	true' elsewhere/kept
[ -h link ] && [ "$(ls elsewhere)" = kept ] || fail "not one file: $(ls elsewhere)"
rm elsewhere/kept # the link stays without it, too
expect 0 '^a/checkpoint-6: whole' verify a --json link
[ -h link ] && says '"fine":	true' elsewhere/kept || fail "the results have taken the place of a link"
if [ "$(id -u)" = 0 ]; then # so does the owner
    chown 1234 elsewhere/kept
    expect 0 '^a/checkpoint-6: whole' verify a --json link
    [ "$(stat -c %u elsewhere/kept)" = 1234 ] && says '"fine":	true' elsewhere/kept || fail "the results are another's"
fi
"$TRIREME" checkpoint verify a --json /dev/stderr >out 2>err || fail "exit code $?"
says '"fine":	true' err
mkfifo pipe
cat pipe >read & # it has opened the pipe when the command begins, or opens it later
reader=$!
"$TRIREME" checkpoint verify a --json pipe >out 2>err &
job=$!
end
wait $reader
[ $code = 0 ] && says '"fine":	true' read || fail "exit code $code: nothing came through a pipe"

for command in 'verify a' 'show a' 'diff a b'; do
    expect 1 'cannot write nowhere/json' $command --json nowhere/json
    [ ! -s out ] || fail "it reads for nothing: $command"
    code=0
    "$TRIREME" checkpoint $command >/dev/full 2>err || code=$?
    [ $code = 1 ] && grep -q 'cannot write to stdout' err || fail "exit code $code of $command onto a full disk"
done

expect 1 'nowhere: there is no checkpoint' verify a nowhere
says '^a/checkpoint-6: whole'
expect 1 'nowhere: there is no checkpoint' show nowhere
expect 1 'nowhere: there is no checkpoint' diff a nowhere
expect 1 '^  text: is cut short or no safetensors file' verify text
expect 2 'say what to do' # nothing
expect 2 'there is no "check"' check a
expect 2 'something is missing' verify
expect 2 'something is missing' diff a
expect 2 'unexpected "b"' show a b
