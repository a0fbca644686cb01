"""Groups, works, and what goes wrong."""
import gc
import os
import signal
import subprocess
import sys
import time
import unittest
import unittest.mock
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist

import trireme.torch
from ranks import VERSION, Failed, alike, as_gloo, monitored_barrier, run

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


# ---- Works ----------------------------------------------------------------------------------------------------------------

def works(rank, world):
    x = torch.full((100000,), float(rank))
    work = dist.all_reduce(x, async_op=True)
    if rank == 0:
        dist.send(torch.ones(1), 1, tag=3)  # a call that is under way keeps nobody from this
    elif rank == 1:
        dist.recv(torch.empty(1), 0, tag=3)
    assert work.wait() and work.is_completed() and work.is_success() and work.exception() is None
    assert torch.equal(x, torch.full((100000,), float(sum(range(world)))))
    assert work.result()[0] is x or torch.equal(work.result()[0], x)
    order = []
    futures = [dist.all_reduce(torch.ones(n), async_op=True).get_future().then(lambda f: order.append(len(f.value()[0])))
               for n in (5, 50000, 6)]
    for future in futures:
        future.wait()
    assert order == [5, 50000, 6], order
    y = torch.arange(12.0).view(3, 4).t()
    dist.all_reduce(y, async_op=True).get_future().wait()
    alike(y, torch.arange(12.0).view(3, 4).t() * world)
    # What lies otherwise in memory is copied back, into parameters too, where autograd has nothing to say.
    for asynchronous in (False, True):
        weight = torch.nn.Parameter(torch.arange(24.0).view(2, 3, 2, 2).to(memory_format=torch.channels_last))
        work = dist.all_reduce(weight, async_op=asynchronous)
        if asynchronous:
            work.get_future().wait()
        alike(weight.detach(), torch.arange(24.0).view(2, 3, 2, 2) * world)
        square = torch.nn.Parameter(torch.full((2, 3), float(rank)))
        dist.broadcast(square.t(), 1)
        alike(square.detach(), torch.ones(2, 3))
    with torch.inference_mode():
        z = torch.ones(3, 4).t()
    dist.all_reduce(z)
    alike(z, torch.full((4, 3), float(world)))
    # A copy that fails is the future's failure, and the next one comes all the same.
    with unittest.mock.patch("trireme._work.put_back", side_effect=RuntimeError("no copy")):
        first = dist.all_reduce(torch.ones(1 << 20), async_op=True)
        broken = dist.all_reduce(torch.ones(3, 4).t(), async_op=True).get_future()
        try:
            broken.wait()
            raise AssertionError("the copy did not fail")
        except RuntimeError as error:
            assert "no copy" in str(error), error
    first.wait()
    dist.all_reduce(torch.ones(5), async_op=True).get_future().wait()
    assert dist.all_reduce(torch.ones(5), async_op=True).wait(timedelta(days=50))
    for _ in range(20):  # nobody holds the work, or its memory
        dist.all_reduce(torch.ones(200000), async_op=True)
        gc.collect()
    dist.barrier()
    if rank == 0:
        late = dist.irecv(torch.empty(1), 1, tag=9)
        try:
            late.wait(timedelta(milliseconds=50))
            raise AssertionError("it came before it was sent")
        except RuntimeError as error:
            assert "not done after 0.05 s" in str(error), error
        assert not late.is_completed()
    dist.barrier()
    if rank == 1:
        dist.send(torch.ones(1), 0, tag=9)
    if rank == 0:
        late.wait()
    return True


def messages(rank, world):
    to, source, got = (rank + 1) % world, (rank - 1) % world, torch.empty(50000)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((50000,), float(rank)), to),
                                        dist.P2POp(dist.irecv, got, source)]):
        work.wait()
    assert torch.equal(got, torch.full((50000,), float(source)))
    return got


def called_directly(rank, world):
    """Methods of the group itself, in the forms that those of Gloo's have."""
    group, limit, largest, out = dist.group.WORLD, timedelta(seconds=50), dist.ReduceOp.MAX, {}

    def mine():
        return torch.arange(4.0) + rank

    def places():
        return [torch.empty(4) for _ in range(world)]

    for i, given in enumerate(((), (largest,), (largest, limit))):
        x, y = mine(), mine()
        group.allreduce(x, *given).wait()
        group.allreduce([y], *given).wait()
        out[f"allreduce {i}"] = [x, y]
    x = mine()
    group.allreduce(x, op=largest).wait()
    group.allreduce(tensors=[x]).wait()
    group.broadcast(x[:2], 1).wait()
    group.broadcast(x[2:], root=0, timeout=limit).wait()
    group.barrier(limit).wait()
    out["broadcast"], y, together, single = x, mine(), places(), torch.empty(4)
    group.reduce(y, 1, largest).wait()
    out["reduce"] = y if rank == 1 else None
    group.allgather(together, mine()).wait()
    group.gather(places() if rank == 1 else [], mine(), root=1).wait()
    group.scatter(single, together if rank == 1 else [], root=1).wait()
    group.allgather(input_tensors=[mine()], output_tensors=[together]).wait()
    out.update(allgather=together, scatter=single.clone())
    group.reduce_scatter(single, together, op=largest).wait()
    out["reduce_scatter"] = single
    return out


def asked(rank, world, meeting):
    """A group that is bound to a device, and what it says that it cannot do."""
    dist.init_process_group("trireme", init_method=f"file://{meeting}", rank=rank, world_size=world, device_id=torch.device("cpu:0"))
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    for name in ("supports_reconfigure", "supports_window", "supports_abort_hooks", "supports_shrinking", "_supports_time_estimate"):
        assert not getattr(backend, name), name
    x = torch.ones(2)
    dist.all_reduce(x)
    return x


def from_anyone(rank, world):
    """Long and short messages, in groups that number the ranks otherwise, of another type, and of a list."""
    part, got = dist.new_group([world - 1, *range(world - 1)]), []
    for group, tag in ((None, 3), (part, 4)):
        for count in (1, 50000):
            if rank == 0:
                for _ in range(world - 1):
                    x = torch.empty(count, 2, dtype=torch.int16)
                    if dist.get_backend() != "gloo":
                        x = torch.empty(2, count, dtype=torch.int16).t()
                    source = dist.recv(x, group=group, tag=tag)
                    assert torch.equal(x, torch.full((count, 2), source, dtype=torch.int16)), (source, x)
                    got.append(source)
            else:
                dist.send(torch.full((count, 2), rank, dtype=torch.int16), 0, group=group, tag=tag)
            dist.barrier()
    if rank == 0:
        places = [torch.empty(3) for _ in range(world - 1)]
        waiting = [dist.irecv(place, tag=5) for place in places]
        for work, place in zip(waiting, places):
            work.wait()
        got += [int(place[0]) for place in places]
    else:
        dist.send(torch.full((3,), float(rank)), 0, tag=5)
    return sorted(got)


# ---- Groups within the group ----------------------------------------------------------------------------------------------

def subgroups(rank, world):
    out = {}
    halves = [dist.new_group([r for r in range(world) if r % 2 == part]) for part in range(2)]
    x = torch.ones(10) * rank
    dist.all_reduce(x, group=halves[rank % 2])
    out["halves"] = x
    pair = dist.new_group([2, 0])
    if rank in (0, 2):
        y = torch.full((3,), float(rank))
        dist.broadcast(y, src=2, group=pair)
        out["pair"] = y
        dist.destroy_process_group(pair)
    both = torch.ones(4)
    dist.all_reduce(both)
    out["world"] = both
    group, count = dist.new_subgroups(2)
    z = torch.full((2,), float(rank))
    dist.all_reduce(z, group=group)
    out["new_subgroups"] = z
    assert dist.get_world_size(group) == 2 and len(count) == world // 2
    return out


def alone(rank, world):
    """Groups of one rank each, as a mesh with a dimension of 1 makes them, where a launcher has numbered the ranks."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    x = torch.ones(2) * rank
    dist.all_reduce(x, group=[dist.new_group([r]) for r in range(world)][rank])
    return x


def split(rank, world):
    part = dist.split_group(split_ranks=[[0, 2], [1, 3]])
    x = torch.ones(5) * rank
    dist.all_reduce(x, group=part)
    alike(x, torch.full((5,), 2.0 if rank % 2 == 0 else 4.0))
    assert dist.get_rank(part) == rank // 2
    try:
        dist.split_group(split_ranks=[[0, 2], [1, 3]], pg_options=trireme.torch.Options(encrypt=True))
        raise AssertionError("a part that encrypts, of a group that does not")
    except ValueError as error:
        assert "no options of their own" in str(error), error
    some = dist.split_group(split_ranks=[[3, 1]])
    assert (dist.get_rank(some) if rank in (1, 3) else -1) == {3: 0, 1: 1}.get(rank, -1)
    return True


def again_and_again(rank, world, meeting):
    def count():
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    for i in range(100):
        dist.init_process_group("trireme", init_method=f"file://{meeting}-{i}", rank=rank, world_size=world)
        x = torch.ones(3)
        dist.all_reduce(x)
        dist.all_reduce(x, async_op=True).get_future().wait()
        assert x[0] == world * world
        dist.destroy_process_group()
        if i == 9:
            before = count()
    deadline = time.monotonic() + 10
    while any(now > then for now, then in zip(count(), before)) and time.monotonic() < deadline:
        time.sleep(0.01)  # a thread that has been joined stays in /proc for a moment
    assert all(now <= then for now, then in zip(count(), before)), f"descriptors and threads: {before} after 10 groups, {count()} after 100"
    return True


def over_tcp(rank, world, meeting):
    dist.init_process_group("trireme", init_method=f"file://{meeting}", rank=rank, world_size=world,
                            pg_options=trireme.torch.Options(transport="tcp", token="secret", encrypt=True))
    x = torch.full((100000,), float(rank))
    dist.all_reduce(x)
    group = dist.new_group([0, world - 1])
    if rank in (0, world - 1):
        dist.all_reduce(x, group=group)
    return x


def beside(rank, world, meeting):
    """Another device's backend is PyTorch's own, in the same group."""
    dist.init_process_group("cpu:trireme,cuda:gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    group = dist.group.WORLD
    assert [d.type for d in group._device_types] == ["cpu", "cuda"], group._device_types
    other = group._get_backend(torch.device("cuda"))
    assert group._get_backend(torch.device("cpu")) is group and type(other).__name__ == "ProcessGroupGloo", other
    x, y = torch.ones(3), torch.ones(3)
    dist.all_reduce(x)
    other.allreduce([y], trireme.torch._native.AllreduceOptions()).wait()
    assert torch.equal(x, y) and x[0] == world
    return True


# ---- What goes wrong ------------------------------------------------------------------------------------------------------

def mismatch(rank, world):
    if rank == 0:
        dist.all_reduce(torch.ones(5))  # HERE
    else:
        dist.broadcast(torch.ones(5), 0)  # AND HERE


def other_shape(rank, world):
    dist.all_reduce(torch.ones(5 + rank))


def killed(rank, world):
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        dist.all_reduce(torch.ones(5))
    except RuntimeError as error:
        return str(error), time.monotonic() - began
    return None


def raising(rank, world):
    dist.barrier()
    if rank == 1:
        raise KeyError("the label is missing")
    dist.all_reduce(torch.ones(5))


def stopped(rank, world):
    pids = [None] * world
    dist.all_gather_object(pids, os.getpid())
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    began = time.monotonic()
    try:
        for _ in range(2):  # the stopped one may find all that it needs for the first when it goes on
            dist.all_reduce(torch.ones(5))
    except dist.DistBackendError as error:
        return str(error), time.monotonic() - began
    finally:
        os.kill(pids[1], signal.SIGCONT)
    raise AssertionError("nobody was missed")


def late(rank, world):
    if rank != 2:
        monitored_barrier(timeout=timedelta(seconds=1))
    else:
        time.sleep(2)
        dist.barrier()


def forked(rank, world, how):
    """A child, which the ranks hear nothing of."""
    x = torch.ones(100000)
    dist.all_reduce(x, async_op=True).wait()
    child = os.fork()
    if child == 0 and how == "exec":
        os.execv("/bin/true", ["true"])
    if child == 0:
        try:
            dist.all_reduce(x)
        except RuntimeError as error:
            os._exit("process that forked this one" not in str(error))
        os._exit(2)
    deadline = time.monotonic() + 20
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            raise AssertionError("the child did not end")
        time.sleep(0.01)
    assert ended[1] == 0, ended
    dist.barrier()
    dist.all_reduce(x, async_op=True).get_future().wait()
    return x


def aborted(rank, world):
    import threading
    if rank == 0:
        threading.Timer(0.2, dist.group.WORLD.abort).start()
        dist.barrier()
    else:
        time.sleep(0.6)
        dist.barrier()


def refused(rank, world):
    """Nothing here breaks the group."""
    texts = {}

    def say(name, function, *arguments):
        try:
            function(*arguments)
            texts[name] = "nothing was wrong"
        except Exception as error:
            texts[name] = f"{type(error).__name__}: {error}"

    say("sparse", dist.all_reduce, torch.eye(3).to_sparse())
    say("device", dist.all_reduce, torch.ones(3, device="meta"))
    say("fp8", dist.all_reduce, torch.ones(3).to(torch.float8_e5m2))
    say("average of bool", dist.all_reduce, torch.ones(3, dtype=torch.bool), dist.ReduceOp.AVG)
    say("reduction", dist.all_reduce, torch.ones(3), dist._make_nccl_premul_sum(2.0))
    say("list", dist.all_gather, [torch.empty(3)] * (world + 1), torch.ones(3))
    say("place", dist.all_gather_into_tensor, torch.empty(7), torch.ones(3))
    say("splits", dist.all_to_all_single, torch.empty(4), torch.ones(4), [1] * world, [3] * world)
    say("rows", dist.all_to_all_single, torch.empty(3), torch.ones(3))
    say("options", lambda: dist.new_group(pg_options={"encrypt": True}))
    dist.barrier()
    return texts


class Groups(unittest.TestCase):
    def test_works(self):
        run(2, works)
        run(3, works)

    def test_messages(self):
        as_gloo(2, messages)
        as_gloo(3, messages)

    def test_methods(self):
        as_gloo(2, called_directly, since=(2, 15))
        as_gloo(3, called_directly, since=(2, 15))

    def test_a_bound_device(self):
        import tempfile
        with tempfile.TemporaryDirectory() as folder:
            for x in run(2, asked, folder + "/m", backend=None):
                alike(x, torch.full((2,), 2.0))

    def test_messages_from_anyone(self):
        self.assertEqual(as_gloo(3, from_anyone)[0], [1] * 5 + [2] * 5)
        self.assertEqual(run(2, from_anyone)[0], [1] * 5)

    def test_subgroups(self):
        as_gloo(4, subgroups)

    def test_groups_of_one(self):
        as_gloo(3, alone)

    @unittest.skipIf(VERSION < (2, 15), "PyTorch asks for a bound device there")
    def test_split(self):
        run(4, split)

    def test_made_and_destroyed_100_times(self):
        import tempfile
        with tempfile.TemporaryDirectory() as folder:
            run(2, again_and_again, folder + "/m", backend=None, patience=200)

    def test_tcp(self):
        import tempfile
        with tempfile.TemporaryDirectory() as folder:
            for rank, x in enumerate(run(3, over_tcp, folder + "/m", backend=None)):
                alike(x, torch.full((100000,), 3.0 if rank == 1 else 6.0))

    def test_a_backend_for_each_device(self):
        import tempfile
        with tempfile.TemporaryDirectory() as folder:
            run(2, beside, folder + "/m", backend=None)

    def fails(self, world, function, *words, kind="DistBackendError", ranks=None, timeout=60):
        results = run(world, function, fails=True, timeout=timeout)
        for rank in range(world) if ranks is None else ranks:
            self.assertIsInstance(results[rank], Failed, f"rank {rank}")
            self.assertEqual(results[rank].kind, kind, results[rank].trace)
            for word in words:
                self.assertIn(word, results[rank].text)
        return results

    def test_calls_that_differ(self):
        lines = [i for i, line in enumerate(open(__file__), 1) if "HERE" in line and "dist." in line]
        self.fails(3, mismatch, "different calls", f"test_groups.py:{lines[0]}", f"test_groups.py:{lines[1]}")
        self.fails(2, other_shape, "f32[5]", "f32[6]")

    def test_a_rank_is_killed(self):
        for rank, result in enumerate(run(3, killed, fails=True)):
            if rank != 1:
                self.assertIn("rank 1 (pid", result[0])
                self.assertLess(result[1], 5)

    def test_a_rank_raises(self):
        self.fails(3, raising, "rank 1 (pid", "KeyError", "the label is missing", ranks=[0, 2])

    def test_a_rank_is_stopped(self):
        for text, seconds in run(2, stopped, timeout=2):  # the stopped one as well, when it goes on
            self.assertIn("rank 0 waited 2 s for rank 1 (pid", text)
            self.assertLess(seconds, 10)

    def test_a_rank_is_late(self):
        self.fails(3, late, "rank 2", ranks=[0, 1])

    def test_children(self):
        for how in ("exec", "call"):
            with self.subTest(how):
                for x in run(2, forked, how):
                    alike(x, torch.full((100000,), 4.0))

    def test_other_versions_are_warned_of(self):
        with unittest.mock.patch.object(torch, "__version__", "1.13.1+cpu"):
            with self.assertWarnsRegex(UserWarning, "the tests run with PyTorch 2.7 to 2.15, not with 1.13.1"):
                trireme.torch.register()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with unittest.mock.patch.object(torch, "__version__", trireme.torch.TESTED[0] + ".1"):
                trireme.torch.register()

    def test_abort(self):
        self.fails(2, aborted, "the program aborted the group")

    def test_bad_arguments(self):
        words = {"sparse": ["TypeError", "to_dense"], "device": ["ValueError", "meta", "cpu:trireme,meta:"],
                 "fp8": ["TypeError", "no arithmetic on torch.float8_e5m2"], "average of bool": ["TypeError", "avg of bool"],
                 "reduction": ["ValueError", "no reduction PREMUL_SUM"],
                 "list": ["ValueError", "a list of 3 tensors", "group of 2"], "place": ["7 elements"],
                 "splits": ["ValueError", "do not divide"], "rows": ["ValueError", "3 rows cannot be divided"],
                 "options": ["TypeError", "pg_options is a dict, not a trireme.torch.Options"]}
        for texts in run(2, refused):
            for name, expected in words.items():
                for word in expected:
                    self.assertIn(word, texts[name], name)


# ---- Programs -------------------------------------------------------------------------------------------------------------

PROGRAM = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("trireme"%s)
x = torch.ones(3) * (dist.get_rank() + 1)
dist.all_reduce(x)
os.write(1, f"sum {x.tolist()} of {dist.get_world_size()}\\n".encode())  # whole, as ranks share the pipe
if "RANK" in os.environ and "hang" not in sys.argv:  # not in PyTorch's store of a file, which its end in the child may delete
    child = os.fork()
    if child == 0:
        sys.exit()  # through all that an interpreter does at its end; the ranks hear nothing of it
    os.waitpid(child, 0)
elif "hang" in sys.argv and dist.get_rank() == 1:
    import time; time.sleep(60)
dist.all_reduce(x)  # HANGS
dist.destroy_process_group()
"""


LIMITED = """
import os, torch.distributed as dist
from datetime import timedelta
rank = int(os.environ.pop("RANK"))
store = next(dist.rendezvous(f"env://?rank={rank}&world_size=2", timeout=timedelta(seconds=70)))[0]
os.write(1, f"limit {store.timeout}\\n".encode())
store.wait(["seen"]) if rank == 0 else store.set("seen", "")
"""


def spawned(rank, folder):
    dist.init_process_group("trireme", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    x = torch.full((100000,), rank + 1.0)
    dist.all_reduce(x)
    torch.save(x, f"{folder}/{rank}")  # and the group is left by itself


class Programs(unittest.TestCase):
    def setUp(self):
        import tempfile
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.program = f"{self.folder.name}/train.py"
        with open(self.program, "w") as file:
            file.write(PROGRAM % "")

    def starts(self, *command, world=2, env=None):
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=env)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count(f"sum [{world * (world + 1) / 2}"), world, done.stdout + done.stderr)

    def test_torchrun(self):
        self.starts(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", self.program)

    def test_trireme_run(self):
        if not os.environ.get("BUILD"):
            self.skipTest("BUILD does not say where the command is")
        path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"  # whose python3 it takes
        self.starts(os.environ["BUILD"] + "/trireme", "run", "-n", "2", self.program, env={**os.environ, "PATH": path})

    def test_time_limit_under_trireme_run(self):
        """That of the program, and what the URL says comes before the environment."""
        if not os.environ.get("BUILD"):
            self.skipTest("BUILD does not say where the command is")
        with open(self.program, "w") as file:
            file.write(LIMITED)
        done = subprocess.run([os.environ["BUILD"] + "/trireme", "run", "-n", "2", sys.executable, self.program],
                              capture_output=True, text=True, timeout=200)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("limit 0:01:10"), 2, done.stdout)

    def test_help(self):
        for words, code, stream in (["--help"], 0, "stdout"), (["why", "-h"], 0, "stdout"), (["hwy"], 2, "stderr"):
            done = subprocess.run([sys.executable, "-m", "trireme", *words], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn("python -m trireme why [JOB]", getattr(done, stream))

    def test_mpirun(self):
        import shutil
        if not shutil.which("mpirun"):
            self.skipTest("mpirun is missing")
        with open(self.program, "w") as file:
            file.write(PROGRAM % (f', init_method="file://{self.folder.name}/meeting", '
                       'rank=int(os.environ["OMPI_COMM_WORLD_RANK"]), world_size=int(os.environ["OMPI_COMM_WORLD_SIZE"])'))
        self.starts("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable, self.program)

    def test_spawn(self):
        torch.multiprocessing.spawn(spawned, (self.folder.name,), nprocs=2)
        for rank in range(2):
            alike(torch.load(f"{self.folder.name}/{rank}"), torch.full((100000,), 3.0))

    def test_two_hosts(self):
        """Network namespaces, which only PyTorch's store and connections over TCP join."""
        ends = [(f"trireme-{os.getpid()}-{rank}", f"trireme{os.getpid() % 100000}{'ab'[rank]}") for rank in range(2)]

        def ip(*words):
            return subprocess.run(["ip", *words], capture_output=True, text=True).returncode == 0

        try:
            made = [ip("netns", "add", name) for name, _ in ends]
            if not all(made) or not ip("link", "add", ends[0][1], "netns", ends[0][0], "type", "veth",
                                       "peer", "name", ends[1][1], "netns", ends[1][0]):
                self.skipTest("no network namespace can be made")
        except FileNotFoundError:
            self.skipTest("ip is missing")
        ranks = []
        try:
            for rank, (name, device) in enumerate(ends):
                for words in (["addr", "add", f"10.0.0.{rank + 1}/24", "dev", device], ["link", "set", device, "up"],
                              ["link", "set", "lo", "up"]):
                    self.assertTrue(ip("-n", name, *words), words)
                env = dict(os.environ, RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="10.0.0.1", MASTER_PORT="29500",
                           TRIREME_TOKEN="secret")
                ranks.append(subprocess.Popen(["ip", "netns", "exec", name, sys.executable, self.program], env=env, text=True,
                                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
            for rank in ranks:
                text = rank.communicate(timeout=100)[0]
                self.assertIn("sum [3.0, 3.0, 3.0] of 2", text)
                self.assertEqual(rank.returncode, 0, text)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
            for name, _ in ends:
                ip("netns", "del", name)

    def test_why(self):
        """The line of a hanging program, from outside."""
        job = subprocess.Popen([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                                self.program, "hang"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            for _ in range(2):
                job.stdout.readline()
            time.sleep(1.5)
            said = subprocess.run([sys.executable, "-m", "trireme", "why"], capture_output=True, text=True, timeout=60).stdout
            line = next(i for i, text in enumerate((PROGRAM % "").split("\n"), 1) if "HANGS" in text)
            self.assertIn(f"train.py:{line}", said)
            self.assertIn("rank 1", said)
        finally:
            job.terminate()
            job.wait()
            job.stdout.close()

    def test_the_binding_is_that_of_the_headers(self):
        made = f"{self.folder.name}/_c.py"
        subprocess.run([sys.executable, f"{SOURCE}/scripts/make-python-binding", made], check=True)
        with open(made) as one, open(f"{SOURCE}/python/trireme/_c.py") as other:
            self.assertEqual(one.read(), other.read(), "run scripts/make-python-binding")


if __name__ == "__main__":
    unittest.main()
