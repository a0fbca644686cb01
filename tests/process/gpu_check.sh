#!/bin/bash
# scripts/gpu-check without a GPU: that it says so, and with stand-ins for nvidia-smi, nvcc, compute-sanitizer, a GPU's
# programs and PyTorch, that its timings are command lines which `trireme bench model` takes, and what it writes into
# docs/gpu.md.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "$*"; cat "$work/said"; exit 1; }
mkdir -p "$work"/{tree/scripts,tree/docs,tree/build/tests/cuda,bin}
cp "$SOURCE/scripts/gpu-check" "$work/tree/scripts"
cp "$SOURCE/docs/gpu.md" "$work/tree/docs"
cd "$work/tree"
PATH=$work/bin:$PATH
program() { cat >"$1"; chmod +x "$1"; }

program "$work/bin/nvcc" <<<'#!/bin/sh
echo "Cuda compilation tools, release 12.4, V12.4.131"'
program "$work/bin/nvidia-smi" <<<'#!/bin/sh
exit 9'
scripts/gpu-check build >"$work/said" && fail "it runs without a GPU"
[[ $(<"$work/said") == "gpu-check: no GPU: nvidia-smi shows none: skipped" ]] || fail "without a GPU it says:"

program "$work/bin/nvidia-smi" <<<'#!/bin/sh
case $1 in *=name) echo "Stand-in 80GB" ;; *=compute_cap) echo 9.0 ;; *=driver_version) echo 550.54 ;; *) exit 1 ;; esac'
program "$work/bin/compute-sanitizer" <<<'#!/bin/sh
while [ ! -x "$1" ]; do shift; done
exec "$@"'
program build/tests/cuda/cuda_gpu_ops <<<'#!/bin/sh
[ "${1:-}" != bf16 ] || { echo "element 3 is | wrong"; exit 1; }'
program build/tests/cuda/cuda_gpu_optim <<<'#!/bin/sh
exit 0'
program build/tests/cuda/cuda_gpu_capture <<<'#!/bin/sh
[ -n "$TRIREME_PLUGINS" ]'
# Takes what the real one takes, and times a small model on the CPU.
program build/trireme <<'END'
#!/bin/bash
if [ "$1" = doctor ]; then sleep "${SLOW:-0}"; echo "CUDA: 1 device"; exit; fi
if [[ $* != *--json* ]]; then echo "cuda: libcudnn.so.9 ${MISSING:+cannot be opened: convolutions have slower kernels}"; exit; fi
"$TRIREME" "$@" --help | grep -q '^Usage: trireme bench model' || { echo "not taken: $*"; exit 1; }
for ((i = 1; i <= $#; i++)); do
    next=$((i + 1))
    case ${!i} in --json) json=${!next} ;; --peer) peer=${!next} ;; esac
done
exec "$TRIREME" bench model --model mlp --batch 1 --steps 1 --warmup 1 --peer "$peer" --json "$json"
END
program "$work/bin/python" <<'END'
#!/bin/bash
[ "$1" != -c ] || exit 0
[ -f "$SOURCE/$1" ] && [[ " $* " == *" --device cuda "* ]] || exit 1
echo ready
while read -r _; do echo 1000; done
while [ $# -gt 1 ]; do [ "$1" != --json ] || printf '{\n "device_peak_mb": 7.25\n}\n' >"$2"; shift; done
END

MISSING=1 PYTHON=$work/bin/python scripts/gpu-check build kernels sanitizer speed >"$work/said" 2>&1 && fail "nothing failed, but one test does"
scripts/gpu-check build nonsense >"$work/said" 2>&1 && fail "it takes a stage that does not exist"
grep -q 'no stage "nonsense"; there are: build kernels' "$work/said" || fail "of an unknown stage it says:"
cp docs/gpu.md "$work/said"
page() { grep -q -e "$1" docs/gpu.md || fail "the page lacks \"$1\":"; }
page "1 × Stand-in 80GB, driver 550.54, CUDA 12.4\.$"
page '| op cases, CUDA against CPU: f32 | passed, [0-9]* s |'
page '| cuBLASLt and cuDNN are found | \*\*failed\*\* (1): `cuda: libcudnn.so.9 cannot be opened'
page '| captured steps: optimizers_count_the_runs | passed, [0-9]* s |'
page 'memcheck`, op cases: bf16 | \*\*failed\*\* (1): `element 3 is / wrong` |'
page '| gpt2, bf16, --batch 8 --seq 1024 | [0-9.]* ms a step, tensors hold [0-9]* MB; [0-9.]* times as fast as PyTorch, which has 7 MB |'
[[ $(grep -c 'times as fast as PyTorch' docs/gpu.md) == 12 ]] || fail "not all twelve timings are there:"
page '^## What emulation cannot show$'
if grep -q 'It has not been run yet' docs/gpu.md; then fail "it still says that it has not been run:"; fi

# A stage that runs again replaces its own rows alone.
before=$(grep -c '^| ' docs/gpu.md)
scripts/gpu-check build kernels >"$work/said" 2>&1 || fail "the kernels' stage fails:"
[[ $(grep -c '^| ' docs/gpu.md) == "$before" ]] || fail "rows are lost or doubled:"

# What takes too long is ended, and what comes after it is not begun. It is the first of all, so that no other takes the time.
SLOW=60 SECONDS_LEFT=3 scripts/gpu-check build kernels >"$work/said" 2>&1 && fail "it waits for ever"
page '| `trireme doctor` finds the GPU | not finished: the time is over |'
page '| cuBLASLt and cuDNN are found | not run: the time is over |'
