"""PyTorch and Trireme in one process share memory by DLPack, both ways.

    python3 tests/peer/dlpack.py build/libtrireme.so
"""
import ctypes
import gc
import os
import sys

import torch

library = ctypes.CDLL(os.path.abspath(sys.argv[1]))
for name in ("tr_arange", "tr_from_dlpack_unversioned", "tr_data", "tr_object_keep"):
    getattr(library, name).restype = ctypes.c_void_p
library.tr_error_message.restype = ctypes.c_char_p
python = ctypes.pythonapi
python.PyCapsule_New.restype = ctypes.py_object
python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
python.PyCapsule_GetPointer.restype = ctypes.c_void_p
python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
USED = b"used_dltensor"


class Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("index", ctypes.c_int)]


def check(status: int) -> None:
    if status != 0:
        raise RuntimeError(library.tr_error_message().decode())


# Ours there: torch reads what we wrote, we read what it writes, and the memory outlives our tensor.
library.tr_scope_push()
ours = ctypes.c_void_p(library.tr_arange(ctypes.c_int64(12), 0, Device(0, 0)))
values = ctypes.cast(library.tr_data(ours), ctypes.POINTER(ctypes.c_float))
managed = ctypes.c_void_p()
check(library.tr_to_dlpack_unversioned(ours, ctypes.byref(managed)))
there = torch.utils.dlpack.from_dlpack(python.PyCapsule_New(managed, b"dltensor", None))
assert there.dtype == torch.float32 and there.data_ptr() == library.tr_data(ours)
assert torch.equal(there, torch.arange(12, dtype=torch.float32))
there[3] = 42
assert values[3] == 42
library.tr_scope_pop()
assert there.sum() == 66 - 3 + 42
del there

# Theirs here, with strides: torch's tensor lives until ours goes.
for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool):
    library.tr_scope_push()
    theirs = torch.ones(4, 6, dtype=dtype)[:, 1:4].t()
    place, capsule = theirs.data_ptr(), torch.utils.dlpack.to_dlpack(theirs)
    here = ctypes.c_void_p(library.tr_from_dlpack_unversioned(
        ctypes.c_void_p(python.PyCapsule_GetPointer(capsule, b"dltensor"))))
    check(library.tr_status_of(here))
    python.PyCapsule_SetName(capsule, USED)
    del theirs, capsule
    gc.collect()
    library.tr_stride.restype = ctypes.c_int64
    assert library.tr_data(here) == place and [library.tr_stride(here, d) for d in (0, 1)] == [1, 6]
    out = (ctypes.c_char * (12 * library.tr_dtype_size(library.tr_dtype_of(here))))()
    check(library.tr_copy_out(here, out, ctypes.c_size_t(len(out))))
    assert bytes(out) == bytes(torch.ones(12, dtype=dtype).view(torch.uint8).numpy())
    library.tr_scope_pop()
print("shared both ways")
