"""What the tests share: ranks as processes that have PyTorch already, and comparing what they computed."""
import gc
import multiprocessing
import os
import pickle
import signal
import tempfile
import time
import traceback
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist

import trireme.torch

# Ranks are forked by a server that has loaded PyTorch and computes nothing itself: a child of a process that has may find PyTorch's
# thread pool broken. It loads the tests as well, whose imports (torch._dynamo, for DDP) would take each rank seconds. The server
# reads its path from the environment.
_fork = multiprocessing.get_context("forkserver")
_fork.set_forkserver_preload(["ranks", "test_collectives", "test_groups", "test_pytorch", "test_training"])
os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, [os.path.dirname(os.path.abspath(__file__)),
                                                                      *os.environ.get("PYTHONPATH", "").split(os.pathsep)])))


class Failed(Exception):
    """A rank's exception: the name of its type, its text, and how it came."""

    kind, text, trace = property(lambda self: self.args[0]), property(lambda self: self.args[1]), property(lambda self: self.args[2])


def _rank(function, rank, world, backend, meeting, timeout, out, arguments):
    gc.freeze()  # collections pass over what was loaded before
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # old names are called on purpose
    try:
        if backend:
            dist.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=world,
                                    timeout=timedelta(seconds=timeout))
        result = function(rank, world, *arguments)
        if backend == "gloo":  # of PyTorch 2.7: it may wait for ever for its own thread when it is destroyed
            dist.barrier()
            out.send_bytes(pickle.dumps(result))
            os._exit(0)
        if dist.is_initialized():
            dist.destroy_process_group()
    except Exception as error:
        result = Failed(type(error).__name__, str(error), traceback.format_exc())
        out.send_bytes(pickle.dumps(result))
        raise SystemExit(1) from error
    out.send_bytes(pickle.dumps(result))


def run(world, function, *arguments, backend="trireme", timeout=60, patience=100, fails=False):
    """Calls function(rank, world, *arguments) in a process for each rank and returns what they returned. With fails, a rank's
    exception is its result, and a rank that was killed has None."""
    with tempfile.TemporaryDirectory() as folder:
        pipes = [_fork.Pipe(duplex=False) for _ in range(world)]
        ranks = [_fork.Process(target=_rank, args=(function, r, world, backend, f"{folder}/meeting", timeout, pipes[r][1], arguments))
                 for r in range(world)]
        for rank, pipe in zip(ranks, pipes):
            rank.start()
            pipe[1].close()
        results, deadline = [None] * world, time.monotonic() + patience
        try:
            for r, pipe in enumerate(pipes):
                if not pipe[0].poll(max(0, deadline - time.monotonic())):
                    raise TimeoutError(f"rank {r} of {world} did not end in {patience} s")
                try:
                    results[r] = pickle.loads(pipe[0].recv_bytes())
                except EOFError:
                    pass  # killed
            for rank in ranks:
                rank.join(max(0.1, deadline - time.monotonic()))
                if rank.exitcode is None:
                    raise TimeoutError(f"a rank has its result, and did not end in {patience} s")
        finally:
            for rank in ranks:
                if rank.is_alive():
                    os.kill(rank.pid, signal.SIGKILL)
                rank.join()
    for r, result in enumerate(results):
        if not fails and (isinstance(result, Failed) or ranks[r].exitcode):
            raise AssertionError(f"rank {r} of {world}: {result.trace if result else f'exit code {ranks[r].exitcode}'}")
    return results


def alike(ours, theirs, close=None):
    """The same tensors in the same places; bit for bit, unless close is a tolerance."""
    if isinstance(ours, torch.Tensor):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, f"{ours} is of another kind than {theirs}"
        if close:
            torch.testing.assert_close(ours, theirs, rtol=close, atol=close)
        else:
            a, b = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (ours, theirs))
            assert torch.equal(a, b), f"{ours} is not {theirs}"
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), f"{ours.keys()} are not {theirs.keys()}"
        for key in ours:
            try:
                alike(ours[key], theirs[key], close)
            except AssertionError as error:
                raise AssertionError(f"{key}: {error}") from None
    elif isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs), f"{len(ours)} things are not {len(theirs)}"
        for a, b in zip(ours, theirs):
            alike(a, b, close)
    else:
        assert ours == theirs, f"{ours!r} is not {theirs!r}"


VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])


def as_gloo(world, function, *arguments, close=None, since=(2, 7)):
    """Runs it on both backends and compares, where Gloo can it, since that version of PyTorch; returns ours. That of 2.7 has no
    reduce_scatter; before 2.9 it sums FSDP2's gradients; that of 2.9 has no all_to_all of lists."""
    ours = run(world, function, *arguments)
    if VERSION >= since:
        alike(ours, run(world, function, *arguments, backend="gloo"), close)
    return ours


def monitored_barrier(**options):
    """The function of torch.distributed is for Gloo alone in 2.13 and before."""
    (dist.monitored_barrier if VERSION > (2, 13) else dist.group.WORLD.monitored_barrier)(**options)


assert trireme.torch
