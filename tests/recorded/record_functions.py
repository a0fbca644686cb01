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


REDUCTIONS = ("mean", "sum", "none")


def record_losses() -> None:
    for reduction in REDUCTIONS:
        record(f"mse_{reduction}", lambda x, y: F.mse_loss(x, y, reduction=reduction), rand(3, 5), rand(3, 5))
        record(f"l1_{reduction}", lambda x, y: F.l1_loss(x, y, reduction=reduction), rand(3, 5), rand(3, 5))
        record(f"huber_{reduction}", lambda x, y: F.huber_loss(x, y, reduction=reduction, delta=0.7), rand(3, 5), rand(3, 5))
        record(f"smooth_l1_{reduction}", lambda x, y: F.smooth_l1_loss(x, y, reduction=reduction, beta=0.5), rand(3, 5),
               rand(3, 5))
        record(f"bce_{reduction}", lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction=reduction),
               rand(3, 5) * 3, torch.rand(3, 5, dtype=torch.float64))
        record(f"kl_{reduction}", lambda x, y: F.kl_div(x, y, reduction=reduction), rand(3, 5),
               torch.softmax(rand(3, 5), -1))
        targets = torch.tensor([4, 0, 2, -100, 1, 3])
        record(f"nll_{reduction}", lambda x, y: F.nll_loss(x, y, reduction=reduction), rand(6, 5), targets)
        record(f"cross_entropy_{reduction}",
               lambda x, y: F.cross_entropy(x, y, reduction=reduction, label_smoothing=0.2), rand(6, 5), targets)
    record("cross_entropy_ignore_index", lambda x, y: F.cross_entropy(x, y, ignore_index=2), rand(6, 5),
           torch.tensor([4, 0, 2, 2, 1, 3]))
    record("bce_pos_weight", lambda x, y: F.binary_cross_entropy_with_logits(x, y, pos_weight=torch.arange(1.0, 6)),
           rand(3, 5) * 3, torch.rand(3, 5, dtype=torch.float64))
    record("kl_log_target", lambda x, y: F.kl_div(x, y, reduction="mean", log_target=True), rand(3, 5), rand(3, 5))
    probabilities = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]], dtype=torch.float64)
    record("kl_zero", lambda x: F.kl_div(x, probabilities, reduction="sum"), rand(2, 3))


def record_indexing() -> None:
    index = torch.tensor([[0, 2, 2, 1], [4, 4, 0, 3]])
    mask = torch.tensor([[True, False, True], [False, False, True]])
    record("where", torch.where, mask, rand(2, 3), rand(3))
    record("masked_fill", lambda x, mask: x.masked_fill(mask, -1.5), rand(4, 2, 3), mask)
    record("gather_0", lambda x, i: torch.gather(x, 0, i), rand(5, 4), index)
    record("gather_1", lambda x, i: torch.gather(x, 1, i), rand(3, 5), index)
    record("scatter_add_0", lambda x, i, src: torch.scatter_add(x, 0, i, src), rand(5, 4), index, rand(2, 4))
    record("scatter_add_1", lambda x, i, src: torch.scatter_add(x, 1, i, src), rand(3, 5), index, rand(2, 4))
    record("index_select_0", lambda x, i: torch.index_select(x, 0, i), rand(5, 4), torch.tensor([3, 0, 3]))
    record("index_select_1", lambda x, i: torch.index_select(x, 1, i), rand(2, 5, 3), torch.tensor([4, 0, 4, 1]))
    record("flip", lambda x: torch.flip(x, (0, 2)), rand(2, 3, 4))
    record("one_hot", lambda x, i: x * F.one_hot(i, 4), rand(2, 3, 4), torch.tensor([[0, 3, 1], [2, 2, 0]]))


def main() -> None:
    torch.manual_seed(8765)
    record_activations()
    record_losses()
    record_indexing()
    save(os.path.join(os.path.dirname(os.path.abspath(__file__)), "functions.safetensors"), recorded,
         {"torch": torch.__version__, "computed_in": "f64"})


if __name__ == "__main__":
    main()
