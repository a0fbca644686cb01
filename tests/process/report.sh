#!/bin/sh
# `trireme bench report`: the committed page of results is what its files make, README's figures stand in it, and results or
# templates that are wrong are errors that say what and where.
. "$SOURCE/tests/process/common"
cd "$work"
shown="err"

"$TRIREME" bench report "$SOURCE/bench/results" >page 2>err || fail "exit code $?"
diff page "$SOURCE/bench/RESULTS.md" >err || fail "bench/RESULTS.md is not what its files make: run make results"

sed -n '/^## How fast/,/^## What/p' "$SOURCE/README.md" | grep '^|' | grep -oE '[0-9][0-9,.]* (ms|µs|MB|%)|[0-9][0-9.]*×' >figures
[ "$(wc -l <figures)" -ge 12 ] || fail "README's table has lost its figures: $(cat figures)"
while read -r figure; do
    grep -qF " $figure " page || grep -qF "**$figure**" page || fail "README's \"$figure\" is not in bench/RESULTS.md"
done <figures

# A run of ours is a result, and the newest of its bench and family; keys of rows come first, then those of the result.
mkdir results
"$TRIREME" bench model --model mlp --batch 2 --steps 2 --warmup 0 --threads 1 --json results/new.json \
    --peer 'echo ready Peer 1.2; while read line; do echo 5.0; done' >out 2>err || fail "bench model"
for key in bench date commit machine family name cores versions trireme; do
    grep -q "\"$key\":" results/new.json || fail "no $key: $(cat results/new.json)"
done
grep -q '"bench":.*"model/f32/1x1/mlp"' results/new.json && grep -q '"peer":.*"Peer 1.2"' results/new.json ||
    fail "another bench or peer: $(cat results/new.json)"
family=$(sed -n 's/.*"family":[[:space:]]*"\(.*\)",*/\1/p' results/new.json)
result() { # result BENCH DATE MORE
    echo "{\"bench\": \"$1\", \"date\": \"$2\", \"commit\": \"abc\", \"machine\": {\"family\": \"$family\", \"name\": \"n\", \"cores\": 2},
 \"versions\": {\"trireme\": \"0\", \"peer\": null}, $3}"
}
result model/f32/1x1/mlp 2020-01-01 '"model": "old"' >results/old.json
{ echo '['; result rows 2020-01-01 '"ranks": 2, "results": [{"bytes": 65536, "us": 1234.5}, {"bytes": 4, "us": 0.25}]'; echo ']'; } >results/rows.json
cat >results/page.md.in <<'END'
Before
{{table model/f32/*/mlp
model | model
peer | peer_step_ms_median | ms
cores | machine.cores
}}
{{table rows
ranks | ranks
bytes | bytes | size
time | us | µs
}}
END
report() { "$TRIREME" bench report results "$@" >out 2>err; }
report || fail "exit code $?"
for line in Before '| mlp | 5 ms | 2 |' '| 2 | 64 KiB | 1,234 µs |' '| 2 | 4 B | 0.25 µs |' "**$family** (n, 2 cores), 2020-01-01 at \`abc\`:"; do
    case $line in *mlp*) line="| mlp | 5 ms | $(nproc --all) |" ;; esac
    grep -qxF "$line" out || fail "no line \"$line\": $(cat out)"
done
! grep -q old out || fail "an older run is shown: $(cat out)"

refuses() {
    ! report || fail "no error: $1"
    grep -qF "$1" err && [ ! -s out ] || fail "the message is not \"$1\""
}
printf '{"bench": "x",\n "date": }\n' >results/broken.json
refuses 'results/broken.json: line 2 is no JSON'
echo '{"bench": "x", "date": "2020-01-01"}' >results/broken.json
refuses 'results/broken.json: a result has no text "commit"'
result x yesterday '"a": 1' >results/broken.json
refuses 'the date is "yesterday", not one like 2026-11-25'
result rows 2020-01-01 '"a": 1' >results/broken.json
refuses '"rows" is in results/broken.json, too, of the same date'
result x 2020-01-01 '"a": 1' >results/broken.json
refuses 'results/broken.json: no table of results/page.md.in shows "x"'
rm results/broken.json
cp results/page.md.in page.md.in
sed 's/^time | us/time | milliseconds/' page.md.in >results/page.md.in
refuses 'line 11: no result of this table has the key "milliseconds"'
sed 's/^{{table rows/{{table columns/' page.md.in >results/page.md.in
refuses 'results/page.md.in: line 11: no result'"'"'s bench matches "columns"'
sed '$d' page.md.in >results/page.md.in
refuses 'no }} ends the table "rows"'
mkdir empty
! "$TRIREME" bench report empty --template page.md.in >out 2>err || fail "no results, no error"
grep -q 'empty: it has no results' err || fail "what is missing is not said"
