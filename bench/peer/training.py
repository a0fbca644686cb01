"""What the PyTorch peers of `trireme bench model` share: whole training steps on the CPU or a GPU, at PyTorch's best.

Runs under PyTorch 2.x and 1.13. One step is: forgetting the gradients, forward, loss, backward, the optimizer's step.

    PEER.py --threads 1 --steps 20 --json out.json
    PEER.py --ranks 2 --threads 1                  DDP over Gloo on the loopback, --batch samples on each rank
    PEER.py --ranks 2 --backend trireme            DDP over ours; shared: with large tensors where the ranks map them;
                                                   none: each rank trains for itself, the limit of what any backend reaches
    PEER.py --ranks 2 --parallel fsdp2             FSDP2 in the place of DDP: each of a model's blocks sharded over the ranks
    PEER.py --device cuda                          on a GPU, one rank
    PEER.py --paced                                prints "ready" after the warm-up; then for each line that it reads it
                                                   runs as many steps as the line says and prints the milliseconds of
                                                   one; ends with its input

The object that goes to --json FILE (or is printed last, when not paced): what machine.py says, framework, step_ms (all),
step_ms_median, items_per_s (tokens or samples, of all ranks), peak_rss_mb and rss_after_import_mb (VmHWM and VmRSS of rank 0; VmHWM
begins anew with a program, ru_maxrss does not), device_peak_mb (of tensors), ranks, threads, config.
"""
import argparse
import contextlib
import importlib
import inspect
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Callable, Iterator

import machine

JEMALLOC = f"/usr/lib/{platform.machine()}-linux-gnu/libjemalloc.so.2"
# Activations that malloc gives back to the kernel come again as page faults, some 13,000 in every step of GPT "mini".
# The tuned ones keep them, on huge pages; jemalloc is the faster one, glibc stands in where it is not installed.
MALLOCS = {
    "system": {},
    "glibc": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=33554432:"
                                "glibc.malloc.trim_threshold=17179869184:glibc.malloc.top_pad=67108864"},
    "jemalloc": {"LD_PRELOAD": JEMALLOC, "THP_MEM_ALLOC_ENABLE": "1",
                 "MALLOC_CONF": "thp:always,metadata_thp:auto,dirty_decay_ms:-1,muzzy_decay_ms:-1"},
}


def parser(doc: str, batch: int) -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=doc + "\n\n" + __doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--batch", type=int, default=batch, help="samples per rank and step")
    result.add_argument("--steps", type=int, default=20)
    result.add_argument("--warmup", type=int, default=3)
    result.add_argument("--threads", type=int, default=1, help="per rank")
    result.add_argument("--ranks", type=int, default=1)
    result.add_argument("--backend", choices=["gloo", "trireme", "shared", "none"], default="gloo")
    result.add_argument("--parallel", choices=["ddp", "fsdp2"], default="ddp")
    result.add_argument("--paced", action="store_true")
    result.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    result.add_argument("--dtype", choices=["f32", "bf16"], default="f32", help="bf16: under autocast")
    result.add_argument("--compile", action="store_true", help="torch.compile (needs g++)")
    result.add_argument("--step-in-backward", action="store_true",
                        help="an optimizer per parameter, stepped as its gradient is final (one rank; since 2.1)")
    result.add_argument("--json", metavar="FILE")
    result.add_argument("--malloc", choices=MALLOCS, default="jemalloc" if os.path.exists(JEMALLOC) else "glibc")
    return result


def tuned_environment(args: argparse.Namespace) -> dict[str, str]:
    env = dict(os.environ, OMP_NUM_THREADS=str(args.threads), MKL_NUM_THREADS=str(args.threads),
               **MALLOCS[args.malloc])
    with open("/proc/cpuinfo") as cpuinfo:
        if "avx512bw" in cpuinfo.read():
            # For Debian's 1.13: its OpenBLAS takes processors newer than itself for a Prescott, at a fifth of their
            # speed, and its own kernels stay with AVX2 unless they are told.
            env.setdefault("OPENBLAS_CORETYPE", "SkylakeX")
            env.setdefault("ATEN_CPU_CAPABILITY", "avx512")
    return env


def own_rank() -> int:
    return int(os.environ.get("PEER_RANK", "0"))


def status_mb(key: str) -> float:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(key + ":"))


def device_peak_mb(device: str) -> float | None:
    """What tensors held at most; what PyTorch keeps beyond that counts no more than what ours keeps."""
    import torch

    return torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else None


def start_ranks(args: argparse.Namespace, env: dict[str, str], folder: str) -> int:
    """Runs this script once per rank; rank 0 has our stdin and stdout. The first that fails takes the others along."""
    ranks = []
    for rank in range(args.ranks):
        own = dict(env, PEER_RANK=str(rank), GLOO_SOCKET_IFNAME="lo", PEER_RENDEZVOUS=f"file://{folder}/rendezvous")
        ranks.append(subprocess.Popen([sys.executable, *sys.argv], env=own,
                                      stdin=None if rank == 0 else subprocess.DEVNULL))
    for _ in ranks:
        _, status = os.wait()
        if status:
            for process in ranks:
                process.kill()
                process.wait()
            return 1
    return 0


def fastest(optimizer, parameters, **settings):
    """The fused form of an optimizer where there is one on the CPU: for most since 2.4."""
    try:
        return optimizer(parameters, fused=True, **settings)
    except (RuntimeError, TypeError):
        return optimizer(parameters, foreach=True, **settings)


def settings_of(optimizer, group: dict) -> dict:
    """What an optimizer of its type takes, to be made again for other parameters."""
    takes = inspect.signature(type(optimizer)).parameters
    return {name: value for name, value in group.items() if name in takes and name != "params"}


def step_in_backward(optimizer) -> None:
    """Has backward update each parameter by an optimizer of its own, of the same settings, and drop its gradient."""
    for group in optimizer.param_groups:
        settings = settings_of(optimizer, group)
        for parameter in group["params"]:
            own = type(optimizer)([parameter], **settings)

            def update(_, own=own) -> None:
                own.step()
                own.zero_grad(set_to_none=True)

            parameter.register_post_accumulate_grad_hook(update)


def shard(net, optimizer):
    """FSDP2: every block of a ModuleList, and what is left, are sharded over all ranks. Returns the optimizer of the shards."""
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    for blocks in (module for module in net.modules() if isinstance(module, nn.ModuleList)):
        for block in blocks:
            fully_shard(block)
    fully_shard(net)
    return type(optimizer)(net.parameters(), **settings_of(optimizer, optimizer.param_groups[0]))


def prepare(args: argparse.Namespace, build: Callable, also_import: str | None):
    """Everything that needs torch, which is imported here: under the environment that makes it fast."""
    import torch
    import torch.distributed as dist
    from torch import nn

    if also_import:
        importlib.import_module(also_import)
    imported_mb, rank = status_mb("VmRSS"), own_rank()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(rank)
    if args.backend == "shared":
        import trireme.torch
        trireme.torch.share_memory()
    if args.device == "cuda":
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = False  # f32 in full, as ours and as PyTorch's own matmul by default
    # Not as the default of all, which costs each of PyTorch's calls time. A device of 1.13 is no context.
    with torch.device("cuda") if args.device == "cuda" else contextlib.nullcontext():
        net, optimizer, inputs, items = build(args)
    if args.step_in_backward:
        step_in_backward(optimizer)
    if args.ranks > 1:
        cores = sorted(os.sched_getaffinity(0))
        if args.threads == 1 and len(cores) >= args.ranks:
            os.sched_setaffinity(0, {cores[rank]})  # as ours
        dist.init_process_group("trireme" if args.backend in ("trireme", "shared") else "gloo",
                                init_method=os.environ["PEER_RENDEZVOUS"], rank=rank, world_size=args.ranks)
    if args.ranks > 1 and args.backend != "none":
        if args.parallel == "fsdp2":
            optimizer = shard(net, optimizer)
        else:
            # Large buckets: with a core per rank there is no idle one for communication to hide on (5 and 25 MB: no
            # faster).
            net = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True, static_graph=True,
                                                      bucket_cap_mb=100)
    if args.compile:
        net = torch.compile(net)

    def steps(count: int) -> None:
        for _ in range(count):
            step()
        if args.device == "cuda":
            torch.cuda.synchronize()

    def step() -> None:
        if not args.step_in_backward:
            optimizer.zero_grad(set_to_none=True)
        with torch.autocast(args.device, torch.bfloat16, enabled=args.dtype == "bf16"):
            loss = net(*inputs)
        loss.backward()
        if not args.step_in_backward:
            optimizer.step()

    def turns() -> Iterator[int]:
        """How many steps to measure as one. Paced: rank 0 waits for a line, and the others for rank 0's word."""
        if not args.paced:
            yield from [1] * args.steps
            return
        if rank == 0:
            print(f"ready PyTorch {torch.__version__}", flush=True)
        while True:
            go = torch.tensor(int(sys.stdin.readline() or 0) if rank == 0 else 0)
            if args.ranks > 1:
                dist.broadcast(go, 0)
            if not go:
                return
            yield int(go)

    return f"torch {torch.__version__}", imported_mb, items, steps, turns


def run(args: argparse.Namespace, build: Callable, also_import: str | None = None) -> None:
    """build(args) -> the module that computes a loss, the optimizer, the module's inputs, how many items they are. also_import:
    a module whose memory is no more the step's than torch's is."""
    if args.step_in_backward and args.ranks > 1:
        sys.exit("--step-in-backward: DDP averages gradients after the hooks have seen them; it takes one rank")
    if args.device == "cuda" and args.ranks > 1:
        sys.exit("--device cuda: these ranks talk over Gloo, from the CPU's memory; it takes one rank")
    env = tuned_environment(args)
    if args.ranks > 1 and "PEER_RENDEZVOUS" not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            sys.exit(start_ranks(args, env, folder))
    if env != dict(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.argv], env)

    rank = own_rank()
    framework, imported_mb, items, steps, turns = prepare(args, build, also_import)
    steps(args.warmup)
    step_ms = []
    for count in turns():
        start = time.perf_counter()
        steps(count)
        step_ms.append((time.perf_counter() - start) * 1e3 / count)
        if args.paced and rank == 0:
            print(f"{step_ms[-1]:.4f}", flush=True)
    if rank != 0:
        return
    median = statistics.median(step_ms) if step_ms else None
    kind = f"pytorch/{os.path.basename(sys.argv[0])}/{args.ranks}x{args.threads}"
    result = {**machine.result(kind, None, framework.replace("torch", "PyTorch")),
              "framework": framework, "step_ms": step_ms, "step_ms_median": median,
              "items_per_s": args.ranks * items / median * 1e3 if median else None,
              "peak_rss_mb": status_mb("VmHWM"), "rss_after_import_mb": imported_mb,
              "device_peak_mb": device_peak_mb(args.device),
              "ranks": args.ranks, "threads": args.threads, "config": vars(args)}
    text = json.dumps(result, indent=1 if args.json else None)
    if args.json:
        with open(args.json, "w") as file:
            file.write(text + "\n")
    elif not args.paced:
        print(text)
