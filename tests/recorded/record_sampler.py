"""Records which samples PyTorch's DistributedSampler gives to each rank, unshuffled, into sampler.safetensors beside this
script.

  order.COUNT.WORLD_SIZE.pad, order.COUNT.WORLD_SIZE.drop   I64 [WORLD_SIZE, length]: row r are rank r's; drop_last off, on
"""
import os

import torch
from torch.utils.data import DistributedSampler

from safetensors_file import save

recorded: dict[str, torch.Tensor] = {}
for count in (0, 1, 2, 3, 5, 8, 10, 31, 100):
    for world_size in (1, 2, 3, 4, 7, 8, 33):
        for name, drop_last in (("pad", False), ("drop", True)):
            if count == 0 and not drop_last:
                continue  # PyTorch divides by it
            orders = [list(DistributedSampler(range(count), world_size, rank, shuffle=False, drop_last=drop_last))
                      for rank in range(world_size)]
            recorded[f"order.{count}.{world_size}.{name}"] = torch.tensor(orders, dtype=torch.int64)

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sampler.safetensors")
save(path, recorded, {"torch": torch.__version__})
print(f"{len(recorded)} tensors in {path}")
