#!/bin/sh
# The README's program on three ranks: no two draw the same samples, in any step.
. "$SOURCE/tests/process/common"

start -n 3 "$BUILD/process/readme_seeds"
end
[ $code = 0 ] || fail "exit code $code"
sed -n 's/^\[[0-2]\] seed //p' "$work/out" | sort >"$work/seeds"
[ "$(wc -l <"$work/seeds")" = 3000 ] || fail "three ranks drew $(wc -l <"$work/seeds") times in 1000 steps"
[ -z "$(uniq -d "$work/seeds")" ] || fail "$(uniq -d "$work/seeds" | wc -l) seeds were drawn from more than once"
