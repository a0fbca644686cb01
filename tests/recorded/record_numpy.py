"""Writes files in NumPy's formats into the folder numpy beside this script; tests/unit/test_numpy.c knows what is in them.

  arrays.npz, compressed.npz   numpy.savez() and numpy.savez_compressed() of
      KIND.ORDER.BYTES         [2, 3, 4]: 0, 1, … 23 minus 7 (u1: plus 200; b1: whether i % 3 is 0) of each dtype that both
                               have, ORDER C or F, BYTES little or big
      scalar                   f8, 2.5
      empty                    f4 [3, 0, 2]
      row                      i4 [5]: 0 … 4
  version-1.npy … version-3.npy   f4 [2, 3]: 0 … 5, of each version of the format
"""
import os

import numpy as np

folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "numpy")
count = np.arange(24).reshape(2, 3, 4)
arrays = {"scalar": np.float64(2.5), "empty": np.zeros((3, 0, 2), np.float32), "row": np.arange(5, dtype=np.int32)}
for kind in ("f2", "f4", "f8", "i4", "i8", "u1", "b1"):
    values = count % 3 == 0 if kind == "b1" else count + 200 if kind == "u1" else count - 7
    for order in "CF":
        for name, mark in (("little", "<"), ("big", ">")):
            arrays[f"{kind}.{order}.{name}"] = np.array(values, dtype=mark + kind, order=order)
np.savez(os.path.join(folder, "arrays.npz"), **arrays)
np.savez_compressed(os.path.join(folder, "compressed.npz"), **arrays)
for version in (1, 2, 3):
    with open(os.path.join(folder, f"version-{version}.npy"), "wb") as file:
        np.lib.format.write_array(file, np.arange(6, dtype=np.float32).reshape(2, 3), version=(version, 0))
