#!/usr/bin/env python3
"""spawn.py OURS [RANKS [ROUNDS]]: from the command to the end of the first all_reduce in processes of a function, and to the
end of the command: OURS (BUILD/bench/spawn) beside torch.multiprocessing.spawn with gloo, in turns. Milliseconds."""
import os
import statistics
import subprocess
import sys
import time


def work(rank, ranks, path):
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=ranks)
    dist.all_reduce(torch.ones(1024))
    if rank == 0:
        print("reduced", flush=True)
    dist.destroy_process_group()


def spawn(ranks):
    import tempfile
    import torch.multiprocessing
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, args=(ranks, folder + "/store"), nprocs=ranks)


def time_one(command):
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    reduced = time.perf_counter()
    if process.wait() != 0 or line != "reduced\n":
        sys.exit(f"{command} failed")
    return 1e3 * (reduced - start), 1e3 * (time.perf_counter() - start)


def main():
    ours, ranks = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "4"
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    commands = {"trireme": [ours, ranks], "torch": [sys.executable, __file__, "--spawn", ranks]}
    times = {name: [] for name in commands}
    for _ in range(rounds + 1):  # the first warms the page cache up
        for name, command in commands.items():
            times[name].append(time_one(command))
    for at, what in enumerate(("first all_reduce", "end")):
        median = {name: statistics.median(t[at] for t in list(all_)[1:]) for name, all_ in times.items()}
        print(f"{ranks} ranks, {what}: trireme {median['trireme']:.1f} ms, torch {median['torch']:.1f} ms, "
              f"{median['torch'] / median['trireme']:.0f} times")


if __name__ == "__main__":
    if sys.argv[1] == "--spawn":
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        spawn(int(sys.argv[2]))
    else:
        main()
