"""The process group of `torch.distributed.init_process_group("trireme")`: PyTorch's collectives over include/trireme/comm.h.

Tensors of the CPU in memory of any kind; what is not contiguous goes through a copy, and a type that the library does not know is
moved as bytes. A synchronous call runs in the caller's thread, an asynchronous one in the group's own. Every call carries the file
and line of the program's code that made it."""
import contextlib
import dataclasses
import functools
import multiprocessing.util
import os
import struct
import sys
import warnings
import weakref
from datetime import timedelta

import ctypes
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as _native
from torch.distributed import distributed_c10d as c10d

from . import _c
from ._autoload import autoload
from ._library import filled, kept, lib, log, message, quick, release
from ._share import share_memory  # noqa: F401: public
from ._store import Store, meeting_host
from ._work import Ended, Joint, Waiter, Work, failure, milliseconds, put_back

TESTED = tuple(f"2.{minor}" for minor in range(7, 16))

_TYPES = {torch.float32: _c.TR_F32, torch.float64: _c.TR_F64, torch.float16: _c.TR_F16, torch.bfloat16: _c.TR_BF16,
          torch.int64: _c.TR_I64, torch.int32: _c.TR_I32, torch.uint8: _c.TR_U8, torch.bool: _c.TR_BOOL}
# What these are added up as; sums and bits wrap as those of the narrow type do.
_WIDER = {torch.int8: torch.int32, torch.int16: torch.int32, torch.uint16: torch.int32, torch.uint32: torch.int64}
_OPS = {int(getattr(dist.ReduceOp, name)): code for name, code in (
    ("SUM", _c.TR_SUM), ("AVG", _c.TR_AVG), ("MIN", _c.TR_MIN), ("MAX", _c.TR_MAX), ("PRODUCT", _c.TR_PROD),
    ("BAND", _c.TR_BAND), ("BOR", _c.TR_BOR), ("BXOR", _c.TR_BXOR))}
_CPU, _UNSET = torch.device("cpu"), timedelta(milliseconds=-1)

# tr_collective, in its order, with the padding that C gives it.
_CODES = {ctypes.c_size_t: "N", ctypes.c_int: "i", ctypes.c_int64: "q", ctypes.c_void_p: "P", ctypes.c_char_p: "P",
          _c.tr_device: "ii"}
_pack = struct.Struct("@" + "".join(_CODES[kind] for _, kind in _c.tr_collective._fields_) + "0P").pack
_SIZE = ctypes.sizeof(_c.tr_collective)
_done, _push, _pop, _keep, _status_of = (quick.tr_work_done, quick.tr_scope_push, quick.tr_scope_pop, quick.tr_object_keep,
                                         quick.tr_status_of)


# ---- Where a call comes from --------------------------------------------------------------------------------------------

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_INSIDE = (_HERE, os.path.dirname(os.path.abspath(torch.__file__)) + os.sep, contextlib.__file__)
_places = {}  # a file's name to the address of its text, 0: PyTorch's or ours


def _place(name):
    text = ctypes.create_string_buffer(name.encode(errors="replace"))
    place = _places[name] = (0 if name.startswith(_INSIDE) else ctypes.addressof(text), text)
    return place


def _caller():
    """The innermost frame of the program: the address of its file's name, and the line."""
    frame = sys._getframe(2)
    while frame:
        name = frame.f_code.co_filename
        place = (_places.get(name) or _place(name))[0]
        if place:
            return place, frame.f_lineno
        frame = frame.f_back
    return 0, 0


def _is_async(opts):
    """Whether the caller goes on while the call runs. PyTorch 2.7 does not say it in opts; its functions know it by themselves."""
    said = getattr(opts, "asyncOp", None)
    if said is not None:
        return said
    frame = sys._getframe(2)
    while frame and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    named = frame and frame.f_code.co_filename == c10d.__file__ and "async_op" in frame.f_code.co_varnames
    return not named or frame.f_locals["async_op"]


# ---- Tensors ------------------------------------------------------------------------------------------------------------

def _refuse(tensor):
    if tensor.layout is not torch.strided:
        raise TypeError(f"trireme: a tensor of layout {tensor.layout} was given; make it dense first, with .to_dense()")
    raise ValueError(f"trireme: a tensor on {tensor.device} was given; this group is for the CPU. "
                     f'init_process_group("cpu:trireme,{tensor.device.type}:…") names a backend for each device, as cuda:nccl')


def _dense(tensor):
    """As it lies in memory, one element after the other; a copy where it does not."""
    if tensor.layout is not torch.strided or not tensor.is_cpu:
        _refuse(tensor)
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _target(tensor, finish):
    """Where results can be written; `finish` copies them on to where they belong."""
    dense = _dense(tensor)
    if dense is not tensor:
        finish.append((tensor, dense))
    return dense


def _units(tensor):
    """How many elements of which type a tensor is to the library, for calls that do no arithmetic; the last is their bytes."""
    dtype = _TYPES.get(tensor.dtype)
    if dtype is None:
        return tensor.numel() * tensor.element_size(), _c.TR_U8, tensor.element_size()
    return tensor.numel(), dtype, 1


def _counts(sizes):
    return (ctypes.c_int64 * len(sizes))(*sizes)


def _milliseconds(timeout):
    return 0 if timeout is None or timeout == _UNSET else milliseconds(timeout)


def _direct(options, tensors, *fields):
    """A method for programs that call the group itself: as that of PyTorch's C++ class it takes a tensor for a list of one, and
    members of the options in place of these, as in allreduce(tensor, ReduceOp.MAX) and broadcast(tensor, root=1)."""
    def decorate(method):
        @functools.wraps(method)
        def call(self, *given, **named):
            if given and type(given[-1]) is options:
                return method(self, *given)
            names = sorted((k for k in named if k.startswith(("tensor", "output", "input"))), key=lambda k: k.startswith("input"))
            lists, opts = [*given[:tensors], *map(named.pop, names)], named.pop("opts", None) or options()
            if any(isinstance(one, torch.Tensor) for one in lists):
                lists = [[one] for one in lists]
            for field, value in (*zip(fields, given[tensors:]), *named.items()):
                if value is not None:
                    setattr(opts, {"op": "reduceOp", "root": "rootRank"}.get(field, field), value)
            return method(self, *lists, opts)
        return call
    return decorate


# ---- The group ----------------------------------------------------------------------------------------------------------

@dataclasses.dataclass
class Options:
    """init_process_group("trireme", pg_options=trireme.torch.Options(…)); groups within it take over what they are not given.

    What they mean stands in comm.h, at tr_join_options."""
    token: str = None
    insecure: bool = False
    transport: str = None
    address: str = None
    algorithms: str = None
    flight_dir: str = None
    report_ms: int = 0
    encrypt: bool = False


_groups = weakref.WeakSet()


class ProcessGroup(dist.ProcessGroup):
    def __init__(self, rank, size, name, options, timeout, store, join):
        super().__init__(rank, size)
        self._rank, self._size, self._name, self._desc, self._options = rank, size, name, "", options
        self._timeout_ms, self._torch_store, self._store = timeout, store, None
        self._others, self._other_options, self._orphans, self._works, self._waiter = {}, None, [], None, Waiter()
        self._is_part, self._group = False, None
        self._group = join(self)
        _groups.add(self)

    # -- Names, devices, what PyTorch asks --

    def getBackendName(self):
        return "trireme"

    def name(self):
        return "trireme"

    def getGroupName(self):
        return self._name

    def setGroupName(self, name):
        self._name = name

    _set_group_name = setGroupName

    def getGroupDesc(self):
        return self._desc

    def setGroupDesc(self, desc):
        self._desc = desc

    _set_group_desc = setGroupDesc
    group_name, group_desc = property(getGroupName), property(getGroupDesc)
    supports_splitting, supports_coalescing = True, False
    # PyTorch's own answers look for a backend registered with the group, of which there is none.
    supports_reconfigure = supports_window = supports_abort_hooks = supports_shrinking = _supports_time_estimate = False

    def get_group_store(self):
        return self._torch_store

    @property
    def options(self):
        mine = dataclasses.replace(self._options)
        mine._timeout = timedelta(milliseconds=self._timeout_ms)  # as PyTorch's own have it: pipelines ask for it
        return mine

    def _configured(self):
        """The other devices' backends, as "cpu:trireme,cuda:nccl" said."""
        pairs = [pair.split(":") for pair in c10d._world.pg_backend_config.get(self, "").split(",")]
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and pair[1] != "trireme"}

    @property
    def _device_types(self):
        # Empty until PyTorch has entered the group: it asks before, to see whether it can record calls for it, and cannot.
        return [_CPU, *map(torch.device, self._configured())] if self._is_part or self in c10d._world.pg_map else []

    def _get_backend(self, device):
        return self if torch.device(device).type == "cpu" else self._other(torch.device(device))

    get_backend = _get_backend

    def _other(self, device):
        """The backend of another device, made when it is first needed."""
        if device.type not in self._others:
            name = self._configured().get(device.type)
            if not name:
                _refuse(torch.empty(0, device=device))
            self._others[device.type] = _make_backend(self, device, name)
        return self._others[device.type]

    def _elsewhere(self, name, tensor, *arguments):
        return getattr(self._other(tensor.device), name)(*arguments)

    def set_timeout(self, timeout):
        self._timeout_ms = _milliseconds(timeout)

    _set_default_timeout = set_timeout

    def supports_tensor_alloc(self, device):
        return False

    eager_connect_single_device = supports_tensor_alloc  # for a bound device; everything is connected already

    # -- Running calls --

    def _describe(self, at, timeout, kind, out=None, count=0, dtype=0, given=None, op=0, root=0, peer=0, tag=0, in_counts=None,
                  out_counts=None, source=None):
        """A tr_collective, as bytes. at: the file's address and the line."""
        return _pack(_SIZE, kind, out.data_ptr() if out is not None else 0, count, given.data_ptr() if given is not None else 0,
                     dtype, op, root, peer, tag, ctypes.addressof(in_counts) if in_counts else 0, 0,
                     ctypes.addressof(out_counts) if out_counts else 0, 0, timeout or self._timeout_ms, at[0], at[1], 0, 0, _c.TR_CPU, 0, 0,
                     ctypes.addressof(source) if source is not None else 0)

    def _check_open(self):
        if not self._group:
            raise RuntimeError(f"trireme: the group '{self._name}' was shut down, or is that of the process that forked this one")

    def _run(self, calls, opts, outputs, held, finish, source=None):
        """Runs calls that were described, or posts them. held: what the library uses beside outputs until it is done."""
        self._check_open()
        one = calls if isinstance(calls, bytes) else calls[0] if len(calls) == 1 else None
        if self._works is None and opts is not None and not _is_async(opts):
            status = (lib.tr_run_collective(self._group, one) if one else
                      lib.tr_run_list(self._group, b"".join(calls), len(calls)))
            if status:
                raise failure(status)
            put_back(finish)
            return _ENDED
        if self._orphans:
            self._reap()
        _push()
        handle = _keep(lib.tr_post(self._group, one) if one else lib.tr_post_list(self._group, b"".join(calls), len(calls)))
        _pop()
        status = _status_of(handle)
        if status:
            error = failure(status)
            release(handle)
            raise error
        work = Work(self, handle, outputs, held, finish, source)
        if self._works is not None:
            self._works.append(work)
        return work

    def _reap(self):
        """Lets go of the memory of works that nobody holds any more."""
        for _ in range(len(self._orphans)):
            try:
                orphan = self._orphans.pop(0)  # other threads append to the list, and take from it
            except IndexError:
                return
            if _done(orphan[0]):
                release(orphan[0])
            else:
                self._orphans.append(orphan)

    def _start_coalescing(self, device=_CPU):
        if torch.device(device).type != "cpu":
            self._other(torch.device(device))._start_coalescing()
        else:
            self._works = []

    def _end_coalescing(self, device=_CPU):
        if torch.device(device).type != "cpu":
            return self._other(torch.device(device))._end_coalescing()
        works, self._works = self._works, None
        return works[0] if len(works) == 1 else Joint(works)

    start_coalescing, end_coalescing = _start_coalescing, _end_coalescing

    # -- Collectives that reduce --

    @staticmethod
    def _op(op):
        code = _OPS.get(int(op.op))  # op itself would be compared by PyTorch, for a microsecond
        if code is None:
            raise ValueError(f"trireme: there is no reduction {op.op.name}; there are SUM, AVG, MIN, MAX, PRODUCT, BAND, BOR and BXOR")
        return code

    @staticmethod
    def _addends(tensor, finish):
        """As the library can reduce it, and the type for it."""
        code = _TYPES.get(tensor.dtype)
        if code is not None:
            return _target(tensor, finish), code
        wider = _WIDER.get(tensor.dtype)
        if not wider:
            raise TypeError(f"trireme: there is no arithmetic on {tensor.dtype}; convert the tensor, to float32 say")
        wide = _dense(tensor).to(wider)
        finish.append((tensor, wide))
        return wide, _TYPES[wider]

    @_direct(_native.AllreduceOptions, 1, "op", "timeout")
    def allreduce(self, tensors, opts):
        if not tensors[0].is_cpu:
            return self._elsewhere("allreduce", tensors[0], tensors, opts)
        at, op, finish, held, calls = _caller(), self._op(opts.reduceOp), [], [], []
        timeout = _milliseconds(opts.timeout)
        for tensor in tensors:
            target, dtype = self._addends(tensor, finish)
            held.append(target)
            calls.append(self._describe(at, timeout, _c.TR_ALL_REDUCE, target, target.numel(), dtype, op=op))
        return self._run(calls, opts, tensors, held, finish)

    allreduce_coalesced = _direct(_native.AllreduceCoalescedOptions, 1, "op", "timeout")(allreduce.__wrapped__)

    @_direct(_native.ReduceOptions, 1, "root", "op", "timeout")
    def reduce(self, tensors, opts):
        if not tensors[0].is_cpu:
            return self._elsewhere("reduce", tensors[0], tensors, opts)
        finish = []
        target, dtype = self._addends(tensors[0], finish)
        call = self._describe(_caller(), _milliseconds(opts.timeout), _c.TR_REDUCE, target, target.numel(), dtype,
                              op=self._op(opts.reduceOp), root=opts.rootRank)
        return self._run(call, opts, tensors, [target], finish if self._rank == opts.rootRank else [])

    def _scatter_sum(self, at, opts, output, given, finish, held):
        target, dtype = self._addends(output, finish)
        blocks, _ = self._addends(given, [])
        if blocks.numel() != self._size * target.numel() or output.dtype != given.dtype:
            raise ValueError(f"trireme: reduce_scatter: {given.numel()} elements of {given.dtype} do not make {self._size} blocks "
                             f"of {output.numel()} of {output.dtype}")
        held += [target, blocks]
        return self._describe(at, _milliseconds(opts.timeout), _c.TR_REDUCE_SCATTER, target, target.numel(), dtype, blocks,
                              op=self._op(opts.reduceOp))

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=_native.ReduceScatterOptions()):
        if not outputs[0].is_cpu:
            return self._elsewhere("reduce_scatter_tensor_coalesced", outputs[0], outputs, inputs, opts)
        at, finish, held = _caller(), [], []
        calls = [self._scatter_sum(at, opts, *pair, finish, held) for pair in zip(outputs, inputs)]
        return self._run(calls, opts, outputs, held, finish)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter_single(self, output, given, opts=_native.ReduceScatterOptions()):
        if not output.is_cpu:
            return self._elsewhere("_reduce_scatter_base", output, output, given, opts)
        finish, held = [], []
        call = self._scatter_sum(_caller(), opts, output, given, finish, held)
        return self._run(call, opts, [output], held, finish)

    _reduce_scatter_base = reduce_scatter_single

    @_direct(_native.ReduceScatterOptions, 2, "op", "timeout")
    def reduce_scatter(self, outputs, inputs, opts):
        output, blocks, at, finish, held = outputs[0], inputs[0], _caller(), [], []
        if not output.is_cpu:
            return self._elsewhere("reduce_scatter", output, outputs, inputs, opts)
        self._check_blocks("reduce_scatter", blocks, output, blocks[self._rank:self._rank + 1])
        flat = torch.cat([_dense(block).reshape(-1) for block in blocks])
        if all(block.numel() == output.numel() for block in blocks):
            call = self._scatter_sum(at, opts, output, flat, finish, held)
        else:  # blocks of different lengths: all of them are summed, and this rank's is taken
            target, dtype = self._addends(flat, finish)
            before = sum(block.numel() for block in blocks[:self._rank])
            finish.append((output, flat[before:before + output.numel()].view(output.shape)))
            held.append(target)
            call = self._describe(at, _milliseconds(opts.timeout), _c.TR_ALL_REDUCE, target, flat.numel(), dtype,
                                  op=self._op(opts.reduceOp))
        return self._run(call, opts, outputs, held, finish)

    # -- Collectives that move --

    def _check_blocks(self, what, blocks, like, same=()):
        if len(blocks) != self._size:
            raise ValueError(f"trireme: {what}: a list of {len(blocks)} tensors was given in a group of {self._size}")
        for block in blocks:
            if block.dtype != like.dtype:
                raise TypeError(f"trireme: {what}: the tensors are of different types, {like.dtype} and {block.dtype}")
        for block in same:  # as long as the single tensor
            if block.numel() != like.numel():
                raise ValueError(f"trireme: {what}: a tensor of the list has {block.numel()} elements, the single one {like.numel()}")

    @staticmethod
    def _together(blocks, finish):
        """One piece of memory for the results of a list: the tensors' own, where they follow each other in it."""
        first, at = blocks[0], blocks[0].data_ptr()
        for block in blocks:
            if not block.is_contiguous() or block.data_ptr() != at:
                break
            at += block.numel() * block.element_size()
        else:
            return first
        whole, at = torch.empty(sum(block.numel() for block in blocks), dtype=first.dtype), 0
        for block in blocks:
            finish.append((block, whole[at:at + block.numel()].view(block.shape)))
            at += block.numel()
        return whole

    @_direct(_native.BroadcastOptions, 1, "root", "timeout")
    def broadcast(self, tensors, opts):
        if not tensors[0].is_cpu:
            return self._elsewhere("broadcast", tensors[0], tensors, opts)
        at, finish, held, calls = _caller(), [], [], []
        for tensor in tensors:
            target = _target(tensor, finish)
            count, dtype, _ = _units(target)
            held.append(target)
            calls.append(self._describe(at, _milliseconds(opts.timeout), _c.TR_BROADCAST, target, count, dtype, root=opts.rootRank))
        return self._run(calls, opts, tensors, held, finish if self._rank != opts.rootRank else [])

    def _gather_list(self, at, opts, blocks, given, finish, held):
        self._check_blocks("all_gather", blocks, given)
        given, whole = _dense(given), self._together(blocks, finish)
        count, dtype, size = _units(given)
        sizes = [block.numel() * size for block in blocks]
        held += [given, whole]
        if all(n == count for n in sizes):
            return self._describe(at, _milliseconds(opts.timeout), _c.TR_ALL_GATHER, whole, count, dtype, given)
        held.append(_counts(sizes))
        return self._describe(at, _milliseconds(opts.timeout), _c.TR_ALL_GATHER_V, whole, count, dtype, given, out_counts=held[-1])

    @_direct(_native.AllgatherOptions, 2, "timeout")
    def allgather(self, outputs, inputs, opts):
        if not inputs[0].is_cpu:
            return self._elsewhere("allgather", inputs[0], outputs, inputs, opts)
        at, finish, held = _caller(), [], []
        calls = [self._gather_list(at, opts, *pair, finish, held) for pair in zip(outputs, inputs)]
        return self._run(calls, opts, [block for blocks in outputs for block in blocks], held, finish)

    def allgather_coalesced(self, outputs, inputs, opts=_native.AllgatherOptions()):
        if not inputs[0].is_cpu:
            return self._elsewhere("allgather_coalesced", inputs[0], outputs, inputs, opts)
        at, finish, held = _caller(), [], []
        calls = [self._gather_list(at, opts, [blocks[i] for blocks in outputs], given, finish, held)
                 for i, given in enumerate(inputs)]
        return self._run(calls, opts, [block for blocks in outputs for block in blocks], held, finish)

    def _gather_one(self, at, opts, output, given, finish, held):
        given, target = _dense(given), _target(output, finish)
        count, dtype, _ = _units(given)
        if target.numel() != self._size * given.numel() or output.dtype != given.dtype:
            raise ValueError(f"trireme: all_gather: {output.numel()} elements of {output.dtype} are no place for {self._size} blocks "
                             f"of {given.numel()} of {given.dtype}")
        held += [given, target]
        return self._describe(at, _milliseconds(opts.timeout), _c.TR_ALL_GATHER, target, count, dtype, given)

    def all_gather_single(self, output, given, opts=_native.AllgatherOptions()):
        if not given.is_cpu:
            return self._elsewhere("_allgather_base", given, output, given, opts)
        finish, held = [], []
        call = self._gather_one(_caller(), opts, output, given, finish, held)
        return self._run(call, opts, [output], held, finish)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs, inputs, opts=_native.AllgatherOptions()):
        if not inputs[0].is_cpu:
            return self._elsewhere("allgather_into_tensor_coalesced", inputs[0], outputs, inputs, opts)
        at, finish, held = _caller(), [], []
        calls = [self._gather_one(at, opts, *pair, finish, held) for pair in zip(outputs, inputs)]
        return self._run(calls, opts, outputs, held, finish)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _to_root(self, at, opts, whole, given, finish, outputs):
        given = _dense(given)
        count, dtype, _ = _units(given)
        call = self._describe(at, _milliseconds(opts.timeout), _c.TR_GATHER, whole, count, dtype, given, root=opts.rootRank)
        return self._run(call, opts, outputs, [given, whole], finish)

    @_direct(_native.GatherOptions, 2, "root", "timeout")
    def gather(self, outputs, inputs, opts):
        if not inputs[0].is_cpu:
            return self._elsewhere("gather", inputs[0], outputs, inputs, opts)
        at, finish, whole = _caller(), [], None
        if self._rank == opts.rootRank:
            self._check_blocks("gather", outputs[0], inputs[0], outputs[0])
            whole = self._together(outputs[0], finish)
        return self._to_root(at, opts, whole, inputs[0], finish, outputs[0] if outputs else [])

    def gather_single(self, output, given, opts=_native.GatherOptions()):
        if not given.is_cpu:
            return self._elsewhere("gather_single", given, output, given, opts)
        at, finish, whole = _caller(), [], None
        if self._rank == opts.rootRank:
            whole = _target(output, finish)
            if whole.numel() != self._size * given.numel() or whole.dtype != given.dtype:
                raise ValueError(f"trireme: gather: {whole.numel()} elements of {whole.dtype} are no place for {self._size} blocks "
                                 f"of {given.numel()} of {given.dtype}")
        return self._to_root(at, opts, whole, given, finish, [output] if whole is not None else [])

    gather_into_tensor = gather_single

    @_direct(_native.ScatterOptions, 2, "root", "timeout")
    def scatter(self, outputs, inputs, opts):
        output, at, finish, whole = outputs[0], _caller(), [], None
        if not output.is_cpu:
            return self._elsewhere("scatter", output, outputs, inputs, opts)
        if self._rank == opts.rootRank:
            self._check_blocks("scatter", inputs[0], output, inputs[0])
            whole = torch.cat([_dense(block).reshape(-1) for block in inputs[0]])
        target = _target(output, finish)
        count, dtype, _ = _units(target)
        call = self._describe(at, _milliseconds(opts.timeout), _c.TR_SCATTER, target, count, dtype, whole, root=opts.rootRank)
        return self._run(call, opts, outputs, [target, whole], finish)

    def _exchange(self, at, opts, target, given, out_sizes, in_sizes, outputs, finish):
        """All to all, of so many elements for and from each rank."""
        size = _units(given)[2]
        counts = [_counts([n * size for n in sizes]) for sizes in (in_sizes, out_sizes)]
        call = self._describe(at, _milliseconds(opts.timeout), _c.TR_ALL_TO_ALL_V, target, 0, _units(given)[1], given,
                              in_counts=counts[0], out_counts=counts[1])
        return self._run(call, opts, outputs, [target, given, counts], finish)

    def _split(self, tensor, splits, what):
        rows = tensor.size(0) if tensor.dim() else 1
        if not splits:
            if rows % self._size:
                raise ValueError(f"trireme: all_to_all: the {what}'s {rows} rows cannot be divided by the group's {self._size} ranks")
            splits = [rows // self._size] * self._size
        if len(splits) != self._size or sum(splits) != rows:
            raise ValueError(f"trireme: all_to_all: the {what}'s sizes {list(splits)} do not divide its {rows} rows among "
                             f"{self._size} ranks")
        return [n * (tensor.numel() // rows if rows else 0) for n in splits]

    def all_to_all_single(self, output, given, output_splits=None, input_splits=None, opts=_native.AllToAllOptions()):
        if not given.is_cpu:
            return self._elsewhere("alltoall_base", given, output, given, output_splits, input_splits, opts)
        if output.dtype != given.dtype:
            raise TypeError(f"trireme: all_to_all: the tensors are of different types, {output.dtype} and {given.dtype}")
        at, finish = _caller(), []
        return self._exchange(at, opts, _target(output, finish), _dense(given), self._split(output, output_splits, "output"),
                              self._split(given, input_splits, "input"), [output], finish)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs, inputs, opts=_native.AllToAllOptions()):
        if not inputs[0].is_cpu:
            return self._elsewhere("alltoall", inputs[0], outputs, inputs, opts)
        at, finish = _caller(), []
        self._check_blocks("all_to_all", inputs, inputs[0])
        self._check_blocks("all_to_all", outputs, inputs[0])
        return self._exchange(at, opts, self._together(outputs, finish), torch.cat([_dense(t).reshape(-1) for t in inputs]),
                              [t.numel() for t in outputs], [t.numel() for t in inputs], outputs, finish)

    @_direct(_native.BarrierOptions, 0, "timeout")
    def barrier(self, opts):
        device = getattr(opts, "device", None)
        if device is not None and device.type != "cpu" and device.type in self._configured():
            return self._other(device).barrier(opts)
        return self._run(self._describe(_caller(), _milliseconds(opts.timeout), _c.TR_BARRIER), opts, [], [], [])

    def monitored_barrier(self, timeout=_UNSET, wait_all_ranks=False):
        """Fails on every rank with the names of all that did not come in time."""
        self._check_open()
        status = lib.tr_run_collective(self._group, self._describe(_caller(), _milliseconds(timeout), _c.TR_BARRIER))
        if status:
            raise failure(status)

    # -- Between two ranks --

    def send(self, tensors, to, tag=0):
        if not tensors[0].is_cpu:
            return self._elsewhere("send", tensors[0], tensors, to, tag)
        given = _dense(tensors[0])
        count, dtype, _ = _units(given)
        call = self._describe(_caller(), 0, _c.TR_SEND, None, count, dtype, given, peer=to, tag=tag)
        return self._run(call, None, tensors, [given], [], source=ctypes.c_int(self._rank))

    def recv(self, tensors, source, tag=0):
        if not tensors[0].is_cpu:
            return self._elsewhere("recv", tensors[0], tensors, source, tag)
        finish = []
        target = _target(tensors[0], finish)
        count, dtype, _ = _units(target)
        came_from = ctypes.c_int(source)
        call = self._describe(_caller(), 0, _c.TR_RECV, target, count, dtype, peer=source, tag=tag, source=came_from)
        return self._run(call, None, tensors, [target], finish, source=came_from)

    def recv_anysource(self, tensors, tag=0):
        return self.recv(tensors, _c.TR_ANY_SOURCE, tag)

    recvAnysource = recv_anysource

    # -- Groups within the group, and the end --

    def split_group(self, ranks, timeout=None, opts=None, group_name=None, group_desc=None, device_types=None):
        """All ranks of the group come here, each with the list it is in; who is in none of the lists has one without itself."""
        self._check_open()
        if isinstance(opts, Options) and opts != self._options:
            raise ValueError("trireme: split_group: the parts have the connections of the whole, and no options of their own; "
                             "new_group() takes pg_options")
        color, key = (min(ranks), ranks.index(self._rank)) if self._rank in ranks else (-1, 0)
        handle = kept(lib.tr_group_split_at, self._group, color, key, None, 0, error=dist.DistBackendError)
        if not handle:
            return None
        part = ProcessGroup(key, len(ranks), group_name or "", self._options, _milliseconds(timeout) or self._timeout_ms,
                            dist.PrefixStore(f"{group_name}/", self._torch_store), lambda _: handle)
        part._desc, part._is_part = group_desc or "", True
        return part

    def abort(self):
        """From any thread: what is under way fails, here and on the other ranks."""
        for other in self._others.values():
            other.abort()
        self._abort("the program aborted the group")

    def _abort(self, reason):
        if self._group:
            lib.tr_abort(self._group, reason.encode(errors="replace"))

    def shutdown(self):
        """Waits for what is under way, and leaves."""
        for other in self._others.values():
            other.shutdown()
        group, self._group = self._group, None
        if group:
            _groups.discard(self)
            status = lib.tr_leave(group)
            if status not in (_c.TR_OK, _c.TR_STATE):
                warnings.warn(f"trireme: leaving the group '{self._name}': {message()}")
            self._waiter.end()
            self._reap()
            release(group)

    def __del__(self):
        if getattr(self, "_group", None):
            release(self._group)


_ENDED = Ended()


# ---- Making groups ------------------------------------------------------------------------------------------------------

def _make_backend(group, device, name):
    """As PyTorch makes it, for a device of a group that names a backend for each."""
    store = dist.PrefixStore(f"{device.type}/", group._torch_store)
    timeout = timedelta(milliseconds=group._timeout_ms)
    if hasattr(c10d.Backend, "_ensure_backend_registered"):
        c10d.Backend._ensure_backend_registered(name)
    plugin = c10d.Backend._plugins.get(name.upper())
    if plugin and plugin.extended_api:
        opts = c10d._DistributedBackendOptions()
        opts.store, opts.group_rank, opts.group_size, opts.timeout = store, group._rank, group._size, timeout
        opts.group_id, opts.global_ranks_in_group = group._name, dist.get_process_group_ranks(group)
        return plugin.creator_fn(opts, group._other_options)
    if plugin:
        return plugin.creator_fn(store, group._rank, group._size, timeout)
    if name == "nccl":
        options = group._other_options or dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return dist.ProcessGroupNCCL(store, group._rank, group._size, options)
    if name == "gloo":
        return dist.ProcessGroupGloo(store, group._rank, group._size, timeout=timeout)
    raise ValueError(f"trireme: beside this backend there may be nccl, gloo and those that were registered, not '{name}'")


def _choose_options(given):
    default = c10d._get_default_group() if dist.is_initialized() else None
    if isinstance(given, Options):
        return given
    return default._options if isinstance(default, ProcessGroup) else Options()


def _call_it(opts):
    """The group's name in messages and records, where ranks are numbered within it."""
    ranks = opts.global_ranks_in_group
    if not ranks:
        return "world"
    listed = "ranks-" + ",".join(map(str, ranks))
    return listed if len(listed) < 60 else f"group-{opts.group_id}"[:60]


def _create(opts, pg_options=None):
    if not isinstance(pg_options, (Options, _native.Backend.Options, type(None))):  # the second are another device's backend's
        raise TypeError(f"trireme: pg_options is a {type(pg_options).__name__}, not a trireme.torch.Options(…)")
    options = _choose_options(pg_options)
    rank, size, timeout = opts.group_rank, opts.group_size, _milliseconds(opts.timeout)
    watch_exit()

    def join(group):
        host = meeting_host()
        token = options.token or os.environ.get("TRIREME_TOKEN")
        if size > 1:
            group._store = Store(opts.store, timeout, host, token, options.insecure)
        given = {field.name: getattr(options, field.name) for field in dataclasses.fields(options) if getattr(options, field.name)}
        # Who is alone opens no file; without any way to meet, RANK of the environment would count in place of rank.
        return kept(lib.tr_join_with, ctypes.byref(filled(
            _c.tr_join_options, rank=rank, world_size=size, store=group._store and group._store.handle, name=_call_it(opts),
            init="file:///dev/null" if size == 1 else None, timeout_ms=timeout, **given)), error=dist.DistBackendError)

    group = ProcessGroup(rank, size, opts.group_id, options, timeout, opts.store, join)
    group._other_options = None if isinstance(pg_options, Options) else pg_options
    return group


def _forget_all():
    """In a forked child: the groups are its parent's, and are not to be left by it."""
    for group in list(_groups):
        group._group = None
    _groups.clear()


os.register_at_fork(after_in_child=_forget_all)
_watched = None


def watch_exit():
    """In each process that has groups: they are left when it ends. multiprocessing's children skip atexit, but not this."""
    global _watched
    if _watched != os.getpid():
        _watched = os.getpid()
        multiprocessing.util.Finalize(None, _leave_all, exitpriority=100)
        log(True)


def _leave_all():
    """A program that fails tells the other ranks why."""
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    while isinstance(error, SystemExit) and error.code not in (None, 0) and error.__context__:
        error = error.__context__
    failed = isinstance(error, BaseException) and not (isinstance(error, SystemExit) and error.code in (None, 0))
    for group in list(_groups):
        if failed:
            group._abort(f"the program ended with {type(error).__name__}: {error}")
        group.shutdown()
    log(False)


def _let_works_outlive_python(reducer):
    """DDP's join hands a work to its reducer and forgets it. What is left then is the C++ part of ours, whose wait() would never
    end; a work made from a future waits for that."""
    take = reducer._set_forward_pass_work_handle

    def _set_forward_pass_work_handle(self, work, *arguments, **named):
        if isinstance(work, Work):
            work = _native._create_work_from_future(work.get_future())
        return take(self, work, *arguments, **named)

    reducer._set_forward_pass_work_handle = _set_forward_pass_work_handle


def register():
    """What the entry point calls, and importing this module."""
    if "TRIREME" not in c10d.Backend._plugins:
        dist.Backend.register_backend("trireme", _create, extended_api=True, devices=["cpu"])
        if os.environ.get("TRIREME_STORE") == "1":
            autoload()
    if ".".join(torch.__version__.split(".")[:2]) not in TESTED:
        warnings.warn(f"trireme: the tests run with PyTorch {TESTED[0]} to {TESTED[-1]}, not with {torch.__version__}")


_let_works_outlive_python(_native.Reducer)
getattr(c10d, "_FR_SELF_RECORDING_BACKENDS", set()).add("trireme")
register()
