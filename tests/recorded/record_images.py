"""Records functions of images and sequences from PyTorch into images.safetensors beside this script, as record_ops.py does:
for every case its inputs <case>.in0, …, the output <case>.out, a gradient <case>.gout that arrives there, and those of the
inputs <case>.gin0, …, in F64. Of modules in0, out, gout, gin0, the state dict <case>.weight, … and gradients <case>.gweight, …
"""
import os

import torch
import torch.nn.functional as F

from record_ops import Tensor, rand, record, record_module, recorded
from safetensors_file import save


def record_convolutions() -> None:
    record("conv1d", lambda x, w, b: F.conv1d(x, w, b, stride=2, padding=2, dilation=2), rand(2, 3, 9), rand(4, 3, 3), rand(4))
    record("conv1d_groups", lambda x, w: F.conv1d(x, w, groups=2), rand(2, 4, 6), rand(6, 2, 3))
    transposed = F.conv_transpose2d
    record("conv_transpose2d", lambda x, w, b: transposed(x, w, b, stride=2, padding=1, output_padding=1), rand(2, 3, 3, 4),
           rand(3, 2, 3, 2), rand(2))
    record("conv_transpose2d_groups", lambda x, w: transposed(x, w, groups=2, dilation=2, output_padding=1),
           rand(2, 4, 3, 2), rand(4, 2, 2, 3))
    line = F.conv_transpose1d
    record("conv_transpose1d", lambda x, w, b: line(x, w, b, stride=2, padding=1, output_padding=1), rand(2, 3, 5),
           rand(3, 2, 4), rand(2))
    record("conv_transpose1d_beyond", lambda x, w, b: line(x, w, b, stride=3, padding=1, output_padding=2, groups=2),
           rand(2, 4, 4), rand(4, 3, 2), rand(6))


def record_pools() -> None:
    record("max_pool1d", lambda x: F.max_pool1d(x, 3, stride=2, padding=1), rand(2, 3, 8))
    record("avg_pool1d", lambda x: F.avg_pool1d(x, 3, stride=2, padding=1), rand(2, 3, 8))
    record("adaptive_avg_pool1d", lambda x: F.adaptive_avg_pool1d(x, 5), rand(2, 3, 8))
    record("adaptive_max_pool1d", lambda x: F.adaptive_max_pool1d(x, 3), rand(2, 3, 8))
    record("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, (3, 4)), rand(2, 2, 7, 5))


def record_sizes() -> None:
    images = (rand(1, 2, 4, 5), rand(1, 2, 7, 6))
    for mode in ("nearest", "bilinear", "bicubic"):
        record(f"{mode}_up", lambda x: F.interpolate(x, scale_factor=2, mode=mode), images[0])
        record(f"{mode}_scale", lambda x: F.interpolate(x, scale_factor=1.7, mode=mode), images[0])
        record(f"{mode}_down", lambda x: F.interpolate(x, (3, 4), mode=mode), images[1])
        if mode != "nearest":
            record(f"{mode}_corners", lambda x: F.interpolate(x, (3, 9), mode=mode, align_corners=True), images[0])
    record("nearest_line", lambda x: F.interpolate(x, 7), rand(1, 2, 5))
    record("linear_line", lambda x: F.interpolate(x, scale_factor=2, mode="linear"), rand(1, 2, 5))
    record("bilinear_row", lambda x: F.interpolate(x, (3, 4), mode="bilinear"), rand(1, 2, 1, 6))


def record_layer(case: str, module: torch.nn.Module, x: Tensor) -> None:
    module = module.double()
    record(case, module, x)
    record_module(case, module)


def record_layers() -> None:
    record_layer("layer_conv1d", torch.nn.Conv1d(2, 4, 3, stride=2, padding=1, groups=2), rand(2, 2, 7))
    record_layer("layer_conv_transpose1d", torch.nn.ConvTranspose1d(4, 2, 3, stride=2, output_padding=1, groups=2),
                 rand(2, 4, 3))
    record_layer("layer_conv_transpose2d", torch.nn.ConvTranspose2d(2, 3, 2, stride=2, padding=1), rand(2, 2, 3, 4))


def main() -> None:
    torch.manual_seed(4321)
    recorded.clear()
    record_convolutions()
    record_layers()
    record_pools()
    record_sizes()
    save(os.path.join(os.path.dirname(os.path.abspath(__file__)), "images.safetensors"), recorded,
         {"torch": torch.__version__, "computed_in": "f64"})


if __name__ == "__main__":
    main()
