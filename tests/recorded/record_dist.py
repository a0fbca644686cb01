#!/usr/bin/env python3
"""Records what PyTorch's distributed autograd leaves on three workers, for tests/unit/test_dist.c.

Each worker has a layer, tanh(x W^T + b); worker 0 makes calls in a pattern. Writes dist.safetensors: "x", "wN.weight",
"wN.bias", and for each pattern "PATTERN.loss" and the gradients "PATTERN.wN.weight", "PATTERN.wN.bias".
"""
import os

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp

from safetensors_file import save

WIDTH, BATCH, WORKERS = 4, 2, 3
PATTERNS = ["chain", "nested", "cycle", "fan"]


def make_layer(worker: int) -> torch.nn.Linear:
    torch.manual_seed(worker + 1)
    return torch.nn.Linear(WIDTH, WIDTH, dtype=torch.float64)


net = None


def layer(x):
    return torch.tanh(net(x))


def relay(x, to):
    h = layer(x)
    return h + rpc.rpc_sync(to, layer, args=(h,))


def grads(context):
    all_grads = dist_autograd.get_gradients(context)
    return [all_grads[net.weight], all_grads[net.bias]]


def run(pattern: str, x: torch.Tensor) -> torch.Tensor:
    h = layer(x)
    if pattern == "chain":
        y = rpc.rpc_sync("w2", layer, args=(rpc.rpc_sync("w1", layer, args=(h,)),))
    elif pattern == "nested":
        y = rpc.rpc_sync("w1", relay, args=(h, "w2"))
    elif pattern == "cycle":
        y = rpc.rpc_sync("w1", relay, args=(h, "w0"))
    else:
        a, b = rpc.rpc_async("w1", layer, args=(h,)), rpc.rpc_async("w2", layer, args=(h,))
        y = a.wait() + b.wait() + rpc.rpc_sync("w1", layer, args=(h * h,))
    return (y * y).sum()


def record() -> None:
    torch.manual_seed(7)
    x = torch.randn(BATCH, WIDTH, dtype=torch.float64)
    out = {"x": x}
    for worker in range(WORKERS):
        layer_there = make_layer(worker)
        out[f"w{worker}.weight"], out[f"w{worker}.bias"] = layer_there.weight.detach(), layer_there.bias.detach()
    for pattern in PATTERNS:
        with dist_autograd.context() as context:
            loss = run(pattern, x)
            dist_autograd.backward(context, [loss])
            out[f"{pattern}.loss"] = loss.detach()
            for worker in range(WORKERS):
                if pattern == "cycle" and worker == 2:
                    continue
                weight, bias = rpc.rpc_sync(f"w{worker}", grads, args=(context,))
                out[f"{pattern}.w{worker}.weight"], out[f"{pattern}.w{worker}.bias"] = weight, bias
    save(os.path.join(os.path.dirname(__file__), "dist.safetensors"),
         out, {"torch": torch.__version__})


def work(rank: int) -> None:
    global net
    net = make_layer(rank)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29611")
    rpc.init_rpc(f"w{rank}", rank=rank, world_size=WORKERS)
    if rank == 0:
        record()
    rpc.shutdown()


if __name__ == "__main__":
    mp.spawn(work, nprocs=WORKERS)
