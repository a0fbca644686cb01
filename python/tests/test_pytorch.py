"""PyTorch's own tests of torch.distributed and DDP, which its wheel brings along, on our backend.

Four ranks run them all, one after the other, in a group made anew for each; a test's own name here tells what became of it on every
rank. They are read as Gloo's, whose tests are for the CPU, and what they put on a GPU stays on the CPU."""
import faulthandler
import os
import re
import tempfile
import traceback
import unittest
from datetime import timedelta

import torch
import torch.distributed as dist

from ranks import VERSION, run

RANKS = 4
os.environ.update(BACKEND="gloo", WORLD_SIZE=str(RANKS))
os.environ.setdefault("TEMP_DIR", tempfile.gettempdir())
try:
    if VERSION < (2, 15):
        raise ImportError(f"the tests of PyTorch 2.15 are known, not those of {torch.__version__}")
    from torch.testing._internal import common_utils
    from torch.testing._internal.distributed import distributed_test as theirs
    Base, Theirs, absent = common_utils.TestCase, theirs.DistributedTest._DistTestBase, None
except ImportError as error:  # or expecttest is not installed, which they need
    Base, Theirs, absent = unittest.TestCase, object, str(error)

# What is not run, and why. The first pattern that a name matches counts.
NOT_RUN = {re.compile(pattern): why for pattern, why in {
    "SyncBatchNorm|sync_bn|ddp_inference": "PyTorch's SyncBatchNorm is for GPUs",
    "apply_optim_in_backward|native_mixed_precision": "needs a GPU's streams",
    "model_averager|average_parameters|post_localSGD": "needs a GPU to be the current one",
    "monitored_barrier_allreduce_hang": "needs NCCL",
    "test_ddp_device$|logging_data_gpu": "looks whether it is on a GPU",
    "ddp_compile": "tries torch.compile",
    "ddp_profiling_torch": "expects the names that the profiler gives calls of Gloo",
    "barrier_timeout_full_group|monitored_barrier_gloo": "expects the words of Gloo's errors",
    "test_ddp_uneven_inputs$": "takes minutes on the CPU, and Gloo hangs in it",
    "sparse_all_reduce": "there are no sparse tensors here",
}.items()}
# Where a test takes another way for each backend that it knows, it is Gloo's.
AS_GLOO = "accumulate_gradients"


class OnCpu(torch.overrides.TorchFunctionMode):
    """Leaves on the CPU what is to be put on the rank's GPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function is torch.Tensor.cuda:
            return args[0]
        if function is torch.Tensor.to:
            args = (args[0], *(self.place(given) for given in args[1:]))
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        return function(*args, **kwargs)

    @staticmethod
    def place(given):
        return torch.device("cpu") if isinstance(given, (str, torch.device)) or type(given) is int else given


class OnCpuDdp(torch.nn.parallel.DistributedDataParallel):
    def __init__(self, *arguments, device_ids=None, output_device=None, **options):
        super().__init__(*arguments, **options)


class Cases(Base, Theirs):
    """What the tests expect around them. PyTorch has it start processes for each, which meet in a file ten times a second."""

    rank = property(lambda self: dist.get_rank())
    init_method = property(lambda self: f"file://{self.file_name}")
    world_size = RANKS

    def _barrier(self, *_, **__):
        dist.barrier()


def pretend_gpus():
    """For the tests' questions whether there are enough."""
    torch.accelerator.is_available = lambda: True
    torch.accelerator.device_count = torch.cuda.device_count = lambda: 2 * RANKS
    torch.accelerator.set_device_index = torch.cuda.set_device = torch.cuda.synchronize = lambda *_, **__: None
    torch.cuda.current_device = lambda: 0
    torch.nn.parallel.DistributedDataParallel = theirs.DistributedDataParallel = OnCpuDdp


def outcome(cases, name, rank):
    """None where the test passes on this rank, else ("failed" or "skipped", how or why)."""
    test = getattr(cases, name)
    why = getattr(test, "__unittest_skip_why__", "")
    if why.startswith("Only MPI"):  # beside Gloo, which cannot; ours can
        test = getattr(test, "__wrapped__", test.__func__).__get__(cases)
    elif why:
        return "skipped", why
    theirs.BACKEND = "gloo" if AS_GLOO in name else "trireme"
    common_utils.set_rng_seed(1234)
    dist.set_debug_level(dist.DebugLevel.OFF)  # tests leave theirs
    dist.init_process_group("trireme", init_method=cases.init_method, rank=rank, world_size=RANKS, timeout=timedelta(seconds=20))
    result = None
    try:
        with OnCpu():
            test()
        dist.barrier()
    except unittest.SkipTest as skip:
        result = "skipped", str(skip)
    except SystemExit as end:
        result = "skipped", next((skip.message for skip in theirs.TEST_SKIPS.values() if skip.exit_code == end.code), str(end))
    except Exception:
        result = "failed", traceback.format_exc()
    if dist.is_initialized():
        dist.destroy_process_group()
    return result


def all_outcomes(rank, world, folder, names):
    os.environ.update(TEMP_DIR=folder, MASTER_ADDR="localhost")
    pretend_gpus()
    outcomes = {}
    for name in names:
        faulthandler.dump_traceback_later(60, exit=True)
        cases = Cases("skipTest")
        cases.file_name = f"{folder}/{name}"
        outcomes[name] = outcome(cases, name, rank)
    faulthandler.cancel_dump_traceback_later()
    return outcomes


@unittest.skipIf(absent, absent)
class PyTorchsOwn(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("test_dir", "barrier", "init_dir"):
                os.mkdir(f"{folder}/{name}")
            cls.ranks = run(RANKS, all_outcomes, folder, NAMES, backend=None, patience=400)

    def tell(self, name):
        failed = [f"rank {rank}: {outcomes[name][1]}" for rank, outcomes in enumerate(self.ranks)
                  if outcomes[name] and outcomes[name][0] == "failed"]
        self.assertFalse(failed, "\n".join(failed))
        if self.ranks[0][name]:
            self.skipTest(self.ranks[0][name][1])


NAMES = [name for name in dir(Theirs) if name.startswith("test_") and not any(pattern.search(name) for pattern in NOT_RUN)]
for _name in NAMES:
    setattr(PyTorchsOwn, _name, lambda self, name=_name: self.tell(name))


def load_tests(loader, *_):
    """Not Cases, which have no ranks by themselves."""
    return loader.loadTestsFromTestCase(PyTorchsOwn)
