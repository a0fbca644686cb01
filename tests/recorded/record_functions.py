"""Records more functions from PyTorch into functions.safetensors beside this script, as record_ops.py does: for every
case its inputs <case>.in0, …, the output <case>.out, a gradient <case>.gout that arrives there, and those of the
inputs <case>.gin0, …, in F64. What each case computes is its line in main().
"""
import os

import torch
import torch.nn.functional as F

from record_ops import rand, record, recorded
from safetensors_file import save


def record_activations() -> None:
    for name in ("silu", "mish", "softplus", "logsigmoid", "hardswish", "selu"):
        record(name, getattr(F, name), rand(3, 7) * 3)
    record("hardsigmoid", lambda x: F.relu6(x + 3) / 6, rand(3, 7) * 3)  # F.hardsigmoid's gradient divides by 6 in f32
    record("leaky_relu", lambda x: F.leaky_relu(x, 0.1), rand(3, 7))
    record("elu", lambda x: F.elu(x, 0.7), rand(3, 7))
    record("clamp", lambda x: x.clamp(-0.5, 1), rand(3, 7))
    record("pow", lambda x: x.pow(1.7), rand(3, 7).abs() + 0.1)
    record("pow_cube", lambda x: x.pow(3), rand(3, 7))
    record("sin", torch.sin, rand(3, 7))
    record("cos", torch.cos, rand(3, 7))


def main() -> None:
    torch.manual_seed(8765)
    record_activations()
    save(os.path.join(os.path.dirname(os.path.abspath(__file__)), "functions.safetensors"), recorded,
         {"torch": torch.__version__, "computed_in": "f64"})


if __name__ == "__main__":
    main()
