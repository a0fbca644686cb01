"""PyTorch's programs over our backend beside Gloo, in turns, in one run (docs/pytorch.md has the table).

    torch_backend.py all_reduce --ranks 2 --json out.json      PYTHONPATH names the installed wheel
    torch_backend.py ddp --ranks 2 --models mlp gpt_mini --json out.json
    torch_backend.py fsdp2 --ranks 2 --models gpt_mini --json out.json

all_reduce: `dist.all_reduce` of f32 tensors: Gloo, ours on PyTorch's own memory ("trireme") and on memory that the ranks map
("shared": after trireme.torch.share_memory()). Each turn is a row of calls on one of them; a row's milliseconds divided by its
calls is one sample. ddp, fsdp2: whole training steps of the programs beside this one, each backend in processes of its own, which
wait while the others run; "none" are ranks that train without talking to each other, as fast as any backend could let them.

The object that goes to --json FILE (or is printed): what machine.py says, ranks, threads, turns; for all_reduce
pytorch_us and overhead_us (what a call takes in torch.distributed's own Python and in ours, the library's part apart) and rows, a
list of {bytes, gloo_us, trireme_us, shared_us, copy_us, ratio, shared_ratio}, medians over the turns, and the ratios the medians of
those of each turn; copy_us: all ranks at once copy as many bytes in their own memory, which shows what the machine's memory gives.
For ddp and fsdp2 rows, a list of {model, gloo_ms, trireme_ms, shared_ms, none_ms, ratio, shared_ratio, none_ratio}, of the backends
that --backends names.
"""
import argparse
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import machine
import training

HERE = os.path.dirname(os.path.abspath(__file__))
SIZES = [4 << 10, 64 << 10, 1 << 20, 25 << 20]
PROGRAMS = {"mlp": ["mlp.py"], "resnet18": ["images.py", "--model", "resnet18"], "gpt_mini": ["gpt_mini.py"],
            "bert_base": ["bert.py"]}
STEPS = {"mlp": 50, "resnet18": 2, "gpt_mini": 1, "bert_base": 1}  # in a turn
BACKENDS = ["gloo", "trireme", "shared"]
RATIOS = {"trireme": "ratio", "shared": "shared_ratio", "none": "none_ratio"}


def summary(samples: dict[str, list[float]], unit: str) -> dict[str, float]:
    """Medians, and how often ours goes into Gloo's, turn by turn."""
    row = {f"{name}_{unit}": round(statistics.median(values), 3) for name, values in samples.items()}
    for name, key in RATIOS.items():
        if name in samples:
            row[key] = round(statistics.median(theirs / ours for theirs, ours in zip(samples["gloo"], samples[name])), 2)
    return row


def overheads(torch, dist, alone) -> dict[str, float]:
    """Per call, in a group of one rank: through torch.distributed, of our process group, and of the library alone."""
    import trireme.torch
    from trireme import _c
    from trireme._library import lib

    x, options = torch.ones(1), trireme.torch._native.AllreduceOptions()
    options.asyncOp = False
    call = alone._describe((0, 0), 0, _c.TR_ALL_REDUCE, x, 1, _c.TR_F32)
    samples = []
    for _ in range(15):
        times = []
        for function, *arguments in ((dist.all_reduce, x, dist.ReduceOp.SUM, alone), (alone.allreduce, [x], options),
                                     (lib.tr_run_collective, alone._group, call)):
            start = time.perf_counter()
            for _ in range(1000):
                function(*arguments)
            times.append((time.perf_counter() - start) * 1e3)
        samples.append((times[0] - times[1], times[1] - times[2]))
    return {name: round(statistics.median(values), 2) for name, values in zip(("pytorch_us", "overhead_us"), zip(*samples))}


def rank_of_all_reduce(args: argparse.Namespace) -> dict | None:
    import torch
    import torch.distributed as dist

    import trireme.torch

    rank = training.own_rank()
    torch.set_num_threads(args.threads)
    dist.init_process_group("gloo", init_method=os.environ["PEER_RENDEZVOUS"], rank=rank, world_size=args.ranks)
    ours = dist.new_group(backend="trireme")
    result = {"peer": f"PyTorch {torch.__version__}"}
    alone = [dist.new_group([one], backend="trireme") for one in range(args.ranks)][rank]
    if rank == 0:  # while the others sleep
        result.update(overheads(torch, dist, alone))
    dist.barrier()
    result["rows"] = []
    private, copies = ({size: torch.ones(size // 4) for size in SIZES} for _ in range(2))
    trireme.torch.share_memory()
    for size in SIZES:
        shown = torch.ones(size // 4)
        calls = max(3, min(200, (8 << 20) // size))
        samples = {name: [] for name in [*BACKENDS, "copy"]}
        for turn in range(-1, args.turns):
            for name, group, x in (("gloo", None, private[size]), ("trireme", ours, private[size]), ("shared", ours, shown)):
                x.zero_()
                dist.barrier(ours)
                start = time.perf_counter()
                for _ in range(calls):
                    dist.all_reduce(x, group=group)
                if turn >= 0:  # the first is for warming up
                    samples[name].append((time.perf_counter() - start) * 1e6 / calls)
            dist.barrier(ours)
            start = time.perf_counter()
            for _ in range(calls):
                copies[size].copy_(private[size])
            dist.barrier(ours)  # they have all done it
            if turn >= 0:
                samples["copy"].append((time.perf_counter() - start) * 1e6 / calls)
        result["rows"].append({"bytes": size, **summary(samples, "us")})
    dist.destroy_process_group()
    return result if rank == 0 else None


def all_reduce(args: argparse.Namespace) -> dict | None:
    if "PEER_RENDEZVOUS" in os.environ:
        return rank_of_all_reduce(args)
    with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile("r") as out:
        sys.argv += ["--json", out.name]  # the last one counts
        if training.start_ranks(args, training.tuned_environment(args), folder):
            sys.exit(1)
        return json.load(out)


def step_row(args: argparse.Namespace, model: str) -> dict:
    """The programs of all backends side by side; who is not told to run sleeps."""
    command = [sys.executable, *PROGRAMS[model], "--ranks", str(args.ranks), "--threads", str(args.threads), "--paced",
               "--parallel", args.what]
    programs = {name: subprocess.Popen([*command, "--backend", name], cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       text=True) for name in args.backends}
    samples = {name: [] for name in args.backends}
    try:
        for name, program in programs.items():
            if not program.stdout.readline().startswith("ready"):
                sys.exit(f"{model} on {name} did not start")
        for _ in range(args.turns):
            for name, program in programs.items():
                program.stdin.write(f"{STEPS[model]}\n")
                program.stdin.flush()
                samples[name].append(float(program.stdout.readline()))
    finally:
        for program in programs.values():
            program.stdin.close()
            program.wait()
    return {"model": model, **summary(samples, "ms")}


def steps(args: argparse.Namespace) -> dict:
    import torch
    return {"peer": f"PyTorch {torch.__version__}", "rows": [step_row(args, model) for model in args.models]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["all_reduce", "ddp", "fsdp2"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="per rank")
    parser.add_argument("--turns", type=int, default=11)
    parser.add_argument("--models", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--backends", nargs="+", choices=[*BACKENDS, "none"], default=[*BACKENDS, "none"],
                        help="for training steps; gloo must be among them")
    parser.add_argument("--malloc", choices=training.MALLOCS, default="system", help="for all_reduce")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    result = all_reduce(args) if args.what == "all_reduce" else steps(args)
    if result is None:
        return
    if "PEER_RENDEZVOUS" not in os.environ:  # a rank's part is what the process that started it makes the whole of
        begin = machine.result(f"torch/{args.what}/{args.ranks}", importlib.metadata.version("trireme-torch"), result.pop("peer"))
        result = {**begin, "ranks": args.ranks, "threads": args.threads, "turns": args.turns, **result}
    text = json.dumps(result, indent=1)
    if args.json:
        with open(args.json, "w") as file:
            file.write(text + "\n")
    if "PEER_RENDEZVOUS" not in os.environ:
        print(text)


if __name__ == "__main__":
    main()
