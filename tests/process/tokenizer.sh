#!/bin/sh
# `trireme tokenizer`: a vocabulary from a text, and what it makes of texts.
. "$SOURCE/tests/process/common"
cd "$work"
corpus=$SOURCE/tests/recorded/tokenizers/corpus.txt

"$TRIREME" tokenizer train --data "$corpus" --vocab 701 --out own.json >out 2>err || fail "exit code $?"
grep -q '^701 tokens in own.json: ' out || fail "it does not say what it has made"
mkfifo pipe
cat "$corpus" >pipe & # and no second time
job=$!
timeout 60 "$TRIREME" tokenizer train --data pipe --vocab 701 --out piped.json >out 2>err || fail "exit code $? of a pipe"
wait "$job"
job=
grep -q '^701 tokens in piped.json$' out && cmp -s own.json piped.json || fail "another vocabulary from a pipe"
"$TRIREME" tokenizer encode --tokenizer own.json 'the license<|endoftext|>é' >out 2>err || fail "exit code $?"
"$TRIREME" tokenizer encode --tokenizer "$SOURCE/tests/recorded/tokenizers/gpt2.json" 'the license<|endoftext|>é' >theirs 2>err
diff out theirs || fail "other tokens than Hugging Face's trainer has found"
grep -q '^    700  <|endoftext|>$' out || fail "no special token"

! "$TRIREME" tokenizer encode --tokenizer own.json a >/dev/full 2>err && grep -q 'cannot write to stdout' err ||
    fail "a disk is full, and all is well"

refuses() { # CODE MESSAGE ARGUMENT…
    want=$1 message=$2 code=0
    shift 2
    "$TRIREME" tokenizer "$@" >out 2>err || code=$?
    [ $code = "$want" ] || fail "exit code $code instead of $want: tokenizer $*"
    grep -qF -e "$message" err || fail "no \"$message\": tokenizer $*"
}
refuses 1 "nowhere" train --data nowhere
refuses 1 "cannot write /nowhere/x.json" train --data "$corpus" --out /nowhere/x.json
refuses 1 "nowhere" encode --tokenizer nowhere a
refuses 2 "--vocab takes" train --data "$corpus" --vocab 5
refuses 2 'there is no "trian"' trian
