"""The PyTorch peer of `trireme bench rpc`: echoes between two processes over TensorPipe.

It prints "ready"; for a line "echo BYTES CALLS" the median time of a call of a Python function in microseconds, for "operator
BYTES CALLS" that of torch.add, which runs without the interpreter on the server's side, for "callers N CALLS" the calls per second
of N threads that call at once, each so many times.
"""
import os
import statistics
import sys
import threading
import time

import torch
import torch.distributed.rpc as rpc


def echo(x):
    return x


def time_calls(function, more: tuple, size: int, calls: int) -> float:
    arguments = (torch.zeros(max(size // 4, 1), dtype=torch.float32), *more)
    times = []
    for _ in range(calls):
        began = time.perf_counter()
        rpc.rpc_sync("server", function, args=arguments)
        times.append(time.perf_counter() - began)
    return 1e6 * statistics.median(times)


def time_echo(size: int, calls: int) -> float:
    return time_calls(echo, (), size, calls)


def time_operator(size: int, calls: int) -> float:
    return time_calls(torch.add, (1,), size, calls)


def call_rate(callers: int, calls: int) -> float:
    x = torch.zeros(1)

    def run():
        for _ in range(calls):
            rpc.rpc_sync("server", echo, args=(x,))

    threads = [threading.Thread(target=run) for _ in range(callers)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return callers * calls / (time.perf_counter() - began)


def main() -> None:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29577")
    child = os.fork()  # before there is any thread
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=8)
    torch.set_num_threads(1)
    if child == 0:
        rpc.init_rpc("server", rank=1, world_size=2, rpc_backend_options=options)
        rpc.shutdown()
        return
    rpc.init_rpc("client", rank=0, world_size=2, rpc_backend_options=options)
    time_echo(4, 50)
    print(f"ready PyTorch {torch.__version__}", flush=True)
    for line in sys.stdin:
        what, first, second = line.split()
        answer = {"echo": time_echo, "operator": time_operator, "callers": call_rate}[what](int(first), int(second))
        print(answer, flush=True)
    rpc.shutdown()
    os.waitpid(child, 0)


if __name__ == "__main__":
    main()
