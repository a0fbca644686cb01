"""Records how PyTorch scales images with antialiasing, as torchvision's Resize does, into scaling.safetensors beside this
script.

  K.in    F32 [3, height, width]: whole numbers 0 … 255
  K.out   F32 [3, height', width']: the same scaled, values 0 … 255
"""
import os

import torch
import torch.nn.functional as F

from safetensors_file import save

torch.manual_seed(1)
recorded: dict[str, torch.Tensor] = {}
for k, (source, wanted) in enumerate([((5, 7), (3, 4)), ((12, 9), (5, 20)), ((8, 8), (8, 8)), ((1, 1), (2, 3)),
                                      ((30, 40), (7, 7)), ((3, 3), (9, 10)), ((50, 4), (3, 2)), ((33, 17), (32, 16))]):
    image = torch.randint(0, 256, (3, *source)).to(torch.float32)
    recorded[f"{k}.in"] = image
    recorded[f"{k}.out"] = F.interpolate(image[None], wanted, mode="bilinear", antialias=True)[0]

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scaling.safetensors")
save(path, recorded, {"torch": torch.__version__})
print(f"{len(recorded)} tensors in {path}")
