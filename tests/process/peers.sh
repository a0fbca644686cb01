#!/bin/sh
# What PyTorch's side of `trireme bench model` shares, bench/peer/training.py, times steps with a PyTorch as old as it says it takes:
# a stand-in has of 1.13 what a step on the CPU needs. Its devices are no contexts.
. "$SOURCE/tests/process/common"
cd "$work"
shown="out err"
mkdir -p torch/distributed
cat >torch/__init__.py <<'END'
import contextlib
from . import nn
__version__ = "1.13.1"
bfloat16 = None
autocast = lambda device, dtype, enabled: contextlib.nullcontext()
set_num_threads = set_flush_denormal = manual_seed = lambda value: None
class device:
    def __init__(self, name):
        self.name = name
END
touch torch/nn.py torch/distributed/__init__.py
cat >peer.py <<'END'
import os
import sys
import types
sys.path.insert(0, os.environ["PEERS"])
import training

def build(args):
    nothing = lambda **_: None
    return lambda: types.SimpleNamespace(backward=nothing), types.SimpleNamespace(zero_grad=nothing, step=nothing), (), args.batch

training.run(training.parser("A stand-in.", batch=3).parse_args(), build)
END
export PEERS="$SOURCE/bench/peer" PYTHONPATH="$work" PYTHONDONTWRITEBYTECODE=1
python3 peer.py --steps 4 --warmup 1 --json r.json >out 2>err || fail "it does not run"
[ "$(sed -n '/"step_ms": \[/,/]/p' r.json | wc -l)" = 6 ] && grep -q '"device_peak_mb": null' r.json || fail "another result: $(cat r.json)"
