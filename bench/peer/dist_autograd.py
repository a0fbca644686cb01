#!/usr/bin/env python3
"""PyTorch's RPC, distributed autograd and DistributedOptimizer as the peer of `trireme bench dist-autograd`.

Prints "ready"; then for every line with a number it makes so many steps and prints their median in microseconds. Ends with
its input.
"""
import os
import socket
import statistics
import subprocess
import sys
import time

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch.distributed.optim import DistributedOptimizer

FEATURES, BATCH = 256, 32
torch.set_num_threads(1)


class Owner:
    def __init__(self):
        self.net = torch.nn.Linear(FEATURES, FEATURES)

    def forward(self, x):
        return self.net(x)

    def parameters(self):
        return [rpc.RRef(p) for p in self.net.parameters()]


def drive() -> None:
    there = rpc.remote("owner", Owner)
    here = torch.nn.Linear(FEATURES, FEATURES)
    parameters = [rpc.RRef(p) for p in here.parameters()] + there.rpc_sync().parameters()
    optimizer = DistributedOptimizer(torch.optim.SGD, parameters, lr=1e-6)
    x = torch.randn(BATCH, FEATURES)

    def step() -> float:
        began = time.perf_counter()
        with dist_autograd.context() as context:
            dist_autograd.backward(context, [there.rpc_sync().forward(here(x)).sum()])
            optimizer.step(context)
        return 1e6 * (time.perf_counter() - began)

    for _ in range(50):
        step()
    print(f"ready PyTorch {torch.__version__}", flush=True)
    for line in sys.stdin:
        print(statistics.median(step() for _ in range(int(line))), flush=True)


def main() -> None:
    rank = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    other = None
    if rank == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(probe.getsockname()[1]))
        other = subprocess.Popen([sys.executable, __file__, "1"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    rpc.init_rpc("owner" if rank else "trainer", rank=rank, world_size=2)
    if rank == 0:
        drive()
    rpc.shutdown()
    if other:
        other.wait()


if __name__ == "__main__":
    main()
