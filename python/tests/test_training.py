"""What people train with, beside Gloo: DDP and its options, FSDP2, ZeRO, tensor parallelism, pipelines, checkpoints."""
import copy
import os
import signal
import tempfile
import unittest
import unittest.mock

import torch
import torch._dynamo  # noqa: F401: DDP imports it, which takes seconds: once, in the server that ranks are forked from
import torch.distributed as dist
import torch.distributed.checkpoint  # noqa: F401
import torch.distributed.fsdp  # noqa: F401
import torch.distributed.optim  # noqa: F401
import torch.distributed.pipelining  # noqa: F401
import torch.distributed.tensor.parallel  # noqa: F401
import torch.utils.data
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import trireme.torch
from ranks import VERSION, alike, as_gloo, run
from trireme import _share


def net(width=64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.BatchNorm1d(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))


def batch(rank, step):
    g = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 16, generator=g), torch.randint(0, 4, (8,), generator=g)


def state(module):
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def train(model, rank, steps=4, optimizer=None, accumulate=False):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        x, y = batch(rank, step)
        if accumulate:
            with model.no_sync():
                nn.functional.cross_entropy(model(x), y).backward()
            x, y = batch(rank, 1000 + step)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return state(getattr(model, "module", model))


def ddp(rank, world, how):
    model = net()
    if how == "plain":
        return train(DDP(model, bucket_cap_mb=0.01), rank)
    if how == "no_sync":
        return train(DDP(model), rank, accumulate=True)
    if how == "static_graph":
        return train(DDP(model, static_graph=True), rank)
    if how == "views":
        return train(DDP(model, gradient_as_bucket_view=True, bucket_cap_mb=0.01), rank)
    wrapped = DDP(model)
    if how == "fp16 hook":
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
        wrapped.register_comm_hook(None, fp16_compress_hook)
    elif how == "PowerSGD":  # waits for collectives in the callbacks of others' futures
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
        wrapped.register_comm_hook(PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2), powerSGD_hook)
    else:
        def hook(_, bucket):
            return (dist.all_reduce(bucket.buffer().div_(world), async_op=True).get_future()
                    .then(lambda done: done.value()[0]))
        wrapped.register_comm_hook(None, hook)
    return train(wrapped, rank)


def left_alone(rank, world):
    """A rank dies while the others are in a backward pass."""
    model = DDP(net(), bucket_cap_mb=0.01)
    x, y = batch(rank, 0)
    loss = nn.functional.cross_entropy(model(x), y)
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        loss.backward()
    except RuntimeError as error:
        return str(error)
    return "no error"


def shown(tensor):
    """Is it where the other ranks map it?"""
    return _share.mapping(tensor.data_ptr())[1].startswith("/memfd:trireme")


def in_shared_memory(rank, world):
    """DDP's buckets are in memory that the ranks map; and a loader's forked worker keeps what it writes to itself."""
    before = torch.ones(100000)
    for _ in range(2):  # the second time nothing happens
        trireme.torch.share_memory()
    x, small, buckets = torch.full((100000,), float(rank)), torch.ones(10), []
    assert shown(x) and not shown(before) and not shown(small)

    def hook(_, bucket):
        buckets.append(shown(bucket.buffer()))
        return dist.all_reduce(bucket.buffer().div_(world), async_op=True).get_future().then(lambda done: done.value()[0])

    model = DDP(net(256))
    model.register_comm_hook(None, hook)
    out = train(model, rank)
    assert all(buckets) and buckets, buckets
    for tensor in (x, before, small):
        dist.all_reduce(tensor)
    out.update(x=x, before=before, small=small)
    data = torch.utils.data.TensorDataset(x.view(-1, 10))
    loader = torch.utils.data.DataLoader(data, batch_size=5000, num_workers=1, multiprocessing_context="fork",
                                         worker_init_fn=lambda _: x[50000:].fill_(7))
    out["batches"] = [batch.clone() for batch, in loader]
    assert torch.equal(out["batches"][1], torch.full((5000, 10), 7.0)) and x[-1] == sum(range(world))
    return out


class Branches(nn.Module):
    """Which layer is used depends on the rank and the step."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.Linear(16, 4) for _ in range(3))

    def forward(self, x, which):
        return self.layers[which](x)


def unused(rank, world):
    model = DDP(Branches(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        x, y = batch(rank, step)
        nn.functional.cross_entropy(model(x, (rank + step) % 3), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return state(model.module)


def join(rank, world, by_all):
    torch.manual_seed(2)
    model = DDP(nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join(divide_by_initial_world_size=by_all):
        for step in range(2 + rank):
            x, y = batch(rank, step)
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return state(model.module)


def join_unused(rank, world):
    """DDP calls a method of the group with a tensor, where C++'s takes it for a list of one."""
    model = DDP(Branches(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for step in range(2 + rank):
            x, y = batch(rank, step)
            nn.functional.cross_entropy(model(x, (rank + step) % 3), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return state(model.module)


def zero(rank, world):
    from torch.distributed.optim import ZeroRedundancyOptimizer
    model = DDP(net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=0.01)
    return train(model, rank, optimizer=optimizer)


def sharded(rank, world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(3)
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(3)), nn.Linear(16, 4))
    alone = copy.deepcopy(model)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer, its = (torch.optim.SGD(net.parameters(), lr=0.1) for net in (model, alone))
    for step in range(3):
        x, y = batch(rank, step)
        nn.functional.cross_entropy(model(x), y).backward()
        for x, y in (batch(r, step) for r in range(world)):
            (nn.functional.cross_entropy(alone(x), y) / world).backward()
        for one in (optimizer, its):
            one.step()
            one.zero_grad()
    out = {name: value.full_tensor() for name, value in model.state_dict().items()}
    alike(out, state(alone), close=1e-5)
    return out


def averaged(rank, world):
    """The gradient of a sharded model is the mean over the ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    model = nn.Linear(4, 4, bias=False)
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    if hasattr(model, "set_allocate_memory_from_process_group_for_comm"):
        model.set_allocate_memory_from_process_group_for_comm(True)
    model(torch.full((1, 4), float(rank + 1))).sum().backward()
    gradient = model.weight.grad.full_tensor()
    assert torch.equal(gradient, torch.full((4, 4), (world + 1) / 2)), gradient
    return gradient


def tensor_parallel(rank, world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    alone = copy.deepcopy(model)
    parallelize_module(model, init_device_mesh("cpu", (world,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x, y = batch(0, 0)
    nn.functional.cross_entropy(model(x), y).backward()
    nn.functional.cross_entropy(alone(x), y).backward()
    gradient = model[0].weight.grad.full_tensor()
    torch.testing.assert_close(gradient, alone[0].weight.grad)
    return gradient


def pipeline(rank, world, by_pairs=False):
    """by_pairs: with a group for each pair of stages."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    if by_pairs:
        torch.distributed.config.pipeline_per_edge_p2p = True
    torch.manual_seed(5)
    layers = [nn.Linear(16, 16) for _ in range(world)]
    stage = PipelineStage(layers[rank], rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4, loss_fn=nn.functional.mse_loss)
    x, losses = torch.randn(8, 16), []
    if rank == 0:
        schedule.step(x)
    else:
        schedule.step(target=torch.zeros(8, 16), losses=losses)
    return [layers[rank].weight.grad, *[loss.detach() for loss in losses]]


def checkpoint(rank, world, folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (world,))
    whole = torch.arange(48.0).view(8, 6)
    dcp.save({"x": distribute_tensor(whole, mesh, [Shard(0)])}, checkpoint_id=folder)
    loaded = {"x": distribute_tensor(torch.zeros(8, 6), mesh, [Shard(1)])}
    dcp.load(loaded, checkpoint_id=folder)
    assert torch.equal(loaded["x"].full_tensor(), whole)
    return True


class Training(unittest.TestCase):
    def test_ddp(self):
        for how in ("plain", "no_sync", "static_graph", "views", "python hook"):
            with self.subTest(how):
                as_gloo(2, ddp, how)
        as_gloo(2, ddp, "fp16 hook", close=1e-2)
        as_gloo(2, ddp, "PowerSGD", close=1e-4)
        as_gloo(4, ddp, "plain", close=1e-5)

    def test_a_rank_is_killed_in_a_step(self):
        for rank, text in enumerate(run(3, left_alone, fails=True)):
            if rank != 1:
                self.assertIn("rank 1 (pid", str(text))

    def test_shared_memory(self):
        as_gloo(2, in_shared_memory)
        with unittest.mock.patch.dict(_share._FUNCTION_SLOTS, {"vax": (1, 2)}, clear=True):
            with self.assertRaisesRegex(RuntimeError, "does nothing with PyTorch .*: this is known for vax, not for"):
                trireme.torch.share_memory()
        with unittest.mock.patch.object(_share, "_slots", lambda _, names: {name: [] for name in names}):
            with self.assertRaisesRegex(RuntimeError, r"libc10.so does not call free\(\)"):
                trireme.torch.share_memory()

    def test_unused_parameters(self):
        as_gloo(3, unused, close=1e-5)

    def test_join(self):
        for by_all in (True, False):  # of the gradients' sum: by as many as there were, or are left
            with self.subTest(by_all=by_all):
                as_gloo(2, join, by_all)
        as_gloo(3, join_unused, close=1e-5)

    def test_zero(self):
        as_gloo(2, zero, close=1e-5)

    def test_fsdp2(self):
        as_gloo(2, sharded, close=1e-5, since=(2, 9))
        as_gloo(2, averaged, since=(2, 9))

    def test_tensor_parallel(self):
        as_gloo(2, tensor_parallel, close=1e-5)

    @unittest.skipIf((2, 8) <= VERSION < (2, 12), "PyTorch's stages send each other an int64 first, and receive it as a float32")
    def test_pipeline(self):
        as_gloo(3, pipeline)
        if VERSION >= (2, 15):
            as_gloo(3, pipeline, True)

    def test_checkpoint(self):
        with tempfile.TemporaryDirectory() as folder:
            as_gloo(2, checkpoint, folder)


if __name__ == "__main__":
    unittest.main()
