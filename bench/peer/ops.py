"""The PyTorch peer of bench/ops: single ops on one thread. ops.py BUILD/bench/ops [ROUNDS] runs both in turns, and prints the
least of the medians of each round, in microseconds, and PyTorch's by ours.
"""
import statistics
import subprocess
import sys
import time
from typing import Callable

import torch
import torch.nn.functional as F

SIZE, ROUNDS, SECONDS = 1000, 9, 0.1


Case = Callable[[], torch.Tensor]


def cases(w: torch.Tensor, image: torch.Tensor) -> dict[str, Case]:
    x = torch.randn(SIZE, SIZE)
    ids, targets = torch.randint(1000000, (SIZE, SIZE)), torch.randint(SIZE, (SIZE,))
    weights = torch.rand(SIZE)
    line, taps, kernel = torch.randn(8, 64, 1024), torch.randn(64, 64, 3), torch.randn(32, 16, 2, 2)
    return {
        "sort rows": lambda: x.sort(dim=-1, stable=True).values,
        "sort columns": lambda: x.sort(dim=0, stable=True).values,
        "sort rows of i64": lambda: ids.sort(dim=-1, stable=True).values,
        "sort rows, and back": lambda: w.sort(dim=-1, stable=True).values,
        "topk 10 of rows": lambda: x.topk(10).values,
        "topk 500 of rows": lambda: x.topk(500).values,
        "prod of rows": lambda: x.prod(1),
        "prod of columns": lambda: x.prod(0),
        "prod of rows, and back": lambda: w.prod(1),
        "max of rows, and back": lambda: w.amax(1),
        "argmax of rows": lambda: x.argmax(1),
        "cumsum of rows": lambda: x.cumsum(1),
        "cumsum of columns": lambda: x.cumsum(0),
        "cumsum of rows, and back": lambda: w.cumsum(1),
        "less": lambda: x < w,
        "equal of i64": lambda: ids == ids,
        "conv1d": lambda: F.conv1d(line, taps, padding=1),
        "conv_transpose2d, and back": lambda: F.conv_transpose2d(image, kernel, stride=2),
        "adaptive_max_pool2d": lambda: F.adaptive_max_pool2d(image, 7),
        "nearest x2, and back": lambda: F.interpolate(image, scale_factor=2),
        "bilinear x2, and back": lambda: F.interpolate(image, scale_factor=2, mode="bilinear"),
        "bicubic x2, and back": lambda: F.interpolate(image, scale_factor=2, mode="bicubic"),
        "bicubic x2": lambda: F.interpolate(image.detach(), scale_factor=2, mode="bicubic"),
        "cross_entropy weighted, and back": lambda: F.cross_entropy(w, targets, weights),
        "nll_loss weighted, and back": lambda: F.nll_loss(w, targets, weights),
    }


def microseconds(name: str, call: Case, leaves: list[torch.Tensor]) -> float:
    def run() -> None:
        y = call()
        if "and back" in name:
            for leaf in leaves:
                leaf.grad = None
            y.backward(torch.ones(()).expand_as(y))

    begin = time.perf_counter()
    run()
    calls, times = int(SECONDS / ROUNDS / (time.perf_counter() - begin)) + 1, []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(calls):
            run()
        times.append((time.perf_counter() - begin) * 1e6 / calls)
    return statistics.median(times)


def main() -> None:
    torch.set_num_threads(1)
    leaves = [torch.randn(SIZE, SIZE, requires_grad=True), torch.randn(4, 32, 56, 56, requires_grad=True)]
    ours: dict[str, float] = {}
    theirs: dict[str, float] = {}
    for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 2):
        for line in subprocess.run([sys.argv[1], str(SECONDS)], check=True, capture_output=True, text=True).stdout.splitlines():
            name, time_of = line.split("\t")
            ours[name] = min(float(time_of), ours.get(name, 1e12))
        for name, call in cases(*leaves).items():
            theirs[name] = min(microseconds(name, call, leaves), theirs.get(name, 1e12))
    for name in ours:
        print(f"| {name} | {ours[name]:,.0f} | {theirs[name]:,.0f} | {theirs[name] / ours[name]:.2f} |")


if __name__ == "__main__":
    main()
