#!/bin/sh
# ctest: timeout=600
# nvcc.sh NVCC FOLDER: CUDA's compiler takes what the emulator runs: the kernels of test_kernels.cu for all cards,
# without a warning, and two files of the plug-in for one, without a spill. scripts/check-spills compiles all of it for
# all cards, which takes a quarter of an hour. Without nvcc it says so and exits 77.
set -eu
nvcc=$1 folder=$2
[ -x "$nvcc" ] || { echo "no nvcc: only g++ has compiled the CUDA plug-in, for the emulator"; exit 77; }
cards=
for card in 75 80 90 100; do cards="$cards -gencode arch=compute_$card,code=sm_$card"; done
# shellcheck disable=SC2086
"$nvcc" -std=c++17 -O1 $cards -Xcompiler -Wall,-Wextra -Werror all-warnings -I "$SOURCE/plugins/cuda" \
    -c "$SOURCE/tests/cuda/test_kernels.cu" -o "$folder/nvcc.o"
for file in norm softmax; do
    "$nvcc" -std=c++20 -O3 --extended-lambda --expt-relaxed-constexpr -Xptxas -v -I "$SOURCE/include" \
        -gencode arch=compute_90,code=sm_90 -c "$SOURCE/plugins/cuda/$file.cu" -o "$folder/nvcc.o" 2>"$folder/nvcc.log" ||
        { cat "$folder/nvcc.log"; exit 1; }
    grep -q ' 0 bytes spill stores' "$folder/nvcc.log" || { echo "$file: ptxas says nothing of spills"; exit 1; }
    if grep -B 2 '[1-9][0-9]* bytes spill stores' "$folder/nvcc.log"; then exit 1; fi
done
