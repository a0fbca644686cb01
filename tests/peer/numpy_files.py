"""NumPy and Trireme read each other's .npy and .npz files: random arrays go NumPy -> Trireme -> NumPy and come back the same.

    python3 tests/peer/numpy_files.py build/libtrireme.so [HOW_MANY [SEED]]
"""
import ctypes
import os
import sys
import tempfile

import numpy as np

library = ctypes.CDLL(os.path.abspath(sys.argv[1]))
for name in ("tr_npy_load", "tr_npz_load_with"):
    getattr(library, name).restype = ctypes.c_void_p
library.tr_error_message.restype = ctypes.c_char_p


class NpzLoadOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("given", ctypes.c_char_p), ("path", ctypes.c_char_p),
                ("max_bytes", ctypes.c_int64)]


class NpzSaveOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("given", ctypes.c_char_p), ("path", ctypes.c_char_p),
                ("list", ctypes.c_void_p), ("compress", ctypes.c_bool)]


def check(status: int) -> None:
    if status != 0:
        raise RuntimeError(library.tr_error_message().decode())


def random_array(rng: np.random.Generator) -> np.ndarray:
    shape = tuple(rng.integers(0, 6, rng.integers(0, 9)).tolist())
    kind = rng.choice(["f2", "f4", "f8", "i4", "i8", "u1", "b1"])
    values = np.asarray(rng.integers(0, 2 if kind == "b1" else 200, shape)).astype(rng.choice(["<", ">"]) + kind)
    return np.asarray(values, order=rng.choice(["C", "F"]))


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype.newbyteorder("=") == b.dtype.newbyteorder("=") and np.array_equal(a, b)


count = int(sys.argv[2]) if len(sys.argv) > 2 else 200
rng = np.random.default_rng(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
with tempfile.TemporaryDirectory() as folder:
    there, back = (os.path.join(folder, name).encode() for name in ("there", "back"))
    for trial in range(count):
        library.tr_scope_push()
        array = random_array(rng)
        with open(there, "wb") as file:
            np.lib.format.write_array(file, array, version=(int(rng.integers(1, 4)), 0))
        tensor = ctypes.c_void_p(library.tr_npy_load(there))
        check(library.tr_status_of(tensor))
        check(library.tr_npy_save(back, tensor))
        assert same(array, np.load(back.decode())), (trial, array.dtype, array.shape)

        arrays = {f"layer.{i}": random_array(rng) for i in range(int(rng.integers(0, 9)))}
        with open(there, "wb") as file:
            (np.savez_compressed if rng.integers(2) else np.savez)(file, **arrays)
        options = NpzLoadOptions(ctypes.sizeof(NpzLoadOptions), None, there, 0)
        tensors = ctypes.c_void_p(library.tr_npz_load_with(ctypes.byref(options)))
        check(library.tr_status_of(tensors))
        options = NpzSaveOptions(ctypes.sizeof(NpzSaveOptions), None, back, tensors, bool(rng.integers(2)))
        check(library.tr_npz_save_with(ctypes.byref(options)))
        with np.load(back.decode()) as loaded:
            assert sorted(loaded.files) == sorted(arrays), trial
            assert all(same(arrays[name], loaded[name]) for name in arrays), trial
        library.tr_scope_pop()
print(f"{count} arrays and {count} archives: the same there and back")
