"""Every collective, of every type and operation, against what it has to give and against Gloo."""
import unittest

import torch
import torch.distributed as dist

from ranks import alike, as_gloo, monitored_barrier, run

REDUCED = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.int8, torch.int16,
           torch.uint16, torch.uint32]
MOVED = REDUCED + [torch.bool, torch.complex64, torch.complex128, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2]
SIZES = [0, 1, 7, 1000, 70000]


def numbers(rank, count, dtype, salt=0):
    """Small whole numbers, whose sums and products no type rounds."""
    values = (torch.arange(count) * 7 + rank * 3 + salt) % 5 + 1
    return values.to(torch.float32).to(dtype) if "float8" in str(dtype) else values.to(dtype)


def reference(op, parts):
    wide = torch.stack([part.to(torch.float64) for part in parts])
    whole = not parts[0].dtype.is_floating_point
    result = {"SUM": lambda: wide.sum(0), "PRODUCT": lambda: wide.prod(0), "MIN": lambda: wide.amin(0) if len(parts[0]) else wide[0],
              "MAX": lambda: wide.amax(0) if len(parts[0]) else wide[0],
              "AVG": lambda: (wide.sum(0) / len(parts)).trunc() if whole else wide.sum(0) / len(parts)}[op]()
    return result.to(parts[0].dtype)


def reductions(rank, world):
    wrong = []

    def check(got, wanted, *what):
        try:
            alike(got, wanted, close=1e-2 if got.dtype.is_floating_point else None)
        except AssertionError as error:
            wrong.append(f"{what}: {error}")

    for dtype in REDUCED:
        for name in ("SUM", "PRODUCT", "MIN", "MAX", "AVG"):
            op = getattr(dist.ReduceOp, name)
            for count in SIZES if dtype in (torch.float32, torch.bfloat16, torch.int8) else [9, 3000]:
                parts = [numbers(r, count, dtype) for r in range(world)]
                whole = reference(name, parts)
                x = parts[rank].clone()
                dist.all_reduce(x, op)
                check(x, whole, "all_reduce", dtype, name, count)
                x = parts[rank].clone()
                dist.reduce(x, world - 1, op)
                check(x, whole if rank == world - 1 else parts[rank], "reduce", dtype, name, count)
                blocks = [[numbers(r, count, dtype, b) for b in range(world)] for r in range(world)]
                mine = reference(name, [blocks[r][rank] for r in range(world)])
                x = torch.empty_like(mine)
                dist.reduce_scatter(x, blocks[rank], op)
                check(x, mine, "reduce_scatter", dtype, name, count)
                x = torch.empty_like(mine)
                dist.reduce_scatter_tensor(x, torch.cat(blocks[rank]), op)
                check(x, mine, "reduce_scatter_tensor", dtype, name, count)
    for dtype in (torch.int64, torch.int32, torch.uint8, torch.int8):
        parts = [numbers(r, 100, dtype) for r in range(world)]
        for name, fold in (("BAND", torch.bitwise_and), ("BOR", torch.bitwise_or), ("BXOR", torch.bitwise_xor)):
            whole = parts[0]
            for part in parts[1:]:
                whole = fold(whole, part)
            x = parts[rank].clone()
            dist.all_reduce(x, getattr(dist.ReduceOp, name))
            check(x, whole, "all_reduce", dtype, name)
    flags = [torch.arange(50) % (r + 2) == 0 for r in range(world)]
    for name, fold in (("SUM", torch.any), ("MAX", torch.any), ("PRODUCT", torch.all), ("MIN", torch.all)):
        x = flags[rank].clone()
        dist.all_reduce(x, getattr(dist.ReduceOp, name))
        check(x, fold(torch.stack(flags), 0), "all_reduce", "bool", name)
    z = torch.complex(numbers(rank, 5, torch.float32), numbers(rank, 5, torch.float32, 1))
    dist.all_reduce(z)
    check(torch.view_as_real(z)[:, 0], reference("SUM", [numbers(r, 5, torch.float32) for r in range(world)]), "complex")
    uneven = [numbers(rank, b + 1, torch.float32, b) for b in range(world)]
    x = torch.empty(rank + 1)
    dist.distributed_c10d._get_default_group().reduce_scatter([x], [uneven], dist.ReduceScatterOptions()
                                                              if hasattr(dist, "ReduceScatterOptions") else scatter_options()).wait()
    check(x, reference("SUM", [numbers(r, rank + 1, torch.float32, rank) for r in range(world)]), "uneven reduce_scatter")
    return wrong


def scatter_options():
    from torch._C._distributed_c10d import ReduceScatterOptions
    return ReduceScatterOptions()


def moves(rank, world, dtypes=MOVED, sizes=SIZES):
    """Results by name; every rank has the same names."""
    out = {}
    for dtype in dtypes:
        for count in sizes:
            mine, key = numbers(rank, count, dtype), f"{dtype} {count}"
            x = numbers(rank, count, dtype)
            dist.broadcast(x, src=world - 1)
            alike(x, numbers(world - 1, count, dtype))
            parts = [torch.empty_like(mine) for _ in range(world)]
            dist.all_gather(parts, mine)
            alike(parts, [numbers(r, count, dtype) for r in range(world)])
            flat = torch.empty(world * count, dtype=dtype)
            dist.all_gather_into_tensor(flat, mine)
            alike(list(flat.view(world, -1) if count else [flat[:0]] * world), parts)
            views = list(torch.empty(world * count, dtype=dtype).chunk(world)) if count else [mine[:0]] * world
            dist.all_gather(views, mine)
            alike(views, parts)
            places = [torch.empty_like(mine) for _ in range(world)] if rank == 0 else None
            dist.gather(mine, places, dst=0)
            if rank == 0:
                alike(places, parts)
            x = torch.empty_like(mine)
            dist.scatter(x, [numbers(b, count, dtype, 2) for b in range(world)] if rank == world - 1 else None, src=world - 1)
            alike(x, numbers(rank, count, dtype, 2))
            given = [numbers(rank, count, dtype, b) for b in range(world)]
            got = [torch.empty_like(mine) for _ in range(world)]
            dist.all_to_all(got, given)
            alike(got, [numbers(r, count, dtype, rank) for r in range(world)])
            x = torch.empty(world * count, dtype=dtype)
            dist.all_to_all_single(x, torch.cat([t.view(torch.uint8) for t in given]).view(dtype) if count else x)
            alike(x.view(torch.uint8), torch.cat([t.view(torch.uint8) for t in got]) if count else x.view(torch.uint8))
            out[key] = x.view(torch.uint8)
    return out


def uneven_moves(rank, world):
    out = {}
    parts = [torch.empty(r + 1, 3) for r in range(world)]
    dist.all_gather(parts, torch.full((rank + 1, 3), float(rank)))
    alike(parts, [torch.full((r + 1, 3), float(r)) for r in range(world)])
    splits_in, splits_out = [rank + b + 1 for b in range(world)], [r + rank + 1 for r in range(world)]
    given = torch.cat([torch.full((n, 2), float(10 * rank + b)) for b, n in enumerate(splits_in)])
    got = torch.empty(sum(splits_out), 2)
    dist.all_to_all_single(got, given, splits_out, splits_in)
    alike(got, torch.cat([torch.full((n, 2), float(10 * r + rank)) for r, n in enumerate(splits_out)]))
    out["all_to_all_single"] = got
    got = [torch.empty(n) for n in splits_out]
    dist.all_to_all(got, [torch.full((n,), float(10 * rank + b)) for b, n in enumerate(splits_in)])
    out["all_to_all"] = got
    return out


def strided(rank, world):
    """Columns, transposed and conjugated tensors, and broken-up targets."""
    out = {}
    x = torch.arange(24.0).view(4, 6).t() * (rank + 1)
    dist.all_reduce(x)
    out["all_reduce"] = x
    x = torch.arange(24.0).view(4, 6)[:, 1::2] + rank
    dist.broadcast(x, 0)
    out["broadcast"] = x
    targets = [torch.zeros(3, 8)[:, ::2] for _ in range(world)]
    dist.all_gather(targets, (torch.arange(12.0).view(4, 3) + rank).t())
    out["all_gather"] = [t.clone() for t in targets]
    x = torch.empty(3, 2).t()
    dist.reduce_scatter(x, [torch.ones(3, 2).t() * (rank + 1) for _ in range(world)])
    alike(x, torch.full((2, 3), world * (world + 1) / 2))
    x = torch.zeros(4, 2).t()
    dist.reduce(x.add_(rank + 1), 0)
    out["reduce"] = x if rank == 0 else None
    if rank < 2 <= world and dist.get_backend() != "gloo":  # which sends nothing of that kind
        x = (torch.arange(8.0).view(2, 4) + rank).t()
        if rank == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
        alike(x, torch.arange(8.0).view(2, 4).t())
    return out


def coalesced(rank, world):
    out = {}
    group, c10d = dist.group.WORLD, dist.distributed_c10d
    xs = [torch.full((n,), float(rank + n)) for n in (1, 500, 70000)]
    dist.all_reduce_coalesced(xs)
    out["all_reduce_coalesced"] = xs
    with c10d._coalescing_manager(group, async_ops=True) as together:
        ys = [torch.full((n,), float(rank)) for n in (3, 40000)]
        for y in ys:
            dist.all_reduce(y)
    together.wait()
    out["all_reduce"] = ys
    places = [torch.empty(world * n) for n in (2, 9)]
    with c10d._coalescing_manager(group):
        for place in places:
            dist.all_gather_into_tensor(place, torch.full((place.numel() // world,), float(rank)))
    out["all_gather"] = places
    mine = [torch.empty(n) for n in (2, 9)]
    with c10d._coalescing_manager(group):
        for place in mine:
            dist.reduce_scatter_tensor(place, torch.arange(float(world * place.numel())) * (rank + 1))
    out["reduce_scatter"] = mine
    return out


def coalesced_by_device(rank, world):
    """Where PyTorch brackets the calls for the backend; Gloo lacks that."""
    x, y = torch.ones(5) * rank, torch.zeros(world * 2)
    group, cpu = dist.group.WORLD, torch.device("cpu")
    group._start_coalescing(cpu)
    first = group.allreduce([x])
    group._allgather_base(y, torch.full((2,), float(rank)))
    group._end_coalescing(cpu).wait()
    first.wait()
    alike(x, torch.full((5,), float(sum(range(world)))))
    alike(y, torch.arange(float(world)).repeat_interleave(2))
    lists = [[torch.empty(2), torch.empty(3)] for _ in range(world)]
    dist.all_gather_coalesced(lists, [torch.full((2,), float(rank)), torch.full((3,), 10.0 + rank)])
    alike(lists, [[torch.full((2,), float(r)), torch.full((3,), 10.0 + r)] for r in range(world)])
    if hasattr(group, "gather_into_tensor"):
        whole = torch.empty(world * 2)
        group.gather_into_tensor(whole, torch.full((2,), float(rank))).wait()
        if rank == 0:
            alike(whole, torch.arange(float(world)).repeat_interleave(2))
    return True


def objects(rank, world):
    out = {}
    got = [None] * world
    dist.all_gather_object(got, {"rank": rank, "text": "x" * 100 * rank})
    out["all_gather_object"] = got
    box = [("from", rank), [rank]] if rank == 0 else [None, None]
    dist.broadcast_object_list(box, src=0)
    out["broadcast_object_list"] = box
    mine = [None]
    dist.scatter_object_list(mine, [{"to": r} for r in range(world)] if rank == 0 else None, src=0)
    out["scatter_object_list"] = mine
    got = [None] * world if rank == 0 else None
    dist.gather_object(("rank", rank), got, dst=0)
    out["gather_object"] = got
    dist.barrier()
    monitored_barrier()
    return out


def averages(rank, world):
    x = torch.full((1000,), float(rank))
    dist.all_reduce(x, dist.ReduceOp.AVG)
    return x


def functional(rank, world):
    import torch.distributed._functional_collectives as f
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (world,))
    x = torch.arange(float(world * 2)) * (rank + 1)
    out = {"all_reduce": f.all_reduce(x, "sum", mesh), "all_gather": f.all_gather_tensor(x, 0, mesh),
           "reduce_scatter": f.reduce_scatter_tensor(x, "sum", 0, mesh), "broadcast": f.broadcast(x, 0, mesh),
           "all_to_all": f.all_to_all_single(x, None, None, mesh)}
    out.update({f"all_reduce_coalesced {i}": t for i, t in enumerate(f.all_reduce_coalesced([x, x + 1], "sum", mesh))})
    return {name: t.wait() if hasattr(t, "wait") else t for name, t in out.items()}


class Collectives(unittest.TestCase):
    def test_reductions(self):
        for world in (1, 2, 3, 4):
            for rank, wrong in enumerate(run(world, reductions)):
                self.assertEqual(wrong, [], f"rank {rank} of {world}")

    def test_moves(self):
        for world in (1, 2, 3):
            run(world, moves)
        run(4, moves, [torch.float32, torch.float8_e5m2], [5])

    def test_moves_are_those_of_gloo(self):
        as_gloo(2, moves, [torch.float32, torch.int64, torch.uint8], [1, 1000], since=(2, 12))

    def test_different_lengths(self):
        for world in (2, 3):
            run(world, uneven_moves)

    def test_strided_tensors(self):
        for world in (2, 3):
            as_gloo(world, strided, since=(2, 8))

    def test_coalesced(self):
        as_gloo(2, coalesced)
        as_gloo(3, coalesced)
        run(3, coalesced_by_device)

    def test_objects(self):
        as_gloo(3, objects)

    def test_functional_collectives(self):
        as_gloo(2, functional)
        as_gloo(4, functional)

    def test_average(self):
        for world in (2, 3):
            for x in run(world, averages):
                alike(x, torch.full((1000,), (world - 1) / 2))


if __name__ == "__main__":
    unittest.main()
