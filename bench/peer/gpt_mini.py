"""The PyTorch peer of `trireme bench model`: whole training steps of a GPT-2 in f32 on the CPU, at PyTorch's best.

Runs under PyTorch 2.x and 1.13. One step is: forgetting the gradients, forward, cross-entropy, backward, AdamW.

    gpt_mini.py --threads 1 --steps 20 --json out.json
    gpt_mini.py --ranks 2 --threads 1              DDP over Gloo on the loopback, --batch sequences on each rank
    gpt_mini.py --paced                            prints "ready" after the warm-up, then for each line that it reads
                                                   runs one step and prints its milliseconds; ends with its input

The object that goes to --json FILE (or is printed last, when not paced): framework, step_ms (all), step_ms_median,
tokens_per_s (of all ranks), peak_rss_mb and rss_after_import_mb (VmHWM and VmRSS of rank 0; VmHWM begins anew with a
program, ru_maxrss does not), ranks, threads, config.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Iterator

MODELS = {"mini": {"layers": 6, "heads": 6, "dim": 384, "vocab": 256, "context": 256},
          "gpt2": {"layers": 12, "heads": 12, "dim": 768, "vocab": 50257, "context": 1024}}
JEMALLOC = f"/usr/lib/{platform.machine()}-linux-gnu/libjemalloc.so.2"
# Activations that malloc gives back to the kernel come again as page faults, some 13,000 in every step of "mini". The
# tuned ones keep them, on huge pages; jemalloc is the faster one, glibc stands in where it is not installed.
MALLOCS = {
    "system": {},
    "glibc": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=33554432:"
                                "glibc.malloc.trim_threshold=17179869184:glibc.malloc.top_pad=67108864"},
    "jemalloc": {"LD_PRELOAD": JEMALLOC, "THP_MEM_ALLOC_ENABLE": "1",
                 "MALLOC_CONF": "thp:always,metadata_thp:auto,dirty_decay_ms:-1,muzzy_decay_ms:-1"},
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="mini")
    parser.add_argument("--batch", type=int, default=8, help="sequences per rank and step")
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="per rank")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--paced", action="store_true")
    parser.add_argument("--compile", action="store_true", help="torch.compile (needs g++)")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--malloc", choices=MALLOCS, default="jemalloc" if os.path.exists(JEMALLOC) else "glibc")
    return parser.parse_args()


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


def build(args: argparse.Namespace):
    """Everything that needs torch, which is imported here: under the environment that makes it fast."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch import nn

    imported_mb = status_mb("VmRSS")
    sdpa = hasattr(F, "scaled_dot_product_attention")  # since 2.0

    def attention(q, k, v, mask):
        """q, k, v: [batch, heads, seq, dim]"""
        if sdpa:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        b, h, t, d = q.shape
        q, k, v = (x.reshape(b * h, t, d) for x in (q, k, v))
        scores = torch.baddbmm(mask[:t, :t], q, k.transpose(1, 2), alpha=d ** -0.5)
        return torch.bmm(torch.softmax(scores, -1), v).view(b, h, t, d)

    class Block(nn.Module):
        def __init__(self, heads: int, dim: int):
            super().__init__()
            self.heads = heads
            self.ln_1, self.c_attn, self.c_proj = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
            self.ln_2, self.c_fc, self.c_out = nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

        def forward(self, x, mask):
            b, t, c = x.shape
            q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.c_attn(self.ln_1(x)).split(c, 2))
            x = x + self.c_proj(attention(q, k, v, mask).transpose(1, 2).reshape(b, t, c))
            return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))

    class GPT(nn.Module):
        def __init__(self, layers: int, heads: int, dim: int, vocab: int, context: int):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(vocab, dim), nn.Embedding(context, dim)
            self.h = nn.ModuleList(Block(heads, dim) for _ in range(layers))
            self.ln_f = nn.LayerNorm(dim)
            # No buffer: DDP would send it.
            self.mask = None if sdpa else torch.full((context, context), float("-inf")).triu(1)
            nn.init.normal_(self.wte.weight, std=0.02)
            nn.init.normal_(self.wpe.weight, std=0.02)

        def forward(self, ids, targets):
            x = self.wte(ids) + self.wpe.weight[:ids.size(1)]
            for block in self.h:
                x = block(x, self.mask)
            logits = F.linear(self.ln_f(x), self.wte.weight)  # the head is tied
            return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))

    def optimizer_of(model):
        try:
            return torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
        except (RuntimeError, TypeError):  # no fused AdamW on the CPU before 2.4
            return torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, foreach=True)

    rank, size = own_rank(), MODELS[args.model]
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(rank)
    model = net = GPT(**size)
    if args.ranks > 1:
        dist.init_process_group("gloo", init_method=os.environ["PEER_RENDEZVOUS"], rank=rank, world_size=args.ranks)
        # Large buckets: with a core per rank there is no idle one for communication to hide on (5 and 25 MB: no faster).
        net = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True, static_graph=True,
                                                  bucket_cap_mb=100)
    if args.compile:
        net = torch.compile(net)
    optimizer = optimizer_of(model)
    ids = torch.randint(0, size["vocab"], (args.batch, args.seq + 1))
    x, y = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        net(x, y).backward()
        optimizer.step()

    def turns() -> Iterator[None]:
        """One per measured step. Paced: rank 0 waits for a line, and the others for rank 0's word."""
        if not args.paced:
            yield from [None] * args.steps
            return
        if rank == 0:
            print("ready", flush=True)
        while True:
            go = torch.tensor(int(bool(sys.stdin.readline())) if rank == 0 else 0)
            if args.ranks > 1:
                dist.broadcast(go, 0)
            if not go:
                return
            yield

    return f"torch {torch.__version__}", imported_mb, step, turns


def main() -> None:
    args = arguments()
    env = tuned_environment(args)
    if args.ranks > 1 and "PEER_RENDEZVOUS" not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            sys.exit(start_ranks(args, env, folder))
    if env != dict(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.argv], env)

    rank = own_rank()
    framework, imported_mb, step, turns = build(args)
    for _ in range(args.warmup):
        step()
    step_ms = []
    for _ in turns():
        start = time.perf_counter()
        step()
        step_ms.append((time.perf_counter() - start) * 1e3)
        if args.paced and rank == 0:
            print(f"{step_ms[-1]:.3f}", flush=True)
    if rank != 0:
        return
    median = statistics.median(step_ms) if step_ms else None
    result = {"framework": framework, "step_ms": step_ms, "step_ms_median": median,
              "tokens_per_s": args.ranks * args.batch * args.seq / median * 1e3 if median else None,
              "peak_rss_mb": status_mb("VmHWM"), "rss_after_import_mb": imported_mb,
              "ranks": args.ranks, "threads": args.threads, "config": vars(args)}
    text = json.dumps(result)
    if args.json:
        with open(args.json, "w") as file:
            file.write(text + "\n")
    elif not args.paced:
        print(text)


if __name__ == "__main__":
    main()
