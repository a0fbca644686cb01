#!/bin/sh
# planted.sh WORDS PROGRAM [TEST]: passes when this test of a program, whose plug-in has a fault, fails under one of
# four seeds with a message that has these words. An order of events may be right by chance, so that one seed can miss
# what another finds.
words=$1
shift
said=$(mktemp)
trap 'rm -f "$said"' EXIT
for seed in 1 2 3 4; do
    if CUDA_EMULATOR=seed=$seed "$@" >"$said" 2>&1; then continue; fi
    if grep -q -e "$words" "$said"; then
        echo "found with seed $seed: $(grep -m 1 -e "$words" "$said")"
        exit 0
    fi
    echo "It fails without a word of \"$words\":"
    cat "$said"
    exit 1
done
echo "$*: the fault was not found"
exit 1
