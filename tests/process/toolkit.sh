#!/bin/sh
# CUDA's toolkit makes a plug-in possible and changes nothing else: with it and without, the library is made of the same
# sources by the same commands.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# configure NAME ARGUMENT…
configure() {
    name=$1
    shift
    cmake -S "$SOURCE" -B "$work/$name" -DBUILD_TESTING=OFF "$@" >"$work/$name.log" 2>&1 ||
        { cat "$work/$name.log"; exit 1; }
    (cd "$work/$name" && find CMakeFiles/trireme*.dir generated -type f \( -name flags.make -o -name build.make -o \
        -name link.txt -o -path 'generated/*' \) ! -path '*trireme_cuda*' | sort | xargs cat) |
        sed "s|$work/$name|BUILD|g" >"$work/$name.commands"
}
configure with -DTRIREME_NVCC=/bin/true
configure without -DTRIREME_NVCC= -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON
grep -q 'CUDA: /bin/true, for sm_' "$work/with.log" || { echo "nvcc was not seen:"; cat "$work/with.log"; exit 1; }
grep -q 'CUDA: no nvcc, so the plug-in for cuda devices is left out' "$work/without.log" ||
    { echo "it does not say that nvcc is missing:"; cat "$work/without.log"; exit 1; }
grep -q 'libtrireme.so' "$work/without.commands" || { echo "no command makes libtrireme.so"; exit 1; }
diff "$work/with.commands" "$work/without.commands" || { echo "the toolkit changes how the library is built"; exit 1; }
echo "$(wc -l <"$work/with.commands") lines of commands are the same"
